"""Forms of configuration values, and the declaration of a key by a field of a dataclass."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Generic, TypeVar

from sparkdl_comm.errors import ConfError, nearest
from sparkdl_comm.topology import Topology
from sparkdl_comm.units import parse_rate, parse_size

T = TypeVar("T")

_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s|m|min|h|d)?")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, None: 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
#: Limit of times, in seconds: about thirty years. Longer times overflow Python's timers and the plugin, which counts
#: nanoseconds in a long.
_MAX_SECONDS = 10**9
#: The plugin counts iterations in an int.
_MAX_ITERATIONS = 2**31 - 1
#: More than the layers of any network.
_MAX_PARTS = 1_000_000
_SYNC = re.compile(r"bsp|ssp:\d+|async:0*[1-9]\d*")
_CACHE_NAME = re.compile(r"\w[\w.-]{0,99}", re.ASCII)
_PORTS = re.compile(r"(\d+)(?:\s*-\s*(\d+))?")

_PAPER_POLICIES = ("paper", "paper-layerwise")
_SIZED_POLICIES = ("parts:COUNT", "fixed:BYTES")
#: Names of batching policies. ``parts:COUNT`` and ``fixed:BYTES`` are two more.
POLICIES = ("whole", "layerwise", "greedy1", "greedy2", "ibatch", *_PAPER_POLICIES, "optimal")


@dataclass(frozen=True)
class Form(Generic[T]):
    """Form of a value. ``name``: for people. ``parse``: returns the value of a text, or raises ``ValueError`` with what is
    accepted, in words that continue "must be".
    """

    name: str
    parse: Callable[[str], T]

    def __call__(self, text: str) -> T:
        return self.parse(text)


def form(name: str) -> Callable[[Callable[[str], T]], Form[T]]:
    """Return a decorator that makes a parser a :class:`Form`."""
    return partial(Form, name)


@form("name or address")
def address(text: str) -> str:
    return text


@form("name")
def cache_name(text: str) -> str:
    """Return the name of a cache of rows, which begins names of folders. Empty: none."""
    if text and not _CACHE_NAME.fullmatch(text.replace("{rows}", "rows")):
        raise ValueError("at most 100 letters, digits, '.', '_' and '-', with no '.' or '-' first, or {rows}")
    return text


@form("path")
def local_directory(text: str) -> str:
    if not text.startswith(("/", "~/")):
        raise ValueError("a local path that begins with / or ~/")
    return text


@form("true|false")
def flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"true or false{nearest(text.lower(), ('true', 'false'))}")
    return text.lower() == "true"


@form("time")
def seconds(text: str) -> float:
    """Return the seconds of a Spark time string, such as ``30s``, ``2min`` or ``500ms``: more than 0, at most 10^9.

    A bare number is in seconds.
    """
    match = _TIME.fullmatch(text.lower())
    value = float(match[1]) * _SECONDS[match[2]] if match else math.nan
    if not 0 < value <= _MAX_SECONDS:
        raise ValueError(
            f"a time of more than 0 and at most {_MAX_SECONDS}s, such as 30s, 2min or 500ms (us, ms, s, m, min, h, d; "
            "bare number: s)"
        )
    return value


@form("port or range")
def port_range(text: str) -> tuple[int, int]:
    match = _PORTS.fullmatch(text)
    first = int(match[1]) if match else -1
    last = int(match[2]) if match and match[2] else first
    if (first, last) != (0, 0) and not 1024 <= first <= last <= 65535:
        raise ValueError("0 (any free port), one port, or a range first-last, within 1024-65535")
    return first, last


@form("port")
def port(text: str) -> int:
    try:
        first, last = port_range(text)
    except ValueError:
        first, last = -1, 0
    if first != last:
        raise ValueError("0 (any free port) or one port within 1024-65535")
    return first


@form("names")
def names(text: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in text.split(",")) if text else ()
    if not all(parts):
        raise ValueError("names separated by commas, none of them empty")
    return parts


@form("topology")
def topology(text: str) -> str:
    if text:
        try:
            Topology.parse(text)
        except ConfError as error:
            raise ValueError(f"a topology: {error.message}") from None
    return text


@form("size")
def size(text: str) -> int:
    try:
        return parse_size(text)
    except ConfError:
        raise ValueError("a number and B, KiB, MiB, GiB, kB, MB or GB, such as 64KiB; 4 bytes at least") from None


@form("size")
def size_or_0(text: str) -> int:
    return 0 if text == "0" else size(text)


@form("number")
def count(text: str) -> int:
    if not text.isdecimal():
        raise ValueError("a whole number of at least 0")
    return int(text)


def one_of(*choices: str) -> Form[str]:
    @form("|".join(choices))
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"one of {', '.join(choices)}{nearest(text, choices)}")
        return text

    return parse


@form("number")
def iterations(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MAX_ITERATIONS:
        raise ValueError(f"a whole number of at least 1 and at most {_MAX_ITERATIONS}")
    return int(text)


def number(text: str) -> float:
    """Return the number of ``text``, NaN if it is not a number."""
    try:
        return float(text)
    except ValueError:
        return math.nan


@form("number")
def non_negative(text: str) -> float:
    value = number(text)
    if not 0 <= value < math.inf:
        raise ValueError("a number of at least 0, such as 0.25")
    return value


@form("number")
def fraction_below_1(text: str) -> float:
    value = number(text)
    if not 0 <= value < 1:
        raise ValueError("a number of at least 0 and less than 1")
    return value


@form("|".join(POLICIES + _SIZED_POLICIES))
def policy(text: str) -> str:
    """Return the name of a policy for cutting layers into batches. The planner itself is in the plugin's jar."""
    kind, _, size = text.partition(":")
    limit = {"parts": _MAX_PARTS, "fixed": math.inf}.get(kind, 0)
    if text in POLICIES or (size.isdecimal() and 0 < int(size) <= limit):
        return text
    raise ValueError(
        f"one of {', '.join(POLICIES)}, parts:COUNT with COUNT of 1 to {_MAX_PARTS}, or fixed:BYTES with BYTES of at least 1"
        f"{nearest(text, POLICIES)}"
    )


