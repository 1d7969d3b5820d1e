"""Tables about compressed gradients, the parallel tensor operator, and rows that ranks keep."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import fmean, stdev

from benchmarks.breakdown import PARTS
from benchmarks.charts import Chart
from benchmarks.ibatch.table import kept
from benchmarks.tables import (
    COMPARED_FROM,
    PEER,
    Data,
    Line,
    Table,
    bar,
    beside,
    of_paper,
    seconds,
    summary,
    with_theory,
)
from lab.results import Row

#: The CommLib paper's table 3: throughput, % of linear scaling, on 16 hosts of 8 GPUs; "dense" stands beside a tree.
TABLE3_PAPER = {
    "resnet50": {"tree": 43.5, "torus2d": 91.4, "hitopk": 90.6},
    "resnet50-96": {"tree": 20.1, "torus2d": 56.7, "hitopk": 70.5},
    "vgg19": {"tree": 25.0, "torus2d": 66.4, "hitopk": 80.4},
    "bert_base": {"tree": 16.5, "torus2d": 61.6, "hitopk": 87.8},
}
#: Prefix of the results' names where MSTopK stands beside `exact`.
BY_MSTOPK = "mstopk-"
#: Networks whose throughput is measured at one commit, by the suffix of their tables' names.
NETWORKS = {
    "": ("resnet50", "resnet50-96", "vgg19"),
    "_transformer": ("bert_base",),
    "_mstopk": (f"{BY_MSTOPK}resnet50-96",),
}

#: Tasks that are trained at one commit, by the suffix of their tables' names.
TASKS = {
    "": ("compress-accuracy-resnet", "compress-accuracy-transformer"),
    "_lenet5": ("compress-accuracy-lenet5",),
    "_mstopk": (f"compress-{BY_MSTOPK}accuracy",),
}

#: Sums over hosts that are measured at one commit, by the suffix of their tables' names.
SUMS = {
    "": ("compress-0.01", "compress-0.001"),
    "_large": ("compress-large",),
    "_sweep": ("compress-0.1", "compress-0.03"),
    "_slow": ("compress-slow",),
}
#: Steps of the paper's figure 8, which has no bar for adding up: column -> name of the step in a row.
HITOPK_STEPS = {
    "reduce-scatter inside": "scatter_inside",
    "selecting": "select",
    "all-gather between": "gather_between",
    "all-gather inside": "gather_inside",
    "adding up": "add",
}
#: Tolerance for a measured time beside theory.
THEORY_MISSED = 0.15

#: The paper's table 4, throughput, % of linear scaling, and its table 5, seconds to 93 % accuracy.
RECORD_PAPER = {
    "16 x 16": "96 x 96: 65 %",
    "24 x 24": "128 x 128: 70 %",
    "32 x 32": "224 x 224: 83 %",
    "training": "151 s",
}

#: The paper's parallel tensor operator: ms of the norms of LARS, computed by all ranks, and in parts.
PTO_PAPER = (11, 7)
#: Operators beside torch.topk, by results. On a GPU `exact` is torch.topk.
SELECTING = {"compress-operators": ("mstopk", "exact", "dgc"), "compress-gpu": ("mstopk", "dgc")}
#: Percentage points of accuracy that compression may cost.
ACCURACY_LOST = 0.5
#: Standard errors of a mean difference within which it may be chance.
CHANCE = 2


def selection(data: Data, name: str) -> Iterator[Line]:
    for ours, topk in data.pairs(name, dict.fromkeys(SELECTING[name], ["topk"]), "case", "bytes"):
        about = f"`{ours.algorithm}`, {ours.case}, {ours.extra['count']:,} elements"
        one_pass = f"{seconds(ours)}, {ours.ratio:.1f} x one pass"
        yield about, f"torch.topk: {seconds(topk)}", one_pass, beside(ours, topk)


def sparse_sums(data: Data, name: str) -> Iterator[Line]:
    for ours in data.rows(name, algorithm="hitopk"):
        for other in data.rows(name, bytes=ours.bytes):
            if other.algorithm != "hitopk":
                theirs = f"`{other.algorithm}`: {with_theory(other)}"
                yield _sum(ours), theirs, with_theory(ours), beside(ours, other)


def sum_theory(data: Data, name: str) -> Iterator[Line]:
    for row in data.rows(name):
        if row.theory_seconds is not None:
            more = row.seconds / row.theory_seconds - 1
            word = "within" if abs(more) <= THEORY_MISSED else "**not within**"
            verdict = f"{word} {100 * THEORY_MISSED:g} %: {100 * more:+.0f} %"
            yield f"`{row.algorithm}`, {_sum(row)}", f"{row.theory_seconds:.3g} s", seconds(row), verdict


def sum_steps(data: Data, name: str) -> Iterator[Line]:
    for row in data.rows(name, algorithm="hitopk"):
        steps = (f"{row.extra[f'{step}_seconds']:.3f} s" for step in HITOPK_STEPS.values())
        yield _sum(row), *steps, seconds(row)


def _sum(row: Row) -> str:
    return f"{row.extra['count']:,} elements, density {row.extra['density']:g}"


def accuracy(data: Data, name: str) -> Iterator[Line]:
    for ours, dense in data.pairs(name, ["dense"], "case"):
        yield f"`{ours.algorithm}`, {ours.case}", _percents(dense), _percents(ours), _lost(ours, dense)


def _percents(row: Row) -> str:
    each = ", ".join(f"{100 * accuracy:.1f}" for accuracy in row.extra["accuracies"])
    return f"{100 * fmean(row.extra['accuracies']):.1f} % ({each})"


def _lost(ours: Row, dense: Row) -> str:
    """Return a verdict on points of accuracy, the mean difference of fits with the same seed."""
    pairs = zip(dense.extra["accuracies"], ours.extra["accuracies"], strict=True)
    lost = [100 * (theirs - mine) for theirs, mine in pairs]
    mean, way = fmean(lost), "less" if fmean(lost) > 0 else "more"
    if len(lost) < COMPARED_FROM:
        return f"too few seeds: {abs(mean):.1f} points {way}"
    chance = CHANCE * stdev(lost) / math.sqrt(len(lost))
    points = f"{abs(mean):.1f} ± {chance:.1f} points {way}"
    if mean + chance <= ACCURACY_LOST:
        return f"within {ACCURACY_LOST:g} points: {points}"
    return points if mean - chance > ACCURACY_LOST else f"not decided: {points}"


def record(data: Data) -> Iterator[Line]:
    for ours in data.rows("compress-record"):
        dense = data.row("compress-record", algorithm="dense", case=ours.case)
        verdict = beside(ours, dense) if dense and dense.algorithm != ours.algorithm else ""
        accuracies = f"{_percents(ours)} after it"
        paper = RECORD_PAPER.get(ours.case, "-") if ours.algorithm == "record" else "-"
        if ours.case == "training":
            reached = f"{ours.extra['reached']} of {len(ours.samples)} reach {100 * ours.extra['target']:g} %"
            yield f"`{ours.algorithm}`", paper, f"{seconds(ours)}, {reached}; {accuracies}", verdict
        else:
            about = f"`{ours.algorithm}`, {ours.case}, {ours.extra['epochs']} epochs by `{ours.extra['strategy']}`"
            yield about, paper, f"{ours.extra['rows'] / ours.seconds:,.0f} rows/s; {accuracies}", verdict


def schedule_auto(data: Data, name: str) -> Iterator[Line]:
    for ours in data.rows(name, algorithm="auto"):
        for other in data.rows(name, case=ours.case, rate_mbit=ours.rate_mbit):
            if other.algorithm != "auto":
                chosen = " then ".join(trial["steps"] for trial in ours.extra["tried"][0])
                about = f"{ours.case}, {ours.rate_mbit:g} Mbit/s, {chosen} steps chosen"
                yield about, f"`{other.algorithm}`: {seconds(other)}", seconds(ours), beside(ours, other)


def sparse_pushes(data: Data) -> Iterator[Line]:
    collective = ("ring", "ddp")
    rivals = {"whole-sparse": ("whole", *collective), "ibatch-sparse": ("ibatch", *collective), "ibatch": collective}
    for ours, other in data.pairs("compress-ps", rivals, "case", "rate_mbit"):
        planned = f" ({kept(ours)})" if ours.algorithm.startswith("ibatch") else ""
        about = f"`{ours.algorithm}`{planned}, {ours.case}, {ours.rate_mbit:.0f} Mbit/s"
        about += f", {ours.bytes / other.bytes:.2f} of the bytes"
        yield about, f"`{other.algorithm}`: {seconds(other)}", seconds(ours), beside(ours, other)


def throughput(data: Data, name: str) -> Iterator[Line]:
    network = name.removeprefix(BY_MSTOPK)
    for ours in data.rows(f"compress-{name}"):
        paper = TABLE3_PAPER[network].get(ours.algorithm.partition("+")[0])
        share = 100 * ours.extra["computing"] / ours.seconds
        dense = data.row(f"compress-{name}", algorithm="tree")
        verdicts = []
        if paper and ours.algorithm == "tree":
            verdicts = [f"{share / paper:.2f} of the paper's"]
        elif paper and dense:
            gain, wanted = dense.seconds / ours.seconds, paper / TABLE3_PAPER[network]["tree"]
            figure = "the paper's, by MSTopK," if "+exact" in ours.algorithm else "the paper's"
            verdicts = [of_paper(share, paper, figure), of_paper(gain, wanted, "its gain over `tree`")]
        verdicts += [beside(ours, dense)] if dense and dense.algorithm != ours.algorithm else []
        found = f"{share:.1f} %: {seconds(ours)}"
        yield f"`{ours.algorithm}`, {network}", f"{paper} %" if paper else "-", found, "; ".join(verdicts)


def breakdown(data: Data, name: str) -> Iterator[Line]:
    for row in data.rows(f"compress-{name}"):
        parts = row.extra["parts"]
        if parts:
            about = f"`{row.algorithm}`, {name.removeprefix(BY_MSTOPK)}"
            yield about, *(f"{parts[part]:.3f} s" for part in PARTS), seconds(row)


def pto(data: Data, name: str) -> Iterator[Line]:
    for ours, local in data.pairs(name, ["local"], "case"):
        about = f"{ours.case}, `{ours.algorithm}`, {ours.world} ranks"
        paper, verdict = "-", beside(ours, local)
        if ours.case == "norms":
            paper = f"{PTO_PAPER[0]} ms to {PTO_PAPER[1]} ms, 128 GPUs"
            judged = of_paper(local.seconds / ours.seconds, PTO_PAPER[0] / PTO_PAPER[1], "the paper's gain")
            verdict = f"{judged}; {verdict}"
        yield about, paper, f"{seconds(local)} to {seconds(ours)}", verdict


def cache(data: Data) -> Iterator[Line]:
    for ours, other in data.pairs("cache", ["memory, second fit"]):
        yield ours.algorithm, _fit(other), _fit(ours), beside(ours, other)


def _fit(row: Row) -> str:
    epochs = ", ".join(f"{each:.2f}" for each in row.extra["epochs"])
    reading, memory = row.extra["reading"], row.extra["memory"] / 1e6
    return f"{seconds(row)}; reading {reading:.2f} s, epochs {epochs} s, {memory:.0f} MB"


BESIDE_AUTO = ("", "in the same run", "`auto`", "verdict")
#: Kinds of tables with a table per commit: the name without its suffix, columns, lines, and results by suffix.
SEVERAL = (
    ("sparse_sums", ("", "in the same run", "`hitopk`", "verdict"), sparse_sums, SUMS),
    ("sum_theory", ("", "theory", "measured", "verdict"), sum_theory, SUMS),
    ("sum_steps", ("", *HITOPK_STEPS, "whole"), sum_steps, SUMS),
    ("accuracy", ("", "`dense`, in the same run", "ours", "verdict"), accuracy, TASKS),
    ("throughput", ("", "paper", "ours", "verdict, and beside `tree`"), throughput, NETWORKS),
    ("breakdown", ("", *PARTS, "iteration"), breakdown, NETWORKS),
)


def chart(data: Data) -> Chart:
    """Return the chart of sums over hosts, by density."""
    shown = ("hitopk", "naive-ag", "torus2d")
    groups = [
        (f"density {density}", [bar(row) for row in data.rows(f"compress-{density}") if row.algorithm in shown])
        for density in ("0.001", "0.01", "0.03", "0.1")
    ]
    return Chart("A sum of 25 million gradients on four hosts of two ranks, links of 200 Mbit/s", "s", groups)


TABLES = {
    "selection": Table(PEER, selection, ["compress-operators"]),
    "selection_gpu": Table(PEER, selection, ["compress-gpu"]),
    "sparse_pushes": Table(PEER, sparse_pushes),
    "pto": Table(("", "paper", "computed by all ranks, to dealt out", "verdict"), pto, ("pto-2", "pto-8")),
    "cache": Table(("", "`memory`, second fit, in the same run", "ours", "verdict"), cache),
    "record": Table(("", "paper", "ours", "beside `dense`"), record),
    "schedule_auto": Table(BESIDE_AUTO, schedule_auto, ["compress-auto"]),
    "schedule_auto_again": Table(BESIDE_AUTO, schedule_auto, ["compress-auto-rates"]),
    **{
        name + end: Table(columns, lines, names)
        for name, columns, lines, measured in SEVERAL
        for end, names in measured.items()
    },
}
TABLES["compression"] = summary(
    TABLES,
    [
        ("selecting, CPU: ", "selection", "`exact`, gaussian, 4,194,304", ""),
        ("selecting, GPU: ", "selection_gpu", "`mstopk`, gaussian, 4,194,304", ""),
        ("`hitopk`, ", "sparse_sums", "25,000,000 elements, density 0.01", "`naive-ag`"),
        ("`hitopk`, ", "sparse_sums", "25,000,000 elements, density 0.01", "`torus2d`"),
        ("`hitopk`, ", "sparse_sums_large", "110,000,000", "`torus2d`"),
        ("accuracy, ", "accuracy_lenet5", "`hitopk-momentum`", ""),
        ("accuracy, ", "accuracy", "`hitopk-momentum`, resnet", ""),
        ("accuracy, ", "accuracy", "`hitopk-momentum`, transformer", ""),
        ("throughput, ", "throughput", "`hitopk+exact:0.001`, vgg19", ""),
        ("throughput, ", "throughput_transformer", "`hitopk+exact:0.001`, bert_base", ""),
        ("`ps`, ", "sparse_pushes", "`ibatch-sparse`", "`ring`"),
        ("LARS, ", "pto", "norms, `pto-gang`, 2 ranks", ""),
    ],
)
