"""Row of the table of keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparkdl_comm.errors import ConfError

PREFIX = "spark.sparkdl.comm."


@dataclass(frozen=True)
class Key:
    """Row of the table of keys.

    ``name``: the key without :data:`PREFIX`. ``field``: the attribute of :class:`CommConf`. ``type``: form of a value,
    for people. ``default``: its text. ``doc``: one or more sentences. ``parse``: returns the value of a text, or raises
    ``ValueError`` with a description of what is accepted.
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
        """Return the value of ``text``.

        :raises ConfError: ``text`` has no value. The message has the key, the text and the limit.
        """
        try:
            return self.parse(text.strip())
        except ValueError as error:
            raise ConfError(f"{self.full}={text!r}: must be {error}") from None
