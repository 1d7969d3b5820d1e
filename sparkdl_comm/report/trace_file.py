"""Reader of timelines written by :meth:`~sparkdl_comm.report.timeline.Timeline.save`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from sparkdl_comm.errors import InputError

_MICROSECONDS = 1e-6
_WRITER = "model.timeline().save(FILE)"


class SavedTrace(NamedTuple):
    """Spans and parameter bytes that a :class:`~sparkdl_comm.report.timeline.Timeline` had when it was saved."""

    spans: list[dict[str, Any]]
    parameter_bytes: int


def read_trace(path: Path) -> SavedTrace:
    """Read a timeline.

    :raises InputError: there is no such file, or it is not a timeline; names the wrong event.
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
