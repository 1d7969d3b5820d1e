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
            verdict = "reached" if reached else "**missed**"
            yield about, f"{len(found)}", f"{median:.1f} %", f"{worst:.1f} %", verdict


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


def _time(row: Row) -> str:
    return f"{row.seconds:.3g} s" if row.seconds >= 0.1 else f"{row.seconds * 1e3:.3g} ms"
