"""Tables of iterations without Spark."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.charts import Chart
from benchmarks.tables import PAPER, Data, Line, Table, at_most, bar, beside, seconds, summary
from lab.results import Row

#: The BML paper's figures 6 and 7, less time than its parameter server: the least and the most, %.
JOBS_PAPER = {"lenet5": (18.7, 56.4), "vgg19": (29.2, 52.1)}
#: Results of decoupled loops, and of planned buckets.
LOOPS, BATCHED = ("jobs-loops-star", "jobs-loops-bcube", "jobs-loops-bcube-2-2"), ("jobs-batched", "jobs-batched-small")


def of_range(saved: float, least: float, most: float) -> str:
    """Return a verdict on a range of the paper's.

    :param saved: the share of time that ours saves. ``least``, ``most``: of the paper's, %.
    """
    percent = round(100 * saved, 1)
    if percent < least:
        return "**less than the paper's least**"
    return "within the paper's range" if percent <= most else "more than the paper's most"


def _beside(bml: Row, other: Row, name: str, paper: tuple[float, float] | None) -> tuple[str, str, str]:
    """Return the cells of `bml` beside a rival. ``paper``: the least and the most time that BML saves there, %."""
    change = bml.seconds / other.seconds - 1
    ours = f"{100 * change:+.1f} %: {seconds(bml)}{name} {seconds(other)}"
    if paper is None:
        return "-", ours, beside(bml, other)
    return f"-{paper[0]} to -{paper[1]} %", ours, f"{of_range(-change, *paper)}; {beside(bml, other)}"


def jobs(data: Data, name: str) -> Iterator[Line]:
    network = name.rpartition("-")[2]
    for bml in data.rows(name, algorithm="bml"):
        rows, rate = bml.extra["rows"], bml.extra["teraflops"]
        about = f"{network}, {rows} rows of a rank, computing {bml.extra['computing']:.3g} s at {rate:g} teraflop/s"
        for rival in ("p2p-ps", "ddp", "gloo"):
            other = data.row(name, algorithm=rival, rows=rows, teraflops=rate)
            if other:
                cells = _beside(bml, other, f", `{rival}`", JOBS_PAPER[network] if rival == "p2p-ps" else None)
                yield f"{about}: `bml` beside `{rival}`", *cells


def job_loops(data: Data, name: str) -> Iterator[Line]:
    for ours in data.rows(name, loop="decoupled"):
        exchange = ours.extra["exchange"]
        about = f"`{ours.algorithm}`, {ours.topology}, exchange {exchange:g} x backward"
        yield about, f"the bound: {ours.theory_seconds:.3g} s", seconds(ours), at_most(ours.ratio or 0, 1.10)
        for rival in (ours.algorithm, "ddp"):
            other = data.row(name, algorithm=rival, loop="all-reduce", exchange=exchange)
            if other:
                theirs = f"`{rival}`, all-reduce: {seconds(other)}"
                yield about, theirs, seconds(ours), beside(ours, other)


def job_batches(data: Data, name: str) -> Iterator[Line]:
    """Compare the planner's buckets with the buckets by size from which the fit begins."""
    for ours in data.rows(name, loop="decoupled+ibatch"):
        exchange = ours.extra["exchange"]
        sized = data.row(name, algorithm=ours.algorithm, topology=ours.topology, loop="decoupled", exchange=exchange)
        about = f"`{ours.algorithm}`, {ours.topology}, exchange {exchange:g} x backward"
        is_planned = ours.extra["decisions"][-1]["chosen"].endswith("ibatch")
        measured = f"{ours.extra['buckets']} buckets, {'planned' if is_planned else 'by size'}: {seconds(ours)}"
        yield about, f"the bound: {ours.theory_seconds:.3g} s", measured, at_most(ours.ratio or 0, 1.10)
        if sized:
            verdict = beside(ours, sized) if is_planned else "stays with these"
            yield about, f"{sized.extra['buckets']} buckets by size: {seconds(sized)}", measured, verdict


def jobs_real(data: Data) -> Iterator[Line]:
    """Compare `bml` on two NICs with `ps` and `ring` on one, through Spark."""
    others = {row.algorithm: row for row in data.rows("jobs-real-star")}
    for bml in data.rows("jobs-real-bcube", algorithm="bml"):
        for rival, name, paper in (("whole", "ps", JOBS_PAPER["lenet5"]), ("ring", "ring", None)):
            if other := others.get(rival):
                about = f"{bml.case}, {bml.topology}: `bml` beside `{name}`, {other.topology}"
                yield about, *_beside(bml, other, ";", paper)


def chart(data: Data) -> Chart:
    """Return the chart of BML beside a parameter server and DDP."""
    groups = [
        (f"{name}, {rows} rows", [bar(row) for row in data.rows(f"jobs-{name}") if row.extra["rows"] == rows])
        for name in JOBS_PAPER
        for rows in sorted({row.extra["rows"] for row in data.rows(f"jobs-{name}")})
    ]
    return Chart("Nine hosts, emulated computing: seconds of an iteration", "s", groups)


TABLES = {
    "jobs": Table(PAPER, jobs, [f"jobs-{network}" for network in JOBS_PAPER]),
    "job_rates": Table(PAPER, jobs, [f"jobs-rates-{network}" for network in JOBS_PAPER]),
    "jobs_real": Table(PAPER, jobs_real),
    "job_loops": Table(("", "bound, or in the same run", "`decoupled`", "verdict"), job_loops, LOOPS),
    "job_batches": Table(("", "bound, or in the same run", "`ibatch`", "verdict"), job_batches, BATCHED),
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
