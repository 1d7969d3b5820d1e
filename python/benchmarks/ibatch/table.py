"""Tables of the page ibatch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.charts import Chart
from benchmarks.tables import (
    COMPARED_FROM,
    PAPER,
    Data,
    Line,
    Table,
    at_most,
    bar,
    beside,
    of_paper,
    seconds,
    summary,
    with_theory,
)
from lab.results import Row

from sparkdl_comm.job.summary import describe_kept

#: The paper's speed-ups over one node on 30 nodes: by iBatch, by default, with one batch per layer.
IBATCH_NODES = 30
IBATCH_PAPER = {
    "googlenet": (29, 26, 25),
    "inception_v3": (28, 25, 24),
    "vgg19": (26, 23, 22),
    "vgg19_22k": (25, 22, 21),
}
#: The same on 72 nodes, of VGG19-22K.
IBATCH_PAPER_72 = (45, 26, 32)

KEPT = ("", "`ibatch` kept", "ours", "verdict")
SPLIT = ("", "overlapping", "communication", "computation", "iteration")
#: Configurations in the order of the table of nodes. The paper batches pulls alone, like `paper`, and pushes whole.
NODE_WAYS = ("whole", "paper", "layerwise", "ibatch")


def networks(data: Data, name: str) -> Iterator[Line]:
    for ours, other in data.pairs(name, {"ibatch": ("whole", "layerwise")}, "case", "delay"):
        about = f"{ours.case}, start-up + {ours.extra['delay'] * 1e3:g} ms: beside `{other.algorithm}`"
        gained = f"{other.seconds / ours.seconds:.2f} x: {with_theory(ours)}; {seconds(other)}"
        yield about, kept(ours, _layers(data, name, ours)), gained, beside_policy(ours, other)


def beside_policy(ours: Row, other: Row) -> str:
    """Return the verdict on `ibatch` beside another configuration.

    It says `the same cuts` if both have one batch, or one batch per layer, in each run. Then the difference is chance.
    """
    cuts = [run.get("batches") for row in (ours, other) for run in runs(row)]
    if other.algorithm in ("whole", "layerwise") and cuts[0] and all(each == cuts[0] for each in cuts):
        return f"the same cuts: {ours.seconds / other.seconds:.2f} of its time"
    return beside(ours, other)


def _layers(data: Data, source: str, ours: Row) -> int | None:
    """Return the number of layers, if the network was also trained with a batch for each layer."""
    batches = [row.extra["batches"]["pull"] for row in data.rows(source, algorithm="layerwise", case=ours.case)]
    return max(batches, default=None)


def rivals(data: Data, network: str) -> Iterator[Line]:
    """Compare `ibatch` with its bound, other batchings of `ps`, and all-reduces. Then compare `paper` with `whole`."""
    source = f"ibatch-rivals-{network}"
    for ours in data.rows(source, algorithm="ibatch"):
        about = f"a pull {ours.extra['pull_seconds'] / ours.extra['forward_seconds']:.2g} x forward"
        stays = kept(ours, _layers(data, source, ours))
        yield f"{about}: tried, and kept", tried(ours), f"{stays}: {seconds(ours)}", _of_plan(stays)
        yield f"{about}: the bound", f"{ours.theory_seconds:.3g} s", seconds(ours), at_most(ours.ratio or 0.0, 1.10)
        predicted = ours.extra["predicted_seconds"]
        off = max(ours.seconds / predicted, predicted / ours.seconds)
        yield f"{about}: as predicted of what was kept", f"{predicted:.3g} s", seconds(ours), at_most(off, 1.10)
        for name in ("whole", "layerwise", "paper", "ring", "bml", "ddp"):
            other = data.row(source, algorithm=name, rate_mbit=ours.rate_mbit)
            if other:
                measured = f"{stays}: {seconds(ours)}"
                yield f"{about}: beside `{name}`", seconds(other), measured, beside_policy(ours, other)
        whole, paper = (data.row(source, algorithm=way, rate_mbit=ours.rate_mbit) for way in ("whole", "paper"))
        if whole and paper:
            gain, wanted = whole.seconds / paper.seconds, IBATCH_PAPER[network][0] / IBATCH_PAPER[network][1]
            yield (
                f"{about}: `paper` beside `whole`; the paper: {wanted:.2f} x",
                seconds(whole),
                f"`paper`, {gain:.2f} x: {seconds(paper)}",
                f"{of_paper(gain, wanted)}; {beside(paper, whole)}",
            )


def _of_plan(stays: str) -> str:
    return "the plan stays" if stays.startswith("plan") else "plan rejected"


def startups(data: Data) -> Iterator[Line]:
    """Compare batches with one batch per layer where start-ups follow one another, and `ibatch` with both."""
    rivals = {"paper": ("paper-layerwise",), "ibatch": ("layerwise", "paper-layerwise")}
    for ours, other in data.pairs("ibatch-startups", rivals, "case", "delay"):
        quoted, verdict, gain = "-", beside_policy(ours, other), other.seconds / ours.seconds
        if ours.algorithm == "paper":
            wanted = IBATCH_PAPER_72[0] / IBATCH_PAPER_72[2]
            quoted, verdict = f"{wanted:.2f} x the throughput", f"{of_paper(gain, wanted)}; {verdict}"
        way = f"{_way(data, 'ibatch-startups', ours)} beside `{other.algorithm}`"
        about = f"{ours.case}, start-up + {ours.extra['delay'] * 1e3:g} ms: {way}"
        yield about, quoted, f"{gain:.2f} x: {seconds(ours)}; {seconds(other)}", verdict


def scaling(data: Data) -> Iterator[Line]:
    """Yield the paper's figure 5: speed-ups over one node, on links of one rate.

    Of the paper, only the configurations that were run are shown.
    """
    measured = {nodes: data.rows(f"ibatch-nodes-{nodes}") for nodes in (2, 4, 8, 16)}
    for alone in data.rows("ibatch-nodes-1", algorithm="whole"):
        for nodes, rows in measured.items():
            found = sorted(
                (row for row in rows if row.case == alone.case), key=lambda row: NODE_WAYS.index(row.algorithm)
            )
            if found:
                source = f"ibatch-nodes-{nodes}"
                paper = dict(zip(("paper", "whole"), IBATCH_PAPER.get(alone.case, ()), strict=False))
                figures = "; ".join(
                    f"`{row.algorithm}` {paper[row.algorithm]}" for row in found if row.algorithm in paper
                )
                quoted = f"on {IBATCH_NODES}: {figures}" if figures else "-"
                ours = "; ".join(f"{_way(data, source, row)} {_speedup(row, alone):.1f}" for row in found)
                shares = "; ".join(f"{_speedup(row, alone) / nodes:.2f}" for row in found)
                samples = min(len(row.samples) for row in found)
                few = f"; samples each: {samples}" if samples < COMPARED_FROM else ""
                yield f"{alone.case}, {nodes} nodes", quoted, ours, f"{shares} of linear{few}"


def _way(data: Data, source: str, row: Row) -> str:
    stays = f" ({kept(row, _layers(data, source, row))})" if row.algorithm == "ibatch" else ""
    return f"`{row.algorithm}`{stays}"


def _speedup(row: Row, alone: Row) -> float:
    return row.world * alone.seconds / row.seconds


def split(data: Data) -> Iterator[Line]:
    """Yield the paper's figure 7 from timelines, in shares of the iteration by `whole`."""
    for nodes in (8, 16):
        for whole in data.rows(f"ibatch-nodes-{nodes}", algorithm="whole"):
            for row in data.rows(f"ibatch-nodes-{nodes}", case=whole.case):
                phases, overlapped = row.extra["phases"], row.extra["overlapped"]
                computing = sum(phases[name] for name in ("forward", "backward", "update"))
                parts = overlapped, row.seconds - computing, computing - overlapped, row.seconds
                yield (
                    f"{row.case}, {nodes} nodes, {_way(data, f'ibatch-nodes-{nodes}', row)}",
                    *(f"{part / whole.seconds:.3f}" for part in parts),
                )


