"""Tables about the simulator: cells that the lab has measured, and the papers' figures at sizes that it cannot hold."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from benchmarks.charts import Bar, Chart
from benchmarks.compression.table import TABLE3_PAPER
from benchmarks.ibatch.table import IBATCH_NODES, IBATCH_PAPER, IBATCH_PAPER_72, SPLIT, kept
from benchmarks.scale.prediction import ordered
from benchmarks.tables import MIB, Data, Line, Table, seconds
from lab.results import Row

#: The parts of an iteration in the iBatch paper's figure 7.
PARTS = ("overlapping", "communication", "computation")
OF_AUTO = ("", "best that stays", "`auto`, all its steps", "regret")
GREEDY = ("greedy1", "greedy2", "ibatch")
#: Aims for errors of simulated seconds, %: the median and the worst.
AIMS = (5.0, 15.0)
#: Aims for predictions from a timeline: the median error, %, and the share of pairs of strategies in the right order.
PREDICT_AIM, ORDER_AIM = 10.0, 0.9
#: Results of strategy auto, a file for each topology and network.
AUTO = tuple(
    f"auto-{topology}-{network}"
    for topology in ("star4", "star8", "hosts2x2", "bcube22")
    for network in ("googlenet", "inception_v3", "vgg19")
)
#: Results of a model whose computing takes no longer than the parameter server's path through the JVMs.
AUTO_SMALL = "auto-small-vgg19"
#: Aims for regrets, %: the median and the worst; and for the steps after a change of rates until a new decision.
AUTO_AIMS, AUTO_STEPS = (3.0, 10.0), 20
#: Sentences about the origins of rows: of the summary, and of the regrets.
ABOUT_SCALE = (
    "Each row but the first of `auto` is of one commit and one machine. [The appendix](appendix.md) names both."
)
ABOUT_REGRETS = (
    "Two cells are of a later commit and another machine. The next two tables name all commits and machines."
)
SUITES = {
    "collectives": "collectives",
    "exchanges": "sums of compressed training",
    "steps": "steps of training",
    "loops": "steps of training, decoupled loops and others",
    "server": "parameter server",
    "fabric": "asynchronous races",
}


def _errors_by_suite(data: Data) -> Iterator[tuple[str, str, list[float]]]:
    """Yield each suite, its label and its cells' errors, %, without the fitted cells; then the same for all suites."""
    every = [row for row in data.rows("scale-validation") if not row.extra["fitted"]]
    for case, about in {**SUITES, "": "all"}.items():
        if found := [abs(row.extra["error"]) * 100 for row in every if case in ("", row.case)]:
            yield case, about, found


def scale_errors(data: Data) -> Iterator[Line]:
    for _, about, found in _errors_by_suite(data):
        median, worst = statistics.median(found), max(found)
        yield about, f"{len(found)}", f"{median:.1f} %", f"{worst:.1f} %", _verdict(found, AIMS)


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
        spent = f"{row.extra['spent']:.1f} s, {row.extra['simulated']} of {row.world:,} ranks run"
        yield about, f"{formula:.3f}", f"{links:.3f}: {_time(row)}", f"{links / formula:.2f} of the formula", spent


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


def scale_blind(data: Data) -> Iterator[Line]:
    rows = data.rows("scale-blind")
    for row in rows:
        what = "" if row.case == "allreduce" else f" {row.case}"
        about = f"`{row.algorithm}`{what}, {row.topology}, {row.rate_mbit:g} Mbit/s, {row.bytes / MIB:g} MiB"
        yield about, f"{row.extra['simulated']:.4g} s", seconds(row), f"{row.extra['error'] * 100:+.1f} %"
    if rows:
        yield f"all {len(rows)}", "-", "-", _errors(rows, AIMS)


