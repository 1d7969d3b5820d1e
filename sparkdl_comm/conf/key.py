"""What a row of the table of keys is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparkdl_comm.errors import ConfError

PREFIX = "spark.sparkdl.comm."


@dataclass(frozen=True)
class Key:
    """One row of the table.

    ``name`` is the key without :data:`PREFIX`, ``field`` the attribute of :class:`CommConf`, ``type`` what a
    value looks like (for people), ``default`` its text, ``doc`` one or more sentences. ``parse`` turns a text
    into the value and raises ``ValueError`` saying what is accepted.
    """

    name: str
    field: str
    type: str
    default: str
    doc: str
    parse: Callable[[str], Any]

    @property
    def full(self) -> str:
        return PREFIX + self.name

    def read(self, text: str) -> Any:
        """The value of ``text``; :class:`ConfError` naming key, value and limit if there is none."""
        try:
            return self.parse(text.strip())
        except ValueError as error:
            raise ConfError(f"{self.full}={text!r}: must be {error}") from None
