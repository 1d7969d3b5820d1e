"""Reads a timeline that :meth:`~sparkdl_comm.report.timeline.Timeline.save` has written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sparkdl_comm.errors import InputError

_MICROSECONDS = 1e-6


def read_spans(path: Path) -> list[dict[str, Any]]:
    """The spans, as :attr:`~sparkdl_comm.report.timeline.Timeline.spans` has them.

    :raises InputError: there is no such file, or it is not such a trace; says which event is not right.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        events = document["traceEvents"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: no timeline could be read, as Timeline.save writes it: {error!r}") from error
    spans: list[dict[str, Any]] = []
    open_spans: dict[Any, dict[str, Any]] = {}
    for number, event in enumerate(events):
        try:
            if event["ph"] == "X":
                spans.append(_span(event, event["ts"] + event["dur"]))
            elif event["ph"] == "b":
                open_spans[event["id"]] = event
            elif event["ph"] == "e":
                spans.append(_span(open_spans.pop(event["id"]), event["ts"]))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path}: event {number} is not as Timeline.save writes it: {error!r}") from error
    if not spans:
        raise InputError(f"{path}: the timeline has no spans")
    return sorted(spans, key=lambda span: (span["begin"], -span["end"]))


#: By the row of a rank, the name of what is done with batches there; of "batches" the label's first word tells.
_BATCH_NAMES = {"pull": "pull batch", "push": "push batch", "sums": "aggregate batch"}


def _span(event: dict[str, Any], end: float) -> dict[str, Any]:
    about = event["args"]
    name = str(event["name"])
    if "batch" in about:
        name = _BATCH_NAMES.get(event["cat"], f"{name.split()[0]} batch")
    begin = float(event["ts"]) * _MICROSECONDS
    return {"rank": int(event["pid"]), **about, "name": name, "begin": begin, "end": float(end) * _MICROSECONDS}
