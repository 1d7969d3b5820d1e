"""Tables of BigDL models."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.charts import Chart
from benchmarks.ibatch.table import IBATCH_NODES, IBATCH_PAPER, beside_policy, kept
from benchmarks.tables import PEER, Data, Line, Table, bar, beside, seconds, summary, with_theory
from lab.results import Row

#: Results that are measured at one commit, by the end of their table's name.
RESULTS = {
    "": ("bigdl-local", "bigdl-star4", "bigdl-star8"),
    "_real": ("bigdl-real-star4", "bigdl-real-star8"),
    "_vgg": ("bigdl-vgg-star4", "bigdl-vgg-star8"),
    "_delay": ("bigdl-delay-star8",),
}


def rivals(data: Data, name: str) -> Iterator[Line]:
    """Yield `ibatch` beside BigDL's optimizer and beside the other policies."""
    for ours, other in data.pairs(name, {"ibatch": ("bigdl", "whole", "layerwise")}, "case", "world"):
        gain = f"{other.seconds / ours.seconds:.2f} x: {with_theory(ours)}"
        theirs = f"`{other.algorithm}`: {seconds(other)}"
        remark = too_short(ours) or too_short(other)
        verdict = f"refused: {remark}" if remark else beside_policy(ours, other)
        yield f"{_about(ours)}: {_way(ours)}", theirs, gain, verdict


def too_short(row: Row) -> str:
    """Return a remark if a sample is less than theory, which is a lower bound. Then chance is as large as the samples."""
    if row.theory_seconds is None or min(row.samples) >= row.theory_seconds:
        return ""
    return f"a sample of {min(row.samples):.3g} s is below theory, {row.theory_seconds:.3g} s"


def overlap(data: Data, name: str) -> Iterator[Line]:
    """Yield the shares of an iteration in which ranks compute, wait for data, or do both."""
    for row in data.rows(name):
        if parts := row.extra["overlap"]:
            times = (parts[part] for part in ("overlapped", "communication_only", "computation_only"))
            yield f"{_about(row)}: {_way(row)}", *(_share(part, row) for part in times), seconds(row)


def scaling(data: Data) -> Iterator[Line]:
    """Yield speed-ups over the fastest system on one executor. There is none if a sample on one executor is refused."""
    rows = data.rows("bigdl-scaling")
    for row in rows:
        alone = [one for one in rows if one.world == 1 and one.case == row.case]
        figure, ours = "-", seconds(row)
        if row.world > 1 and alone and not any(map(too_short, alone)):
            speedup = row.world * min(one.seconds for one in alone) / row.seconds
            ours = f"{speedup:.2f} x: {speedup / row.world:.2f} of linear; {ours}"
            # The paper's iBatch batches only pulls. `ibatch` batches pushes too, so it has no figure of the paper.
            if row.algorithm == "bigdl" and row.case in IBATCH_PAPER:
                paper = IBATCH_PAPER[row.case][1]
                figure = f"{paper} x on {IBATCH_NODES}: {paper / IBATCH_NODES:.2f} of linear"
        rival = data.row("bigdl-scaling", algorithm="bigdl", case=row.case, world=row.world)
        verdict = beside(row, rival) if rival and row.algorithm != "bigdl" else "-"
        if remark := too_short(row):
            verdict = f"refused: {remark}"
        yield f"{row.case}, {row.world} executor{'s' if row.world > 1 else ''}: {_way(row)}", figure, ours, verdict


def _way(row: Row) -> str:
    """Return the system with what it kept. Results without the field ``runs`` record only the last run's choice."""
    if row.algorithm != "ibatch":
        return f"`{row.algorithm}`"
    return f"`ibatch` ({'' if 'runs' in row.extra else 'last run: '}{kept(row)})"


def _about(row: Row) -> str:
    delay = row.extra.get("delay")
    start = f", start-up + {delay * 1e3:g} ms" if delay else ""
    return f"{row.case}, {'local-cluster' if row.topology == 'loopback' else row.topology}{start}"


def _share(part: float, row: Row) -> str:
    """Return a part's time and share. Differences of two runs below 0 are chance."""
    return f"{part * 1e3:.3g} ms, {part / row.seconds:.0%}" if part >= 0 else "-"


def chart(data: Data) -> Chart:
    """Return the time of each system beside that of BigDL's optimizer."""
    groups = []
    for name in (name for names in RESULTS.values() for name in names):
        for rival in data.rows(name, algorithm="bigdl"):
            rows = data.rows(name, case=rival.case, world=rival.world)
            groups.append((_about(rival), [bar(row, unit=rival.seconds) for row in rows]))
    return Chart("Time of an iteration, in units of DistriOptimizer's median", "x", groups)


TABLES = {
    **{f"bigdl{end}": Table(PEER, rivals, names) for end, names in RESULTS.items()},
    "bigdl_overlap": Table(
        ("", "overlapped", "communication only", "computation only", "iteration"), overlap, RESULTS[""]
    ),
    "bigdl_scaling": Table(("", "paper", "ours", "beside `bigdl`"), scaling),
}
TABLES["bigdl_summary"] = summary(TABLES, [("", f"bigdl{end}", "", "") for end in RESULTS])