def scale_predict(data: Data) -> Iterator[Line]:
    every: list[Row] = []
    for network in ("googlenet", "vgg19"):
        rows = data.rows(f"scale-predict-{network}")
        every += rows
        for row in rows:
            about = f"{row.case}, `{row.algorithm}`, {row.topology}, {row.rate_mbit:.4g} Mbit/s"
            error = "its timeline" if row.extra["source"] else f"{row.extra['error'] * 100:+.1f} %"
            yield about, f"{row.extra['predicted']:.3g} s", seconds(row), error
    if every:
        predicted = [row for row in every if not row.extra["source"]]
        yield f"all {len(predicted)}", "-", "-", _errors(predicted, (PREDICT_AIM, math.inf))
        right, pairs = ordered(every)
        verdict = "reached" if right >= ORDER_AIM * pairs else "**missed**"
        yield "pairs of strategies", "-", f"{right} of {pairs} in the right order", f"{verdict}: {right / pairs:.0%}"


def _errors(rows: Sequence[Row], aims: tuple[float, float]) -> str:
    found = [abs(100 * row.extra["error"]) for row in rows]
    return f"{_verdict(found, aims)}: median {statistics.median(found):.1f} %, worst {max(found):.1f} %"


def _verdict(found: Sequence[float], aims: tuple[float, float]) -> str:
    """Return the verdict on aims for the median and the worst."""
    return "reached" if statistics.median(found) <= aims[0] and max(found) <= aims[1] else "**missed**"


def scale_size(data: Data) -> Iterator[Line]:
    worlds = sorted({row.world for row in data.rows("scale-size")})
    cases = (
        ("rendezvous", "driver"),
        ("join", "rank 0"),
        ("join", "rank 1"),
        ("gather", "rank 0"),
        ("gather", "rank 1"),
    )
    for world in worlds:
        found = {(row.case, row.algorithm): row for row in data.rows("scale-size", world=world)}
        yield f"{world:,} ranks", *(_used(found[case]) for case in cases)
    if len(worlds) > 1:
        least, most = (
            {(row.case, row.algorithm): row.bytes for row in data.rows("scale-size", world=world)}
            for world in (worlds[-2], worlds[-1])
        )
        powers = (math.log(most[case] / least[case]) / math.log(worlds[-1] / worlds[-2]) for case in cases)
        yield f"bytes, {worlds[-2]:,} to {worlds[-1]:,} ranks", *(f"as N^{power:.1f}" for power in powers)


def _used(row: Row) -> str:
    used = f"{_time(row)} CPU, {row.bytes / 1e6:.3g} MB, {row.extra['messages']:.4g} messages"
    if row.case == "gather":
        return used
    return f"{used}, {row.extra['memory'] / 1e6:.3g} MB memory, {row.extra['files']} files"


def scale_ibatch(data: Data) -> Iterator[Line]:
    rows = data.rows("scale-figures", case="ibatch")
    for network, paper in IBATCH_PAPER.items():
        for nodes in sorted({row.extra["nodes"] for row in rows if row.extra["network"] == network}):
            found = {
                row.algorithm: row.extra["speedup"]
                for row in rows
                if (row.extra["network"], row.extra["nodes"]) == (network, nodes)
            }
            quoted = {IBATCH_NODES: paper, 72: IBATCH_PAPER_72 if network == "vgg19_22k" else ()}.get(nodes, ())
            ours = [found[way] for way in ("paper", "whole", "layerwise")]
            ratios = "; ".join(f"{mine / theirs:.2f}" for mine, theirs in zip(ours, quoted, strict=False))
            yield (
                f"{network}, {nodes} nodes",
                "; ".join(map(str, quoted)) or "-",
                "; ".join(f"{one:.1f}" for one in ours) + f"; both ways {found['both ways']:.1f}",
                f"{ratios} of the paper's" if quoted else "-",
            )


def scale_ibatch_split(data: Data) -> Iterator[Line]:
    """Yield shares of the iteration by `whole`."""
    for network in ("inception_v3", "vgg19"):
        rows = data.rows("scale-figures", case="ibatch", network=network, nodes=72)
        whole = next((row.seconds for row in rows if row.algorithm == "whole"), 0.0)
        for row in rows:
            if "split" in row.extra:
                shares = (f"{row.extra['split'][part] / whole:.3f}" for part in PARTS)
                yield f"{network}, `{row.algorithm}`", *shares, f"{row.seconds / whole:.3f}"


