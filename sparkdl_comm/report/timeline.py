"""Timeline of all ranks in the last iterations of a run, as a drawing or as a trace for Chrome and Perfetto.

Spans of a rank, by ``name``:

- ``forward``, ``backward``, ``update``: work of the worker. ``wait for pull``, ``wait for push``: waits within them.
- ``compress``: selecting elements of gradients, or adding up all ranks' selections, in parallel (strategies that
  all-reduce).
- ``pull batch`` (strategy ps, as are the following, each for a batch of layers): from the first byte to the last.
- ``forward batch``, ``backward batch``: computing the layers, without waits for their parameters.
- ``push batch``: receiving gradients of the other ranks, for the layers that this rank serves.
- ``aggregate batch``: adding up these gradients. ``update batch``: the optimizer.

Times of all ranks are on rank 0's clock: see :func:`sparkdl_comm.strategies.trace.estimate_offset`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sparkdl_comm.errors import InputError, PersistenceError, PluginError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Rows of a rank, from top to bottom, and the spans in each.
_ROWS = {
    "pull": ("pull batch",),
    "worker": ("forward", "backward", "update", "wait for pull", "wait for push"),
    "compression": ("compress",),
    "batches": ("forward batch", "backward batch", "update batch"),
    "push": ("push batch",),
    "sums": ("aggregate batch",),
}
#: Rows whose spans may overlap.
_OVERLAPPING = ("pull", "push", "sums")
_ROW_OF = {name: row for row, names in _ROWS.items() for name in names}


class Timeline:
    """Spans of all ranks and traced iterations.

    ``spans``: dicts, ordered by begin. Each has ``rank``, ``iteration`` (from 1), ``name``, ``begin`` and ``end``
    (seconds since the first span began). Spans of batches have ``batch`` (from 0) and ``layers`` (first and last, from
    1). Spans of transfers have ``bytes``, ``from`` (ranks) and ``startup`` (seconds from the request to the first
    byte). ``uncertainty``: possible misalignment of clocks of different machines, in seconds. ``parameter_bytes``:
    bytes of the model's trainable parameters as float32. ``world``: number of ranks.
    """

    def __init__(self, reports: Sequence[Mapping[str, Any]]) -> None:
        """:param reports: of all ranks in order, as :meth:`sparkdl_comm.strategies.trace.Trace.report` returns them."""
        from sparkdl_comm.strategies.trace import estimate_offset  # it loads torch; read_trace needs none

        self.world = len(reports)
        self.parameter_bytes: int = reports[0]["parameter_bytes"]
        offsets = [estimate_offset(report["clocks"], reports[0]["clocks"]) for report in reports]
        self.uncertainty = max(error_seconds for _, error_seconds in offsets)
        self.spans: list[dict[str, Any]] = [
            {
                "rank": rank,
                "iteration": iteration["iteration"],
                **span,
                "begin": span["begin"] - clock_offset,
                "end": span["end"] - clock_offset,
            }
            for rank, (report, (clock_offset, _)) in enumerate(zip(reports, offsets, strict=True))
            for iteration in report["iterations"]
            for span in iteration["spans"]
        ]
        self.spans.sort(key=lambda span: (span["begin"], -span["end"]))
        first = self.spans[0]["begin"] if self.spans else 0.0
        for span in self.spans:
            span["begin"] -= first
            span["end"] -= first

    @property
    def iterations(self) -> list[int]:
        """Numbers of the traced iterations, from 1."""
        return sorted({span["iteration"] for span in self.spans})

    def save(self, path: str | Path) -> None:
        """Write a trace for https://ui.perfetto.dev or chrome://tracing: JSON, in microseconds, one process per rank.

        :param path: on this machine.
        :raises PersistenceError: the file cannot be written.
        """
        trace = {
            "traceEvents": list(self._events()),
            "displayTimeUnit": "ms",
            "otherData": {
                "clock": "rank 0's",
                "uncertainty_seconds": self.uncertainty,
                "parameter_bytes": self.parameter_bytes,
            },
        }
        try:
            Path(path).write_text(json.dumps(trace))
        except OSError as error:
            raise PersistenceError(f"the timeline cannot be written to {path}: {error}") from error

    def plot(self, iteration: int | None = None, ranks: Sequence[int] = (0,)) -> Figure:
        """Draw the rows that have spans in one iteration. Each batch has its own color; grey shows the worker's waits.

        :param iteration: from 1; default: the last one that was traced on all ``ranks``.
        :raises InputError: the iteration was not traced on all ``ranks``, or there is no such rank.
        :raises PluginError: matplotlib is not installed.
        """
        number = self._choose_iteration(iteration, ranks)
        try:
            from matplotlib.figure import Figure
        except ImportError as exc:
            raise PluginError("a plot needs matplotlib: pip install sparkdl_comm[demo]") from exc
        spans = [span for span in self.spans if span["iteration"] == number and span["rank"] in ranks]
        names = {span["name"] for span in spans}
        used = [row for row, kinds in _ROWS.items() if not names.isdisjoint(kinds)]
        rows = [(rank, row) for rank in ranks for row in used]
        figure = Figure(figsize=(11, 1.1 + 0.3 * len(rows)), layout="constrained")
        axes = figure.add_subplot()
        begin = min(span["begin"] for span in spans)
        for span in spans:
            color = f"C{span['batch'] % 10}" if "batch" in span else _COLORS[span["name"]]
            axes.broken_barh(
                [(1e3 * (span["begin"] - begin), 1e3 * (span["end"] - span["begin"]))],
                (rows.index((span["rank"], _ROW_OF[span["name"]])) - 0.4, 0.8),
                facecolors=color,
                edgecolor="white",
                linewidth=0.3,
            )
        axes.set_yticks(range(len(rows)), [f"rank {rank}: {row}" if row == used[0] else row for rank, row in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlabel("milliseconds")
        figure.suptitle(f"Iteration {number}, {self.world} ranks")
        for name, color in _COLORS.items():
            if name in names:
                axes.broken_barh([(0, 0)], (0, 0), facecolors=color, label=name)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(_COLORS), frameon=False)
        return figure

    def _choose_iteration(self, iteration: int | None, ranks: Sequence[int]) -> int:
        """Return ``iteration``, or by default the last iteration that was traced on all ``ranks``.

        With strategy fabric, each rank counts its own iterations, so perhaps none was traced on all.

        :raises InputError: there is no such rank, or no such iteration on all ``ranks``.
        """
        if not ranks or not set(ranks) <= set(range(self.world)):
            raise InputError(f"ranks={list(ranks)}: there are ranks 0 to {self.world - 1}. Name at least one of them")
        traced = {rank: {span["iteration"] for span in self.spans if span["rank"] == rank} for rank in ranks}
        common = set.intersection(*traced.values())
        if iteration in common or (iteration is None and common):
            return max(common) if iteration is None else iteration
        available = "; ".join(
            f"rank {rank} has iterations {min(iterations)} to {max(iterations)}"
            if iterations
            else f"rank {rank} has none"
            for rank, iterations in traced.items()
        )
        problem = "no iteration was traced on all of them" if iteration is None else f"iteration={iteration}"
        raise InputError(
            f"ranks={list(ranks)}: {problem}. {available}. Name an iteration that all have, or fewer ranks"
        )

    def _events(self) -> Iterator[dict[str, Any]]:
        """Yield events of the Trace Event Format. Rows with overlapping spans use asynchronous events."""
        lanes = {row: lane for lane, row in enumerate(_ROWS)}
        for rank in range(self.world):
            yield {"ph": "M", "pid": rank, "tid": 0, "name": "process_name", "args": {"name": f"rank {rank}"}}
            for row, lane in lanes.items():
                yield {"ph": "M", "pid": rank, "tid": lane, "name": "thread_name", "args": {"name": row}}
        for number, span in enumerate(self.spans):
            row = _ROW_OF[span["name"]]
            begin, end = span["begin"] * 1e6, span["end"] * 1e6
            where = {"pid": span["rank"], "tid": lanes[row], "cat": row, "name": _span_label(span)}
            args = {key: value for key, value in span.items() if key not in ("rank", "name", "begin", "end")}
            if row in _OVERLAPPING:
                yield {"ph": "b", "id": number, "ts": begin, "args": args, **where}
                yield {"ph": "e", "id": number, "ts": end, **where}
            else:
                yield {"ph": "X", "ts": begin, "dur": end - begin, "args": args, **where}


_COLORS = {
    "forward": "tab:green",
    "backward": "tab:olive",
    "update": "tab:purple",
    "wait for pull": "lightgrey",
    "wait for push": "darkgrey",
    "compress": "tab:red",
}


def _span_label(span: Mapping[str, Any]) -> str:
    if "layers" not in span:
        return str(span["name"])
    first, last = span["layers"]
    return f"{span['name'].removesuffix(' batch')} {first}-{last}"


_MICROSECONDS = 1e-6
_WRITER = "model.timeline().save(FILE)"


class SavedTrace(NamedTuple):
    """Spans and parameter bytes that a :class:`~sparkdl_comm.report.timeline.Timeline` had when it was saved."""

    spans: list[dict[str, Any]]
    parameter_bytes: int


def read_trace(path: Path) -> SavedTrace:
    """Read a timeline.

    :raises InputError: the file cannot be read, or it is not a timeline. If one of its events is malformed, the message
        has the event's index.
    """
    document = _load_document(path)
    spans: list[dict[str, Any]] = []
    open_spans: dict[Any, dict[str, Any]] = {}
    for number, event in enumerate(document["traceEvents"]):
        try:
            if event["ph"] == "X":
                spans.append(_parse_span(event, event["ts"] + event["dur"]))
            elif event["ph"] == "b":
                open_spans[event["id"]] = event
            elif event["ph"] == "e":
                spans.append(_parse_span(open_spans.pop(event["id"]), event["ts"]))
        except (KeyError, TypeError, ValueError) as error:
            problem = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
            raise InputError(f"{path}: event {number} is not as Timeline.save writes it: {problem}") from error
    if not spans:
        raise InputError(f"{path}: the timeline has no spans")
    spans.sort(key=lambda span: (span["begin"], -span["end"]))
    return SavedTrace(spans, document["otherData"]["parameter_bytes"])


def _load_document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}. Give the file that {_WRITER} wrote") from error
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}. Give the file that {_WRITER} wrote") from error
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        raise InputError(f"{path} is not a timeline: it has no list 'traceEvents'. Give the file that {_WRITER} wrote")
    metadata = document.get("otherData")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("parameter_bytes"), int):
        raise InputError(
            f"{path} is another program's trace: it has no 'parameter_bytes'. Give one that {_WRITER} wrote"
        )
    return document


#: Span name by row. In the row "batches", the first word of the label gives the name.
_BATCH_NAMES = {"pull": "pull batch", "push": "push batch", "sums": "aggregate batch"}


def _parse_span(event: dict[str, Any], end: float) -> dict[str, Any]:
    args = event["args"]
    name = str(event["name"])
    if "batch" in args:
        name = _BATCH_NAMES.get(event["cat"], f"{name.split()[0]} batch")
    begin, iteration = float(event["ts"]) * _MICROSECONDS, int(args["iteration"])
    where = {"rank": int(event["pid"]), **args, "iteration": iteration}
    return {**where, "name": name, "begin": begin, "end": float(end) * _MICROSECONDS}
