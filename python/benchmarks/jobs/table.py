"""Tables of iterations without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks.charts import Chart
from benchmarks.tables import PAPER, Data, Line, Table, at_most, bar, beside, seconds, summary

#: The BML paper's figures 6 and 7, less time than its parameter server: the least and the most, %.
JOBS_PAPER = {"lenet5": (18.7, 56.4), "vgg19": (29.2, 52.1)}


def of_range(saved: float, least: float, most: float) -> str:
    """Return a verdict on a range of the paper's.

    :param saved: the share of time that ours saves. ``least``, ``most``: of the paper's, %.
    """
    percent = round(100 * saved, 1)
    if percent < least:
        return "**less than the paper's least**"
    return "within the paper's range" if percent <= most else "more than the paper's most"


def jobs(data: Data, results: str) -> Iterator[Line]:
    for name, (least, most) in JOBS_PAPER.items():
        for bml in data.rows(f"{results}-{name}", algorithm="bml"):
            rows, rate = bml.extra["rows"], bml.extra["teraflops"]
            about = f"{name}, {rows} rows of a rank, computing {bml.extra['computing']:.3g} s at {rate:g} teraflop/s"
            for rival, paper in (("p2p-ps", f"-{least} to -{most} %"), ("ddp", "-"), ("gloo", "-")):
                other = data.row(f"{results}-{name}", algorithm=rival, rows=rows, teraflops=rate)
                if other:
                    change = f"{(bml.seconds / other.seconds - 1) * 100:+.1f} %"
                    ours = f"{change}: {seconds(bml)}, `{rival}` {seconds(other)}"
                    judged = f"{of_range(1 - bml.seconds / other.seconds, least, most)}; " if paper != "-" else ""
                    yield f"{about}: `bml` beside `{rival}`", paper, ours, f"{judged}{beside(bml, other)}"


def job_loops(data: Data) -> Iterator[Line]:
    for name in ("jobs-loops-star", "jobs-loops-bcube", "jobs-loops-bcube-2-2"):
        for ours in data.rows(name, loop="decoupled"):
            exchange = ours.extra["exchange"]
            about = f"`{ours.algorithm}`, {ours.topology}, exchange {exchange:g} x backward"
            yield about, f"the bound: {ours.theory_seconds:.3g} s", seconds(ours), at_most(ours.ratio or 0, 1.10)
            for rival in (ours.algorithm, "ddp"):
                other = data.row(name, algorithm=rival, loop="all-reduce", exchange=exchange)
                if other:
                    theirs = f"`{rival}`, all-reduce: {seconds(other)}"
                    yield about, theirs, seconds(ours), beside(ours, other)


def job_batches(data: Data) -> Iterator[Line]:
    """Compare the planner's buckets with the buckets by size from which the fit begins."""
    for name in ("jobs-batched", "jobs-batched-small"):
        for ours in data.rows(name, loop="decoupled+ibatch"):
            exchange = ours.extra["exchange"]
            sized = data.row(
                name, algorithm=ours.algorithm, topology=ours.topology, loop="decoupled", exchange=exchange
            )
            about = f"`{ours.algorithm}`, {ours.topology}, exchange {exchange:g} x backward"
            is_planned = ours.extra["decisions"][-1]["chosen"].endswith("ibatch")
            told = f"{ours.extra['buckets']} buckets, {'planned' if is_planned else 'by size'}: {seconds(ours)}"
            yield about, f"the bound: {ours.theory_seconds:.3g} s", told, at_most(ours.ratio or 0, 1.10)
            if sized:
                verdict = beside(ours, sized) if is_planned else "stays with these"
                yield about, f"{sized.extra['buckets']} buckets by size: {seconds(sized)}", told, verdict


def jobs_real(data: Data) -> Iterator[Line]:
    """Compare `bml` on two NICs with `ps` and `ring` on one, through Spark."""
    least, most = JOBS_PAPER["lenet5"]
    others = {row.algorithm: row for row in data.rows("jobs-real-star")}
    for bml in data.rows("jobs-real-bcube", algorithm="bml"):
        for rival, paper in (("whole", f"-{least} to -{most} %"), ("ring", "-")):
            other = others.get(rival)
            if other:
                name = "ps" if rival == "whole" else rival
                about = f"{bml.case}, {bml.topology}: `bml` beside `{name}`, {other.topology}"
                change = f"{(bml.seconds / other.seconds - 1) * 100:+.1f} %"
                judged = f"{of_range(1 - bml.seconds / other.seconds, least, most)}; " if paper != "-" else ""
                yield about, paper, f"{change}: {seconds(bml)}; {seconds(other)}", f"{judged}{beside(bml, other)}"


def chart(data: Data) -> Chart:
    """Return the chart of BML beside a parameter server and DDP."""
    groups = [
        (f"{name}, {rows} rows", [bar(row) for row in data.rows(f"jobs-{name}") if row.extra["rows"] == rows])
        for name in JOBS_PAPER
        for rows in sorted({row.extra["rows"] for row in data.rows(f"jobs-{name}")})
    ]
    return Chart("Nine hosts, emulated computing: seconds of an iteration", "s", groups)


TABLES = {
    "jobs": Table(PAPER, partial(jobs, results="jobs")),
    "job_rates": Table(PAPER, partial(jobs, results="jobs-rates")),
    "jobs_real": Table(PAPER, jobs_real),
    "job_loops": Table(("", "bound, or in the same run", "`decoupled`", "verdict"), job_loops),
    "job_batches": Table(("", "bound, or in the same run", "`ibatch`", "verdict"), job_batches),
}
TABLES["jobs_summary"] = summary(
    TABLES,
    [
        ("", "jobs", "lenet5, 128 rows", ""),
        ("", "jobs", "lenet5, 1024 rows", "-18.7"),
        ("", "jobs", "vgg19, 4 rows", ""),
        ("", "jobs", "vgg19, 64 rows", "-29.2"),
        ("", "jobs_real", "real:lenet5", ""),
        ("decoupled, ", "job_loops", "`ring`, star:5, exchange 1.5", "`"),
        ("planned buckets, ", "job_batches", "`lp`, star:5, exchange 1.5 x backward", "2 buckets"),
        ("planned buckets, ", "job_batches", "`lp`, star:5, exchange 1.5 x backward", "12 buckets"),
    ],
)