def scale_greedy(data: Data) -> Iterator[Line]:
    for row in data.rows("scale-figures", case="greedy", algorithm="ibatch"):
        network = row.extra["network"]
        found = (data.row("scale-figures", case="greedy", algorithm=way, network=network) for way in GREEDY)
        yield network, *(_over_optimum(each) for each in found if each)


def _over_optimum(row: Row) -> str:
    over = row.extra["over_optimum"]
    return f"{statistics.median(over):.3f} ({min(over):.3f} to {max(over):.3f})"


def scale_auto(data: Data, name: str) -> Iterator[Line]:
    for row in data.rows(name, algorithm="auto"):
        about, regret = f"{row.case}, {row.topology}, {row.rate_mbit:.4g} Mbit/s", f"{row.extra['regret'] * 100:+.1f} %"
        chosen = " then ".join(f"`{one['chosen']}`" for one in row.extra["decisions"] if one["chosen"])
        if "changed" in row.extra:
            regret += f", decided again after {row.extra['switched']} steps"
            best = f"{row.theory_seconds:.4g} s"
        else:
            ways = row.extra["ways"]
            way = min(ways, key=ways.__getitem__)
            stays = data.row(name, algorithm=way, case=row.case, rate_mbit=row.rate_mbit)
            best = f"`{way}`{_batches(stays)} {row.theory_seconds:.4g} s"
        yield about, best, f"{chosen} {row.seconds:.4g} s", regret


def _batches(row: Row | None) -> str:
    """Return the batches that a fit by `ps+ibatch` kept. Fits without the field ``kept`` ended during the plan's trial."""
    if row is None or row.algorithm != "ps+ibatch":
        return ""
    return f" ({kept(row)})" if "kept" in row.extra else " (its plan on trial)"


def scale_auto_regrets(data: Data) -> Iterator[Line]:
    found = [row for name in (*AUTO, AUTO_SMALL) for row in data.rows(name, algorithm="auto")]
    if stay := [row.extra["regret"] * 100 for row in found if "changed" not in row.extra]:
        yield "links that stay", *_regrets(stay, 2 * len(AUTO) + 2, _verdict(stay, AUTO_AIMS))
    if changed := [row for row in found if "changed" in row.extra]:
        switched = [math.inf if row.extra["switched"] is None else row.extra["switched"] for row in changed]
        verdict = f"{_verdict(switched, (AUTO_STEPS, AUTO_STEPS))}: {', '.join(map(str, switched))} steps"
        yield "links that change", *_regrets([row.extra["regret"] * 100 for row in changed], len(AUTO), verdict)


def _regrets(regrets: Sequence[float], wanted: int, verdict: str) -> Line:
    """Return cells about regrets. ``wanted``: number of fits that the aims are for."""
    few = "" if len(regrets) >= wanted else "too few cells; of these "
    median, worst = statistics.median(regrets), max(regrets)
    return f"{len(regrets)} of {wanted}", f"{median:.1f} %", f"{worst:.1f} %", f"{few}{verdict}"


def _time(row: Row) -> str:
    return f"{row.seconds:.3g} s" if row.seconds >= 0.1 else f"{row.seconds * 1e3:.3g} ms"


