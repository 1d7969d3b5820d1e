"""Parsers of rates and sizes as people write them: ``200mbit``, ``64MiB``."""

from __future__ import annotations

import math
import re

from sparkdl_comm.errors import ConfError

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(b|kib|mib|gib|kb|mb|gb)?", re.IGNORECASE)
_SIZES = {"b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_UNITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*(bit|kbit|mbit|gbit)", re.IGNORECASE)


def parse_rate(text: str | int | float) -> int:
    """Return the bits per second of ``200mbit``, ``1.5gbit``, … (decimal units). A number is in bit/s.

    :raises ConfError: this is not a rate, or is less than 1 bit/s.
    """
    if isinstance(text, str):
        match = _RATE.fullmatch(text.strip())
        value = float(match[1]) * _UNITS[match[2].lower()] if match else math.nan
    else:
        value = float(text)
    if not 1 <= value < math.inf:
        raise ConfError(f"rate {text!r}: must be a number and a unit of {', '.join(_UNITS)}, such as 200mbit")
    return round(value)


def format_rate(rate: int) -> str:
    """Return the shortest text of ``rate`` bit/s that :func:`parse_rate` reads back: ``200mbit``."""
    unit = max((u for u in _UNITS if rate % _UNITS[u] == 0), key=_UNITS.__getitem__)
    return f"{rate // _UNITS[unit]}{unit}"


def parse_size(text: str) -> int:
    """Return the bytes of ``64MiB``, ``100MB`` (10^8), ``12``.

    :raises ConfError: this is not a size, or is less than 4 bytes.
    """
    match = _SIZE.fullmatch(text.strip())
    size = round(float(match[1]) * _SIZES[(match[2] or "b").lower()]) if match else 0
    if size < 4:
        raise ConfError(
            f"size {text!r}: must be a number and B, KiB, MiB, GiB, kB, MB or GB, such as 64MiB; 4 bytes at least"
        )
    return size
