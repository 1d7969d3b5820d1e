"""Report of each rank at the end of a run, and the driver's summary of all reports."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sparkdl_comm.data.named_cache import NO_NAME
from sparkdl_comm.errors import GangError
from sparkdl_comm.train.diagnosis import OutputShape


@dataclass(frozen=True)
class RankReport:
    """Report of one rank on its run. Its JSON is the ``report`` column of the rank's row.

    ``iterations``: steps done, including ``resumed_at`` steps before the checkpoint from which this run resumed.
    ``seconds``: time of the steps in this run. ``phases``: total seconds by phase (pull, forward, backward, push,
    aggregate, update). ``bytes``: received from other executors, by ``pull`` and ``push``. ``history``: one row per
    epoch. Its ``loss`` is this rank's part of the epoch's mean loss, which is the sum over the ranks. All other values
    but the time are equal on all ranks. ``rows``: number of this rank's training rows. ``weights_sha256``: digest of
    the trained tensors. ``output_shape``: shape of the model's output for one row, by name if there are several
    outputs. None if the rank saw no row. ``details``: the strategy's entries for the summary. ``timeline``: see
    :meth:`sparkdl_comm.strategies.trace.Trace.report`. None if nothing was traced. ``data``: see
    :meth:`sparkdl_comm.job.rank_rows.RowLoader.report`.
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
    """Numbers of a run, ready for JSON (see :func:`summarize`). Its ``str`` is at most five lines for people."""

    def __str__(self) -> str:
        return "\n".join(
            filter(None, [self._headline(), self._phases(), self._received(), self._rows(), self._last_epoch()])
        )

    def line(self) -> str:
        """Return one line: what ran, how fast, and where the time went."""
        return "; ".join(filter(None, [self._headline(), self._phases()]))

    def _headline(self) -> str:
        seconds = self.get("seconds_per_iteration", 0.0)
        speed = f", {self['samples_per_second']:,.0f} samples/s" if "samples_per_second" in self else ""
        ran = f"{self.get('strategy')}{self._choices()}, {self.get('world')} ranks"
        return f"{ran}: {self.get('iterations')} steps of {1e3 * seconds:.4g} ms{speed}"

    def _choices(self) -> str:
        """Return the choices that were made by measuring, in brackets."""
        chosen = self.get("auto", {}).get("chosen")
        batching = self.get("batching")
        kept = describe_kept(batching["pull"]["kept"], batching["push"]["kept"]) if batching else None
        found = [text for text in (chosen, kept) if text]
        return f" ({', '.join(found)})" if found else ""

    def _phases(self) -> str:
        total = sum(self.get("phases", {}).values())
        longest = sorted(self.get("phases", {}).items(), key=lambda phase: -phase[1])
        shares = [f"{name} {100 * seconds / total:.0f} %" for name, seconds in longest if seconds > 0.005 * total]
        return f"time of a step: {', '.join(shares)}" if shares else ""

    def _received(self) -> str:
        steps = max(self.get("iterations", 0) - self.get("resumed_at", 0), 1)
        sizes = [f"{amount / steps / 1e6:.4g} MB {kind}" for kind, amount in self.get("bytes", {}).items()]
        return f"received in a step, all ranks: {', '.join(sizes)}" if sizes else ""

    def _rows(self) -> str:
        data = self.get("data")
        if not data:
            return ""
        source = "from the named cache" if data["reused"] else f"read in {data['seconds']:.3g} s"
        reason = data.get("why_read", NO_NAME)
        if reason != NO_NAME:
            source += f", because {reason}"
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


def describe_kept(pull: str, push: str) -> str:
    """Return what both directions kept, such as "plan, 7 pulls, 19 pushes"."""
    if pull == push:
        return pull
    _, _, pushes = push.partition("plan, ")
    return f"{pull}, {pushes}" if pushes else f"{pull}; pushes {push}"


def check_reports(reports: Sequence[RankReport], world: int) -> None:
    """Check that the reports of all ranks agree.

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
    """Return the run's numbers, ready for JSON:

    - ``strategy``, ``world``, ``iterations``, ``restarts`` (how many times ranks were restarted)
    - ``resumed_at``: how many of the iterations were in the checkpoint from which the run resumed
    - ``seconds_per_iteration`` (of the slowest rank), ``iterations_per_second``
    - ``samples_per_second``: rows of all ranks, if an epoch has ended
    - ``phases``: seconds per iteration, mean over the ranks
    - ``bytes``: ``pull`` and ``push`` of all ranks in the whole run
    - ``rows``: training rows of all ranks
    - ``history``: see :func:`merge_history`
    - ``data``: where the ranks had their rows. ``cache``: disk if a rank had them there. ``bytes``: on the disks of all
      ranks. ``held``: bytes of these that are in memory too. ``seconds``: until the slowest rank had read its rows.
      ``reused``: whether they came from a named cache. ``why_read``: if they did not, the reason.
    - ``skipped_steps``: under fp16, skipped by the optimizer
    - the ``details`` of rank 0
    - ``timeline``: if iterations were traced, of all ranks (see :class:`sparkdl_comm.report.timeline.Timeline`)

    :raises GangError: see :func:`check_reports`.
    """
    check_reports(reports, world)
    first = min(reports, key=lambda report: report.rank)
    iterations = max(first.iterations - first.resumed_at, 1)
    seconds = max(report.seconds for report in reports) / iterations
    phases = {name for report in reports for name in report.phases}
    kinds = {"pull", "push"}.union(*(report.bytes for report in reports))
    skipped = [row["skipped_steps"] for row in first.history if "skipped_steps" in row]
    traced = {"timeline": [report.timeline for report in sorted(reports, key=lambda report: report.rank)]}
    history, rows = merge_history(reports), sum(report.rows for report in reports)
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
            **({"data": _merge_data([report.data for report in reports])} if first.data else {}),
            "history": history,
            "restarts": restarts,
            **({"skipped_steps": sum(skipped)} if skipped else {}),
            **first.details,
            **(traced if first.timeline is not None else {}),
        }
    )


def _merge_data(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        "cache": "disk" if any(report["cache"] == "disk" for report in reports) else "memory",
        "bytes": sum(report["bytes"] for report in reports),
        "held": sum(report["held"] for report in reports),
        "seconds": max(report["seconds"] for report in reports),
        "reused": any(report["reused"] for report in reports),
        **({"why_read": reports[0]["why_read"]} if "why_read" in reports[0] else {}),
    }


def merge_history(reports: Sequence[RankReport]) -> list[dict[str, Any]]:
    """Return one row per epoch.

    ``epoch``: from 1. ``step``: steps done by the end of the epoch. ``loss``: mean over the epoch's steps. Excluded are
    the steps that the optimizer skipped under fp16, ``skipped_steps``. ``lr``: of the first parameter group.
    ``seconds``: of rank 0. ``val_loss`` and metrics by name: evaluated at the end of the epoch.
    """
    by_rank = [report.history for report in sorted(reports, key=lambda report: report.rank)]
    return [{**rows[0], "loss": sum(row["loss"] for row in rows)} for rows in zip(*by_rank, strict=True)]