@form("|".join(name for name in POLICIES + _SIZED_POLICIES if name not in _PAPER_POLICIES))
def push_policy(text: str) -> str:
    """Return the name of a policy for gradients, or ""."""
    if text in _PAPER_POLICIES:
        raise ValueError(f"empty, or a policy of pushes: ps.batching={text} pushes all at once")
    return policy(text) if text else text


@form("bsp|ssp:K|async:TAU")
def sync(text: str) -> str:
    if not _SYNC.fullmatch(text):
        raise ValueError("bsp, ssp:K with K at least 0, or async:TAU with TAU at least 1")
    return text


@form("time")
def interval(text: str) -> float:
    value = seconds(text)
    # With a shorter interval, the scheduler would use all of its time for decisions.
    if value < 0.001:
        raise ValueError("1ms at least")
    return value


@form("rate")
def rate(text: str) -> str:
    try:
        parse_rate(text)
    except ConfError:
        raise ValueError("a rate such as 10gbit or 200mbit") from None
    return text


@form("number")
def positive_or_inf(text: str) -> float:
    value = number(text)
    if not value > 0:
        raise ValueError("a number above 0, or inf")
    return value


PREFIX = "spark.sparkdl.comm."


@dataclass(frozen=True)
class Key:
    """Key of the configuration.

    ``default``: default value as text. ``meaning``: one or more sentences. ``is_chosen``: a fit chooses the value if the
    key is not set, so the reference does not show ``default``. ``name``: the key without :data:`PREFIX`. The value is
    ``conf.GROUP.FIELD``, or ``conf.FIELD`` if ``group`` is "".
    """

    default: str
    form: Form[Any]
    meaning: str
    is_chosen: bool = False
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


def declare(default: str, form: Form[T], meaning: str, *, is_group: bool = False, is_chosen: bool = False) -> T:
    """Return a dataclass field that declares a key.

    The key has the field's name, in camel case. ``is_group``: the key has the name of the field's group alone.
    ``is_chosen``: see :class:`Key`.
    """
    declared = Key(default, form, meaning, is_chosen)
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
