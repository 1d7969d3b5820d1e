"""Tables about the simulator: cells that the lab has measured, and the papers' figures at sizes that it cannot hold."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from tables.compression import TABLE3_PAPER
from tables.data import Data

from sparkdl_comm.lab.results import Row

Line = tuple[str, ...]
MIB = 1 << 20
#: Errors of simulated seconds that were aimed at, %: the median and the worst.
AIMS = (5.0, 15.0)
#: Results of strategy auto, a file for each topology and network, and its regrets that were aimed at, %: the median and the
#: worst; and in how many steps after a change of rates it should have decided again.
AUTO = tuple(
    f"auto-{topology}-{network}"
    for topology in ("star4", "star8", "hosts2x2", "bcube22")
    for network in ("googlenet", "inception_v3", "vgg19")
)
AUTO_AIMS = (3.0, 10.0)
AUTO_STEPS = 20
SUITES = {
    "collectives": "collectives",
    "exchanges": "sums of compressed training",
    "steps": "steps of training",
    "server": "parameter server",
}


def scale_errors(data: Data) -> Iterator[Line]:
    """Of each suite and of all cells, those that parameters were fitted to left out."""
    every = [row for row in data.rows("scale-validation") if not row.extra["fitted"]]
    for case, about in {**SUITES, "": "all"}.items():
        found = [abs(row.extra["error"]) * 100 for row in every if case in ("", row.case)]
        if found:
            median, worst = statistics.median(found), max(found)
            reached = median <= AIMS[0] and worst <= AIMS[1]
            yield about, f"{len(found)}", f"{median:.1f} %", f"{worst:.1f} %", _verdict(reached)


def scale_cells(data: Data) -> Iterator[Line]:
    for row in data.rows("scale-validation"):
        what = "" if row.extra["what"] in ("allreduce", "exchange") else f" {row.extra['what']}"
        size = f", {row.bytes / MIB:.3g} MiB"
        more = f", {row.extra['rows']} rows" if row.extra["rows"] else ""
        more += f", start-up + {row.extra['delay'] * 1e3:g} ms" if row.extra["delay"] else ""
        where = f"{row.topology}, {row.rate_mbit:.4g} Mbit/s{size}{more}"
        about = f"`{row.algorithm}`{what}, {where} ({row.extra['source']})"
        fitted = "fitted" if row.extra["fitted"] else f"{row.extra['error'] * 100:+.1f} %"
        yield about, f"{row.extra['measured']:.4g} s", f"{row.seconds:.4g} s", fitted


def scale_fig5(data: Data) -> Iterator[Line]:
    for row in data.rows("scale-figures", case="fig5"):
        about = f"`{row.algorithm}`, {row.topology}, {row.bytes / MIB:.3g} MiB"
        links, formula = row.extra["links"], row.extra["formula"]
        yield about, f"{formula:.3f}", f"{links:.3f}: {_time(row)}", f"{links / formula:.2f} of the formula"


def scale_fig4(data: Data) -> Iterator[Line]:
    for operation in ("broadcast", "reduce", "all_reduce"):
        pipelines = data.rows("scale-figures", case=operation, algorithm="lp")
        for world in sorted({row.world for row in pipelines}):
            found = {row.algorithm: row for row in data.rows("scale-figures", case=operation, world=world)}
            others = ", ".join(f"`{name}` {_time(found[name])}" for name in ("mst", "be"))
            ours = found["lp"]
            times = " and ".join(f"{ours.seconds / found[name].seconds:.2f}" for name in ("mst", "be"))
            growth = f"{ours.seconds / pipelines[0].seconds:.2f} of its time on {pipelines[0].world}"
            yield (
                f"{operation.replace('_', '-')}, {world} ranks",
                others,
                f"{_time(ours)}, {growth}",
                f"{times} of theirs",
            )


def scale_commlib(data: Data) -> Iterator[Line]:
    for row in data.rows("scale-figures", case="commlib"):
        network = row.extra["network"]
        paper = f"{TABLE3_PAPER[network][row.algorithm]:.1f} %"
        ours = row.extra["efficiency"]
        gap = f"{ours - TABLE3_PAPER[network][row.algorithm]:+.1f} points"
        yield f"{network}, `{row.algorithm}`, {row.topology}", paper, f"{ours:.1f} %", gap


def scale_auto(data: Data) -> Iterator[Line]:
    for row in _auto(data):
        about, regret = f"{row.case}, {row.topology}, {row.rate_mbit:.4g} Mbit/s", f"{row.extra['regret'] * 100:+.1f} %"
        chosen = " then ".join(f"`{one['chosen']}`" for one in row.extra["decisions"] if one["chosen"])
        if "changed" in row.extra:
            regret += f", decided again after {row.extra['switched']} steps"
            best = f"{row.theory_seconds:.4g} s"
        else:
            ways = row.extra["ways"]
            best = f"`{min(ways, key=ways.__getitem__)}` {row.theory_seconds:.4g} s"
        yield about, best, f"{chosen} {row.seconds:.4g} s", regret


def scale_auto_regrets(data: Data) -> Iterator[Line]:
    found = _auto(data)
    kept = [row.extra["regret"] * 100 for row in found if "changed" not in row.extra]
    if kept:
        median, worst = statistics.median(kept), max(kept)
        reached = median <= AUTO_AIMS[0] and worst <= AUTO_AIMS[1]
        yield "links that stay", f"{len(kept)}", f"{median:.1f} %", f"{worst:.1f} %", _verdict(reached)
    changed = [row for row in found if "changed" in row.extra]
    if changed:
        regrets = [row.extra["regret"] * 100 for row in changed]
        switched = [row.extra["switched"] for row in changed]
        reached = all(steps is not None and steps <= AUTO_STEPS for steps in switched)
        verdict = f"{_verdict(reached)}: {', '.join(map(str, switched))} steps"
        median, worst = statistics.median(regrets), max(regrets)
        yield "links that change", f"{len(changed)}", f"{median:.1f} %", f"{worst:.1f} %", verdict


def _auto(data: Data) -> list[Row]:
    return [row for name in AUTO for row in data.rows(name, algorithm="auto")]


def _verdict(reached: bool) -> str:
    return "reached" if reached else "**missed**"


def _time(row: Row) -> str:
    return f"{row.seconds:.3g} s" if row.seconds >= 0.1 else f"{row.seconds * 1e3:.3g} ms"