def scale(data: Data) -> Iterator[Line]:
    """Yield the main lines of the other tables."""
    aims = f"aims: median {AIMS[0]:g} %, worst {AIMS[1]:g} %"
    for about, cells, median, worst, verdict in scale_errors(data):
        if about == "all":
            yield "cells that the lab has measured", aims, f"{cells} cells: median {median}, worst {worst}", verdict
    for about, *_, verdict in scale_blind(data):
        if about.startswith("all "):
            yield "cells that were simulated before they were measured", aims, f"{about[4:]} cells", verdict
    for about, _, ours, verdict in scale_predict(data):
        if about.startswith("all "):
            yield "predictions from a timeline", f"aim: median {PREDICT_AIM:g} %", f"{about[4:]} cells", verdict
        elif about == "pairs of strategies":
            yield about, f"aim: {ORDER_AIM:.0%} in the right order", ours, verdict
    for about, cells, median, worst, verdict in scale_auto_regrets(data):
        aim = f"aims: median {AUTO_AIMS[0]:g} %, worst {AUTO_AIMS[1]:g} %"
        aim = aim if about.endswith("stay") else f"aim: decided again within {AUTO_STEPS} steps"
        yield f"`auto`, {about}: regret", aim, f"{cells} fits: median {median}, worst {worst}", verdict
    for about, formula, ours, verdict, _ in scale_fig5(data):
        if about.startswith("`bml`, bcube:32,2"):
            yield about, f"BML: {formula} T_F", ours, verdict
    for about, paper, ours, verdict in scale_commlib(data):
        if about.startswith(("resnet50, `hitopk`", "vgg19, `torus2d`")):
            yield about, f"CommLib: {paper} of linear scaling", ours, verdict
    for about, paper, ours, verdict in scale_ibatch(data):
        if about == "vgg19_22k, 72 nodes":
            yield f"{about}: speedup by iBatch; default; layer by layer", f"iBatch: {paper}", ours, verdict
    for about, driver, *_ in scale_size(data):
        if about == "1,024 ranks":
            yield f"{about} meet", "-", f"the driver: {driver}", "-"


def chart(data: Data) -> Chart:
    """Return the chart of the simulator's errors."""
    short = {"exchanges": "compressed sums", "loops": "loops"}
    groups: list[tuple[str, list[Bar]]] = []
    for case, about, errors in _errors_by_suite(data):
        values = {"median": statistics.median(errors), "worst": max(errors)}
        bars = [Bar(name, value, value, value) for name, value in values.items()]
        groups.append((f"{short.get(case, about)}, {len(errors)} cells", bars))
    return Chart("Simulated seconds beside those that the lab has measured: errors", "%", groups)


TABLES = {
    "scale": Table(("", "paper, or aim", "ours", "verdict"), scale, about_origins=ABOUT_SCALE),
    "scale_errors": Table(("", "cells", "median error", "worst", "at most 5 % and 15 %"), scale_errors),
    "scale_cells": Table(("", "measured", "simulated", "error"), scale_cells),
    "scale_blind": Table(("", "simulated before", "measured", "error"), scale_blind),
    "scale_predict": Table(("", "predicted", "measured", "error"), scale_predict),
    "scale_size": Table(
        ("", "driver, until all are in", "rank 0", "another rank", "a gathering, rank 0", "another rank"), scale_size
    ),
    "scale_fig5": Table(("", "paper's formula, T_F", "simulated, T_F", "verdict", "the simulator takes"), scale_fig5),
    "scale_fig4": Table(("", "in the same run", "`lp`, simulated", "verdict"), scale_fig4),
    "scale_commlib": Table(("", "paper, of linear scaling", "simulated", "difference"), scale_commlib),
    "scale_ibatch": Table(("", "paper: iBatch; default; layer by layer", "simulated", "verdict"), scale_ibatch),
    "scale_ibatch_split": Table(SPLIT, scale_ibatch_split),
    "scale_greedy": Table(("", "greedy 1", "greedy 2", "the better one"), scale_greedy),
    "scale_auto": Table(OF_AUTO, scale_auto, AUTO),
    "scale_auto_small": Table(OF_AUTO, scale_auto, [AUTO_SMALL]),
    "scale_auto_regrets": Table(
        ("", "cells", "median regret", "worst", "at most 3 % and 10 %, or 20 steps"),
        scale_auto_regrets,
        about_origins=ABOUT_REGRETS,
    ),
}
