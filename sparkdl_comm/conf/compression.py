"""Settings of gradient compression: the operator, and the schedule of compressed steps."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from sparkdl_comm.conf.forms import form, number
from sparkdl_comm.errors import nearest

#: Names of the operators that select elements of gradients.
COMPRESSIONS = ("exact", "mstopk", "topk", "dgc")

#: Parts of a schedule that have a value.
_SCHEDULE_PARTS = ("steps", "epochs", "warmup")

_RANGE = re.compile(r"(\d+)(-(\d+)?)?")


@dataclass(frozen=True)
class Compression:
    """Compression of gradients.

    ``operator``: selects the elements that are sent. ``density``: fraction of the elements, in (0, 1]. For
    ``powersgd``, which sends gradients as products of matrices, ``rank`` is the number of their columns, and
    ``density`` is 1.
    """

    operator: str
    density: float
    rank: int = 0

    def __str__(self) -> str:
        return f"{self.operator}:{self.rank or f'{self.density:g}'}"


#: Used by strategies and hooks that always compress, if the settings have none.
DEFAULT_COMPRESSION = Compression("exact", 0.01)


@dataclass(frozen=True)
class CompressionSchedule:
    """Steps in which gradients are compressed: those in ``steps`` and ``epochs``, counted from 1, both ends included.

    ``warmup``: number of steps, from the first of ``steps``, in which more elements are sent. ``auto``: compress only
    if a trial finds compressed steps faster.
    """

    steps: tuple[float, float] = (1, math.inf)
    epochs: tuple[float, float] = (1, math.inf)
    warmup: int = 0
    auto: bool = False

    def __str__(self) -> str:
        ranges = {"steps": self.steps, "epochs": self.epochs}
        parts = [
            f"{name}:{a:g}-{'' if b == math.inf else b}" for name, (a, b) in ranges.items() if (a, b) != (1, math.inf)
        ]
        return ",".join(["auto"] * self.auto + parts + [f"warmup:{self.warmup}"] * bool(self.warmup)) or "always"


@form("none|NAME:SHARE|powersgd:RANK")
def parse_compression(text: str) -> Compression | None:
    """Parse ``none``, ``OPERATOR:DENSITY`` or ``powersgd:RANK``. Return None for ``none``."""
    if text == "none":
        return None
    name, _, share = text.partition(":")
    if name == "powersgd" and share.isdecimal() and int(share) >= 1:
        return Compression(name, 1.0, int(share))
    density, known = number(share), (*COMPRESSIONS, "powersgd")
    if name not in COMPRESSIONS or not 0 < density <= 1:
        raise ValueError(
            f"none, or one of {', '.join(COMPRESSIONS)} with the share of elements to send, more than 0 and at most 1,"
            " such as exact:0.01; or powersgd:R, with a rank of at least 1, such as powersgd:4"
            f"{'' if name in known else nearest(name, known)}"
        )
    return Compression(name, density)


@form("always|auto|steps:A-B|epochs:A-B|warmup:STEPS")
def parse_schedule(text: str) -> CompressionSchedule:
    """Parse ``always``, or a list of ``auto``, ``steps:A-B``, ``epochs:A-B`` and ``warmup:STEPS``."""
    found: dict[str, Any] = {}
    for part in text.split(",") if text != "always" else ():
        name, _, value = part.strip().partition(":")
        if part.strip() == "auto" and "auto" not in found:
            found["auto"] = True
            continue
        match = _RANGE.fullmatch(value)
        if name in found or name not in _SCHEDULE_PARTS or not match or (name == "warmup") != (match[2] is None):
            break
        first, last = int(match[1]), int(match[3] or 0) or math.inf
        found[name] = first if name == "warmup" else (first, last)
        if not 1 <= first <= last:
            break
    else:
        return CompressionSchedule(**found)
    raise ValueError(
        "always, or some of auto, steps:A-B, epochs:A-B (from 1; B may be missing) and warmup:STEPS, with commas between"
    )
