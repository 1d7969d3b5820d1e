"""How far workers may drift apart: the conf's ``bsp``, ``ssp:K`` and ``async:TAU``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from sparkdl_comm.errors import ConfError

_FORM = re.compile(r"(bsp)|(ssp|async):(\d+)")


@dataclass(frozen=True)
class Synchrony:
    """Limit on the workers' drift.

    - ``bsp``: an iteration begins when all updates of the one before are applied.
    - ``ssp``: no worker begins an iteration more than ``bound`` ahead of the slowest worker's.
    - ``async``: no worker waits. An update is applied only if the model has advanced by at most ``bound`` updates
      since the version it was computed from, itself included.
    """

    kind: Literal["bsp", "ssp", "async"]
    bound: int = 0

    @classmethod
    def parse(cls, text: str, key: str = "sync") -> Synchrony:
        """Return the setting in ``text``: ``bsp``, ``ssp:K`` (K at least 0) or ``async:TAU`` (TAU at least 1).

        :param key: name of the setting in errors.
        :raises ConfError: ``text`` has none of these forms.
        """
        found = _FORM.fullmatch(text)
        if not found or (found[2] == "async" and int(found[3]) < 1):
            raise ConfError(f"{key}={text!r}: must be bsp, ssp:K with K at least 0, or async:TAU with TAU at least 1")
        if found[1]:
            return cls("bsp")
        return cls("ssp" if found[2] == "ssp" else "async", int(found[3]))
