"""What each rank reports at the end, and the summary of the run that the driver makes of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sparkdl_comm.errors import GangError
from sparkdl_comm.train.loop.output_shape import OutputShape


@dataclass(frozen=True)
class RankReport:
    """One rank's account of a run; its JSON is the ``report`` column of the rank's row.

    ``iterations``: steps done, ``resumed_at`` of them before the checkpoint from which this run went on. ``seconds``: time in
    the others. ``phases``: seconds in total by phase (pull,
    forward, backward, push, aggregate, update). ``bytes``: from other executors, ``pull`` and ``push``.
    ``history``: a row per epoch; its ``loss`` is this rank's part of the epoch's mean loss, the sum of these over the
    ranks, and all else is the same on all ranks but for the time.
    ``rows``: of this rank, that were trained on. ``weights_sha256``: of the trained tensors. ``output_shape``: shape of the
    model's output for one row, by name if there are several; None if the rank saw no row. ``details``: what the strategy has
    to say, for the summary. ``timeline``: see :meth:`sparkdl_comm.strategies.trace.Trace.report`; None if nothing was traced.
    ``data``: see :meth:`sparkdl_comm.job.rank_rows.RowsOfRank.finish`.
    """

    rank: int
    iterations: int
    seconds: float
    phases: dict[str, float]
    bytes: dict[str, int]
    history: list[dict[str, Any]]
    rows: int
    weights_sha256: str
    output_shape: OutputShape | None = field(default=None)
    resumed_at: int = 0
    details: dict[str, Any] = field(default_factory=dict)
    timeline: dict[str, Any] | None = None
    data: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RankReport:
        return cls(**json.loads(text))


class Summary(dict[str, Any]):
    """A run in numbers, ready for JSON (see :func:`summarize`); ``str`` of it is at most five lines for people."""

    def __str__(self) -> str:
        return "\n".join(
            filter(None, [self._headline(), self._phases(), self._sent(), self._rows(), self._last_epoch()])
        )

    def line(self) -> str:
        """Return one line: what ran, how fast, and where the time went."""
        return "; ".join(filter(None, [self._headline(), self._phases()]))

    def _headline(self) -> str:
        seconds = self.get("seconds_per_iteration", 0.0)
        speed = f", {self['samples_per_second']:,.0f} samples/s" if "samples_per_second" in self else ""
        ran = f"{self.get('strategy')}{self._kept()}, {self.get('world')} ranks"
        return f"{ran}: {self.get('iterations')} steps of {1e3 * seconds:.4g} ms{speed}"

    def _kept(self) -> str:
        """Return what was chosen by measuring, in brackets."""
        chosen = self.get("auto", {}).get("chosen")
        kept = self.get("batching", {}).get("pull", {}).get("kept")
        found = [text for text in (chosen, kept) if text]
        return f" ({', '.join(found)})" if found else ""

    def _phases(self) -> str:
        total = sum(self.get("phases", {}).values())
        longest = sorted(self.get("phases", {}).items(), key=lambda phase: -phase[1])
        shares = [f"{name} {100 * seconds / total:.0f} %" for name, seconds in longest if seconds > 0.005 * total]
        return f"time of a step: {', '.join(shares)}" if shares else ""

    def _sent(self) -> str:
        steps = max(self.get("iterations", 0) - self.get("resumed_at", 0), 1)
        sizes = [f"{amount / steps / 1e6:.4g} MB {kind}" for kind, amount in self.get("bytes", {}).items()]
        return f"received in a step, all ranks: {', '.join(sizes)}" if sizes else ""

    def _rows(self) -> str:
        data = self.get("data")
        if not data:
            return ""
        source = "reused from an earlier fit" if data["reused"] else f"read in {data['seconds']:.3g} s"
        return (
            f"{self.get('rows'):,} rows on disk, {source}"
            if data["cache"] == "disk"
            else f"{self.get('rows'):,} rows in memory, {source}"
        )

    def _last_epoch(self) -> str:
        if not self.get("history"):
            return ""
        row = self["history"][-1]
        values = {name: value for name, value in row.items() if name not in ("epoch", "step", "seconds")}
        shown = [f"{name} {value:.4g}" for name, value in values.items() if isinstance(value, (int, float))]
        return f"epoch {row['epoch']}: {', '.join(shown)}"


def check(reports: Sequence[RankReport], world: int) -> None:
    """Compares the reports of all ranks.

    :raises GangError: a rank did not report, or reported twice, or ended with other weights than the others.
    """
    ranks = sorted(report.rank for report in reports)
    if ranks != list(range(world)):
        raise GangError(f"{world} ranks were started, but reports came from {ranks}")
    hashes = {report.weights_sha256 for report in reports}
    if len(hashes) > 1:
        shown = ", ".join(f"rank {report.rank}: {report.weights_sha256[:12]}" for report in reports)
        raise GangError(f"the ranks ended with different weights (sha256: {shown})")


def summarize(reports: Sequence[RankReport], strategy: str, world: int, restarts: int = 0) -> Summary:
    """Return the run in numbers, ready for JSON.

    :return: ``strategy``, ``world``, ``iterations``, ``resumed_at`` (how many of them were in the checkpoint
        from which the run went on), ``seconds_per_iteration`` (of the slowest rank),
        ``iterations_per_second``, ``samples_per_second`` (rows of all ranks, if an
        epoch was ended), ``phases`` (seconds per iteration, mean over ranks), ``bytes`` (``pull``
        and ``push``, all ranks, whole run), ``rows`` (trained on, all ranks), ``history`` (see :func:`merged_history`),
        ``data`` (where the ranks had their rows: ``cache`` is disk if one of them had them there, ``bytes`` of all ranks on
        disks, ``held`` of them in memory, too, ``seconds`` until the slowest had read its rows, ``reused``: they were there
        before, or ``why_read``: the reason why Spark read them),
        ``restarts`` (how many times ranks were started again),
        under fp16 ``skipped_steps`` (by the optimizer), the ``details`` of rank 0, and if iterations were traced
        ``timeline``, of all ranks (see :class:`sparkdl_comm.report.timeline.Timeline`).
    :raises GangError: see :func:`check`.
    """
    check(reports, world)
    first = min(reports, key=lambda report: report.rank)
    iterations = max(first.iterations - first.resumed_at, 1)
    seconds = max(report.seconds for report in reports) / iterations
    phases = {name for report in reports for name in report.phases}
    kinds = {"pull", "push"}.union(*(report.bytes for report in reports))
    skipped = [row["skipped_steps"] for row in first.history if "skipped_steps" in row]
    traced = {"timeline": [report.timeline for report in sorted(reports, key=lambda report: report.rank)]}
    history, rows = merged_history(reports), sum(report.rows for report in reports)
    trained = rows * len(history)
    return Summary(
        {
            "strategy": strategy,
            "world": world,
            "iterations": first.iterations,
            "resumed_at": first.resumed_at,
            "seconds_per_iteration": seconds,
            "iterations_per_second": 1 / seconds if seconds > 0 else 0.0,
            **({"samples_per_second": trained / (seconds * first.iterations)} if history and seconds > 0 else {}),
            "phases": {
                name: sum(report.phases.get(name, 0.0) for report in reports) / world / iterations
                for name in sorted(phases)
            },
            "bytes": {kind: sum(report.bytes.get(kind, 0) for report in reports) for kind in sorted(kinds)},
            "rows": rows,
            **({"data": _data([report.data for report in reports])} if first.data else {}),
            "history": history,
            "restarts": restarts,
            **({"skipped_steps": sum(skipped)} if skipped else {}),
            **first.details,
            **(traced if first.timeline is not None else {}),
        }
    )


def _data(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        "cache": "disk" if any(report["cache"] == "disk" for report in reports) else "memory",
        "bytes": sum(report["bytes"] for report in reports),
        "held": sum(report["held"] for report in reports),
        "seconds": max(report["seconds"] for report in reports),
        "reused": any(report["reused"] for report in reports),
        **({"why_read": reports[0]["why_read"]} if "why_read" in reports[0] else {}),
    }


def merged_history(reports: Sequence[RankReport]) -> list[dict[str, Any]]:
    """A row per epoch: ``epoch`` (from 1), ``step`` (done by then), ``loss`` (mean over the epoch's steps, but for those that
    fp16 made the optimizer skip: ``skipped_steps``), ``lr`` (of the first parameter group), ``seconds`` (of rank 0), and what
    was evaluated at its end: ``val_loss`` and metrics by name."""
    by_rank = [report.history for report in sorted(reports, key=lambda report: report.rank)]
    return [{**rows[0], "loss": sum(row["loss"] for row in rows)} for rows in zip(*by_rank, strict=True)]
