"""Tables about MLfabric: its scheduler, its settings in virtual time, and races on emulated hosts."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from benchmarks.charts import Chart
from benchmarks.fabric.simulation.settings import PAPER as SPEEDUPS
from benchmarks.tables import PAPER, Data, Line, Table, at_most, bar, beside, of_paper, seconds, summary
from lab.results import Row

#: Seconds that the scheduler may take for so many updates.
SCHEDULER_AIMS = {10: 0.001, 100: 0.01, 500: 0.1, 1000: 0.3}
#: The paper's distributed LDA, section 7.1, C1-N1: seconds until it converged.
LDA_PAPER = {"ring": 182, "fabric-30": 139, "fabric-60": 169, "async": 1080}
#: Settings of races on emulated hosts. The first three are predicted too.
RACED = ("C1-N1", "C2-N2", "C3-N3")
RACED_ALONE = ("C1-N2", "C1-N3", "C2-N1", "C2-N3", "C3-N1", "C3-N2")
#: The paper's Fig. 9: bytes of all updates over the replica's bytes, and the bound in updates.
_LESS_PAPER, _BOUND_PAPER = 5.6, 600


def fabric_scheduler(data: Data) -> Iterator[Line]:
    for row in data.rows("fabric-scheduler"):
        updates, paper = row.extra["updates"], row.extra["paper_seconds"]
        aim = SCHEDULER_AIMS.get(updates)
        verdicts = [f"{row.seconds / paper:.2f} of the paper's time"] if paper else []
        verdicts += [f"aim {at_most(row.seconds / aim, 1.0)} of {1e3 * aim:g} ms"] if aim else []
        yield (
            f"{updates:,} updates, {row.case}",
            f"{1e3 * paper:g} ms" if paper else "-",
            seconds(row),
            "; ".join(verdicts) or "-",
        )


def fabric_simulated(data: Data, computing: str) -> Iterator[Line]:
    """Yield the lines of an iteration that computes so many seconds."""
    rivals = {"fabric-30": ("ring", "ring-2", "async")}
    for ours, other in data.pairs(f"fabric-simulated-{computing}", rivals, "case"):
        paper = ours.extra["paper_speedup"] if other.algorithm == "ring-2" else None
        about, *found = _race(ours, other, paper)
        yield f"{about}, computing {computing} s", *found


def fabric_bounds(data: Data) -> Iterator[Line]:
    rows = data.rows("fabric-bounds")
    tightest = {row.case: row for row in reversed(rows)}
    for row in rows:
        found = f"{seconds(row)}; delay {row.extra['mean_delay']:.1f} in the mean, at most {row.extra['max_delay']}; "
        found += f"{row.extra['updates']:g} updates, {row.extra['dropped']:g} dropped"
        verdict = "-" if row is tightest[row.case] else beside(row, tightest[row.case])
        yield f"{row.case}, `{row.algorithm}`", "-", found, verdict


def fabric_lags(data: Data) -> Iterator[Line]:
    rows = data.rows("fabric-lags")
    shortest = {row.case: row for row in reversed(rows)}
    for row in rows:
        verdict = "-" if row is shortest[row.case] else beside(row, shortest[row.case])
        yield f"{row.case}, reported {row.extra['lag']:g} s later", "-", seconds(row), verdict


def fabric_replicated(data: Data) -> Iterator[Line]:
    rows = data.rows("fabric-replicated")
    compared = max((updates for row in rows if (updates := _bound(row)) <= _BOUND_PAPER), default=0.0)
    for row in rows:
        bound, each, updates = row.extra["divergence"], row.extra["replicated"], _bound(row)
        about = f"{row.case}, Div_max {bound:g}, the norms of {updates:.1f} updates"
        found = (
            f"{each / 1e6:.1f} MB for each update, {row.bytes / each:.2f} x less than a chain's {row.bytes / 1e6:.1f};"
        )
        found += f" checkpoints that are as near: {row.bytes / max(1.0, updates) / 1e6:.1f} MB; {seconds(row)}"
        paper, verdict = "-", "-"
        if updates == compared:
            paper = f"{_LESS_PAPER} x less with {_BOUND_PAPER} updates, on the server's link"
            verdict = f"{at_most(_LESS_PAPER * each / row.bytes, 1.0)} of the paper's bytes, on a host of its own"
        yield about, paper, found, verdict


def _bound(row: Row) -> float:
    """Return the bound on the replica's distance, in updates."""
    updates: float = row.extra["divergence"] / row.extra["norm"]
    return updates


def _raced(data: Data, setting: str) -> list[Row]:
    return [row for kind in ("server", "ring", "ddp") for row in data.rows(f"fabric-trained-{setting}-{kind}")]


