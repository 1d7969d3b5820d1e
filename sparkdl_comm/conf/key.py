"""Key of the configuration, declared by a field of a dataclass."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from sparkdl_comm.conf.forms import Form
from sparkdl_comm.errors import ConfError

PREFIX = "spark.sparkdl.comm."

T = TypeVar("T")


@dataclass(frozen=True)
class Key:
    """Key of the configuration.

    ``default``: its text. ``meaning``: one or more sentences. ``name``: the key without :data:`PREFIX`. The value is
    ``conf.GROUP.FIELD``, or ``conf.FIELD`` if ``group`` is "".
    """

    default: str
    form: Form[Any]
    meaning: str
    name: str = ""
    group: str = ""
    field: str = ""

    @property
    def full(self) -> str:
        return PREFIX + self.name

    @property
    def argument(self) -> str:
        """The name of the key's keyword argument, such as ``ps_batching``. It has no ``collective_``."""
        return snake_case(self.name.removeprefix("collective.").replace(".", "_"))

    def read(self, text: str) -> Any:
        """Return the value of ``text``.

        :raises ConfError: ``text`` has no value. The message has the key, the text and the limit.
        """
        try:
            return self.form(text.strip())
        except ValueError as error:
            raise ConfError(f"{self.full}={text!r}: must be {error}") from None


def declare(default: str, form: Form[T], meaning: str, *, is_group: bool = False) -> T:
    """Return a dataclass field that declares a key.

    The key has the field's name, in camel case. ``is_group``: the key has the name of the field's group alone.
    """
    declared = Key(default, form, meaning)
    value: T = field(default=form(default), metadata={"key": declared, "is_group": is_group})
    return value


def keys_of(kind: type[Any], group: str = "") -> Iterator[Key]:
    """Return the keys that the fields of a dataclass declare, and those of its groups, in order."""
    for each in fields(kind):
        if "key" not in each.metadata:
            yield from keys_of(type(each.default), each.name)
            continue
        name = "" if each.metadata["is_group"] else re.sub("_(.)", lambda match: match[1].upper(), each.name)
        full = ".".join(filter(None, (group, name)))
        yield replace(each.metadata["key"], name=full, group=group, field=each.name)


def snake_case(name: str) -> str:
    """Return ``slot_timeout`` for ``slotTimeout``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