def runs(row: Row) -> Sequence[Mapping[str, Any]]:
    """Return what a row recorded of the batches of each run, or of its only fit (see batching.py)."""
    found: Sequence[Mapping[str, Any]] = row.extra.get("runs", [row.extra])
    return found


def kept(row: Row, layers: int | None = None) -> str:
    """Return the kept batches, such as "plan, 7 pulls, 5 pushes", ``parts:24`` or ``layerwise``.

    If runs kept different batches, all are named, as in "`whole` or `layerwise`".

    :param layers: layers of the network, if known.
    """
    return " or ".join(dict.fromkeys(_kept(run, layers) for run in runs(row)))


def _kept(run: Mapping[str, Any], layers: int | None) -> str:
    """Return the batches that a run kept.

    Results of before the field ``kept`` do not record the choice. There it follows from the number of batches and the
    times of the trials.
    """
    if recorded := run.get("kept"):
        text = describe_kept(recorded["pull"], recorded["push"])
        return f"`{text}`" if recorded["pull"] == recorded["push"] else text
    pulls, pushes = run["batches"]["pull"], run["batches"]["push"]
    tried = run["tried"]
    if pulls == pushes == layers and "layerwise" in tried:
        return "`layerwise`"
    parts = next((name for name in tried if name.startswith("parts:")), None)
    if parts is not None and tried[parts] == min(tried.values()):
        return f"`{parts}`"
    return f"plan, {pulls} pulls, {pushes} {'push' if pushes == 1 else 'pushes'}{_one_each(tried)}"


