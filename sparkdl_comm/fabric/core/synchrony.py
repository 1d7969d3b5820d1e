"""How far workers may be apart: the conf's ``bsp``, ``ssp:K`` and ``async:TAU``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from sparkdl_comm.errors import ConfError

_FORM = re.compile(r"(bsp)|(ssp|async):(\d+)")


@dataclass(frozen=True)
class Synchrony:
    """``bsp``: everybody's update of an iteration before the next one begins. ``ssp``: nobody begins an iteration that is
    more than ``bound`` ahead of the slowest worker's. ``async``: nobody waits, and no update is applied to a model that has
    moved on by more than ``bound`` updates, itself included, since the version it was computed from.
    """

    kind: Literal["bsp", "ssp", "async"]
    bound: int = 0

    @classmethod
    def parse(cls, text: str, key: str = "sync") -> Synchrony:
        """Reads ``bsp``, ``ssp:K`` (K at least 0) or ``async:TAU`` (TAU at least 1).

        :param key: what the setting is called in errors.
        :raises ConfError: another text.
        """
        found = _FORM.fullmatch(text)
        if not found or (found[2] == "async" and int(found[3]) < 1):
            raise ConfError(f"{key}={text!r}: must be bsp, ssp:K with K at least 0, or async:TAU with TAU at least 1")
        if found[1]:
            return cls("bsp")
        return cls("ssp" if found[2] == "ssp" else "async", int(found[3]))
