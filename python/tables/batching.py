"""The tables of ibatch.md."""

from __future__ import annotations

from collections.abc import Iterator

from tables.data import Data, at_most, beside, seconds, with_theory
from tables.paper import IBATCH_NODES, IBATCH_PAPER

from sparkdl_comm.lab.results import Row

Line = tuple[str, ...]
#: Numbers of hosts beside one, a file of results for each; and those whose iterations are told by parts.
NODES = (2, 4, 8, 16)
SPLIT_NODES = (8, 16)
#: What ran on each, in the order of IBATCH_PAPER.
NODE_WAYS = ("ibatch", "whole", "layerwise", "paper")


def networks(data: Data) -> Iterator[Line]:
    for name in ("ibatch-networks", "ibatch-delays", "ibatch-real"):
        for ours in data.rows(name, algorithm="ibatch"):
            for index, other_way in enumerate(("whole", "layerwise", "ring", "bml", "ddp", "paper"), 1):
                other = data.row(name, algorithm=other_way, case=ours.case, delay=ours.extra["delay"])
                if other:
                    paper = IBATCH_PAPER.get(ours.case) if name == "ibatch-networks" else None
                    told = f"{paper[0] / paper[index]:.2f} x the throughput" if paper and index < len(paper) else "-"
                    about = f"{ours.case}, start-up + {ours.extra['delay'] * 1e3:g} ms: beside `{other_way}`"
                    gained = f"{other.seconds / ours.seconds:.2f} x: {with_theory(ours)}; {seconds(other)}"
                    yield about, told, gained, beside(ours, other)


def rivals(network: str, data: Data) -> Iterator[Line]:
    """`ibatch` beside its bound, other cuts of `ps`, and all-reduces that overlap backward."""
    source = f"ibatch-rivals-{network}"
    for ours in data.rows(source, algorithm="ibatch"):
        about = f"a pull {ours.extra['pull_seconds'] / ours.extra['forward_seconds']:.2g} x forward"
        yield f"{about}: the bound", f"{ours.theory_seconds:.3g} s", seconds(ours), at_most(ours.ratio or 0.0, 1.10)
        predicted = ours.extra["predicted_seconds"]
        off = max(ours.seconds / predicted, predicted / ours.seconds)
        yield f"{about}: as the planner predicts", f"{predicted:.3g} s", seconds(ours), at_most(off, 1.10)
        for name in ("whole", "layerwise", "paper", "ring", "bml", "ddp"):
            other = data.row(source, algorithm=name, rate_mbit=ours.rate_mbit)
            if other:
                yield f"{about}: beside `{name}`", seconds(other), seconds(ours), beside(ours, other)


def startups(data: Data) -> Iterator[Line]:
    """On the paper's terms, where start-ups follow one another, batches beside one for each layer; `ibatch` beside both."""
    for ours in data.rows("ibatch-startups"):
        others = {"paper": ("paper-layerwise",), "ibatch": ("layerwise", "paper-layerwise")}.get(ours.algorithm, ())
        for name in others:
            other = data.row("ibatch-startups", algorithm=name, case=ours.case, delay=ours.extra["delay"])
            if other:
                told = "1.41 x the throughput" if ours.algorithm == "paper" else "-"
                about = f"{ours.case}, start-up + {ours.extra['delay'] * 1e3:g} ms: `{ours.algorithm}` beside `{name}`"
                gained = f"{other.seconds / ours.seconds:.2f} x: {seconds(ours)}; {seconds(other)}"
                yield about, told, gained, beside(ours, other)


def scaling(data: Data) -> Iterator[Line]:
    """The paper's figure 5: speed-ups over one node, on links of one rate."""
    measured = {nodes: data.rows(f"ibatch-nodes-{nodes}") for nodes in NODES}
    for alone in data.rows("ibatch-nodes-1", algorithm="whole"):
        for nodes, rows in measured.items():
            found = sorted(
                (row for row in rows if row.case == alone.case), key=lambda row: NODE_WAYS.index(row.algorithm)
            )
            if found:
                paper = zip(IBATCH_PAPER.get(alone.case, ()), NODE_WAYS, strict=False)
                told = "; ".join(f"`{way}` {speedup}" for speedup, way in paper)
                ours = "; ".join(f"`{row.algorithm}` {_speedup(row, alone):.1f}" for row in found)
                shares = "; ".join(f"{_speedup(row, alone) / nodes:.2f}" for row in found)
                yield f"{alone.case}, {nodes} nodes", f"on {IBATCH_NODES}: {told}", ours, f"{shares} of linear"


def _speedup(row: Row, alone: Row) -> float:
    return row.world * alone.seconds / row.seconds


def split(data: Data) -> Iterator[Line]:
    """The paper's figure 7, in shares of the iteration by `whole`, by timelines."""
    for nodes in SPLIT_NODES:
        for whole in data.rows(f"ibatch-nodes-{nodes}", algorithm="whole"):
            for row in data.rows(f"ibatch-nodes-{nodes}", case=whole.case):
                phases, overlapped = row.extra["phases"], row.extra["overlapped"]
                computing = sum(phases[name] for name in ("forward", "backward", "update"))
                parts = overlapped, row.seconds - computing, computing - overlapped, row.seconds
                yield (
                    f"{row.case}, {nodes} nodes, `{row.algorithm}`",
                    *(f"{part / whole.seconds:.3f}" for part in parts),
                )