def _one_each(tried: Mapping[str, float]) -> str:
    """Return a remark if the plan has one batch per layer: `layerwise` is tried unless it is the plan."""
    return ", one per layer" if "ibatch" in tried and "layerwise" not in tried else ""


def tried(row: Row) -> str:
    """Return the trials with their seconds of an iteration, and with their predictions where recorded."""
    predicted = row.extra.get("tried_predicted", {})

    def one(name: str, seconds: float) -> str:
        what = f"the plan{_one_each(row.extra['tried'])}:" if name == "ibatch" else f"`{name}`"
        return f"{what} {seconds:.3g} s" + (f" ({predicted[name]:.3g} s predicted)" if name in predicted else "")

    return "; ".join(one(name, seconds) for name, seconds in row.extra["tried"].items())


def chart(data: Data) -> Chart:
    """Return the chart of configurations on eight hosts."""
    shown = ("whole", "layerwise", "ibatch", "ring", "ddp")
    groups = [
        (f"{network}, pull {ratio:g} x forward", [bar(row) for row in rows])
        for network in ("googlenet", "inception_v3", "vgg19")
        for ratio in (1.2, 2)
        if (
            rows := [
                row for row in data.rows(f"ibatch-rivals-{network}") if row.algorithm in shown and _pull(row) == ratio
            ]
        )
    ]
    return Chart("Eight hosts, emulated computing: seconds of an iteration", "s", groups)


def _pull(row: Row) -> float:
    return round(row.extra["pull_seconds"] / row.extra["forward_seconds"], 2)


TABLES = {
    "ibatch": Table(KEPT, networks, ("ibatch-networks", "ibatch-delays", "ibatch-real")),
    "ibatch_nodes": Table(PAPER, scaling),
    "ibatch_split": Table(SPLIT, split),
    "ibatch_startups": Table(PAPER, startups),
    **{
        f"ibatch_{network}": Table(("", "bound, or in the same run", "`ibatch`", "verdict"), rivals, [network])
        for network in ("googlenet", "inception_v3", "vgg19")
    },
}
TABLES["ibatch_summary"] = summary(
    TABLES,
    [
        *(
            (f"{network}, ", f"ibatch_{network}", f"a pull 1.2 x forward: {what}", "")
            for network in ("googlenet", "inception_v3", "vgg19")
            for what in ("beside `whole`", "beside `ring`", "beside `ddp`")
        ),
        ("", "ibatch_startups", "vgg19, start-up + 20 ms: `paper`", ""),
        ("", "ibatch_startups", "vgg19, start-up + 70 ms: `paper`", ""),
        ("", "ibatch_nodes", "inception_v3, 16 nodes", ""),
    ],
)