def fabric_trained(data: Data, setting: str) -> Iterator[Line]:
    by_system = {row.algorithm: row for row in _raced(data, setting)}
    for rival in ("ring", "ddp", "async"):
        if rival in by_system and "fabric" in by_system:
            ours, other = by_system["fabric"], by_system[rival]
            about, paper, gained, verdict = _race(ours, other, SPEEDUPS[setting] if rival == "ring" else None)
            cores = f"cores busy: {ours.extra['busy_cores']:.1f}; {other.extra['busy_cores']:.1f}"
            yield about, paper, f"{gained}; {cores}", verdict


def fabric_predicted(data: Data) -> Iterator[Line]:
    for predicted in data.rows("fabric-predicted"):
        if "raced_seconds" not in predicted.extra:
            continue
        measured, commit = (predicted.extra[f"raced_{name}"] for name in ("seconds", "commit"))
        system, middle = predicted.algorithm.removesuffix("-30"), statistics.median(measured)
        about = f"{predicted.case}, `{system}`, {predicted.extra['updates']:g} updates"
        found = f"predicted {seconds(predicted)}; measured {middle:.3g} s ({min(measured):.3g} to {max(measured):.3g})"
        yield (
            about,
            "-",
            f"{found} at {commit[:7]}",
            at_most(abs(predicted.seconds / middle - 1), 0.15) + " of it is the difference",
        )


def fabric_lda(data: Data) -> Iterator[Line]:
    for ours, other in data.pairs("fabric-lda", ("ring", "async", "fabric-bsp"), "case"):
        if ours.algorithm.startswith("fabric-"):
            theirs, paper = (LDA_PAPER.get(row.algorithm) for row in (other, ours))
            yield _race(ours, other, theirs / paper if theirs and paper else None)


def _race(ours: Row, other: Row, paper: float | None) -> Line:
    """Return the line of two systems. ``paper``: the paper's speedup."""
    about, gain = f"{ours.case}, `{ours.algorithm}` beside `{other.algorithm}`", other.seconds / ours.seconds
    gained = f"{gain:.2f} x: {seconds(ours)}; {seconds(other)}; delay at most {ours.extra['max_delay']}"
    if paper is None:
        return about, "-", gained, beside(ours, other)
    return about, f"{paper:.3g} x", gained, f"{of_paper(gain, paper)}; {beside(ours, other)}"


def chart(data: Data) -> Chart:
    """Return the chart of races on emulated hosts."""
    groups = [(setting, [bar(row) for row in _raced(data, setting)]) for setting in sorted(RACED + RACED_ALONE)]
    return Chart("Six workers learn digits on emulated hosts: seconds to an accuracy of 0.92", "s", groups)


TABLES = {
    "fabric_scheduler": Table(PAPER, fabric_scheduler),
    "fabric_simulated": Table(PAPER, fabric_simulated, ("0.1", "0.4")),
    "fabric_bounds": Table(PAPER, fabric_bounds),
    "fabric_lags": Table(PAPER, fabric_lags),
    "fabric_replicated": Table(PAPER, fabric_replicated),
    "fabric_trained": Table(PAPER, fabric_trained, RACED),
    "fabric_trained_alone": Table(PAPER, fabric_trained, RACED_ALONE),
    "fabric_predicted": Table(PAPER, fabric_predicted),
    "fabric_lda": Table(PAPER, fabric_lda),
}
TABLES["fabric"] = summary(
    TABLES,
    [
        ("", "fabric_trained", "train C1-N1, `fabric` beside `ring`", ""),
        ("", "fabric_trained", "train C2-N2, `fabric` beside `ring`", ""),
        ("", "fabric_trained", "train C2-N2, `fabric` beside `async`", ""),
        ("", "fabric_trained", "train C3-N3, `fabric` beside `ring`", ""),
        ("", "fabric_trained", "train C3-N3, `fabric` beside `ddp`", ""),
        ("", "fabric_trained_alone", "train C3-N1, `fabric` beside `ring`", ""),
        ("virtual time, ", "fabric_simulated", "C2-N2, `fabric-30` beside `ring-2`, computing 0.1", ""),
        ("virtual time, ", "fabric_simulated", "C2-N2, `fabric-30` beside `async`, computing 0.1", ""),
        ("scheduler, ", "fabric_scheduler", "1,000 updates, schedule-drawn", ""),
        ("replica, ", "fabric_replicated", "C1-N1, Div_max 8", ""),
        ("", "fabric_lda", "lda C1-N1, `fabric-30` beside `ring`", ""),
        ("", "fabric_lda", "lda C1-N1, `fabric-30` beside `async`", ""),
    ],
)
