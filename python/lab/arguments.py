"""Options that all benchmarks have, and types of other options.

A type parses the text of an option. Commas separate the items of a list. A refused text ends the program, with the option
and the reason.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from sparkdl_comm.errors import ConfError
from sparkdl_comm.topology import Topology
from sparkdl_comm.units import parse_rate, parse_size

#: Standard output, the value of ``--json`` without a file.
STDOUT = "-"
_PLAIN = re.compile(r"\s*\d+(\.\d+)?\s*")


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that all suites have: ``--quick``, ``--json``, ``--repeats``, ``--warmup``."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--repeats", type=positive, default=3, help="timed runs of each case; the median counts")
    made.add_argument("--warmup", type=int, default=1, help="runs of each case before these")
    made.add_argument("--quick", action="store_true", help="one small run of each: does it work?")
    made.add_argument(
        "--json",
        nargs="?",
        const=STDOUT,
        type=_json_file,
        metavar="FILE",
        help="writes samples, commit, machine, versions and command line to FILE; without FILE: JSON rows on standard output, "
        "the table on standard error",
    )
    return made


def positive(text: str) -> int:
    """Parse a whole number, at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


def whole_numbers(least: int = 1) -> Callable[[str], list[int]]:
    """Return the type of lists of whole numbers, at least ``least``: ``2,3``."""

    def parse(text: str) -> list[int]:
        try:
            numbers = [int(number) for number in text.split(",")]
        except ValueError:
            numbers = []
        if not numbers or min(numbers) < least:
            raise argparse.ArgumentTypeError(
                f"must be whole numbers, at least {least}, separated by commas, not {text!r}"
            )
        return numbers

    return parse


def numbers(text: str) -> list[float]:
    """Parse numbers above 0: ``1,1.5``."""
    try:
        found = [float(number) for number in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < number < math.inf for number in found):
        raise argparse.ArgumentTypeError(f"must be numbers above 0, separated by commas, not {text!r}")
    return found


def names_of(known: Iterable[str]) -> Callable[[str], list[str]]:
    """Return the type of lists of these names: ``ring,bml``."""
    there = list(known)

    def parse(text: str) -> list[str]:
        found = text.split(",")
        if unknown := set(found) - set(there):
            raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: there are {', '.join(there)}")
        return found

    return parse


def sizes(text: str) -> list[int]:
    """Parse sizes, ``64KiB,16MiB``, to bytes of whole float32 values. A size without a unit is in MiB: ``0.25,16``."""
    try:
        return [parse_size(f"{size}MiB" if _PLAIN.fullmatch(size) else size) // 4 * 4 for size in text.split(",")]
    except ConfError as error:
        raise argparse.ArgumentTypeError(f"{error}; without a unit it is in MiB") from error


def size(text: str) -> int:
    """Parse one size, as :func:`sizes` does."""
    found = sizes(text)
    if len(found) != 1:
        raise argparse.ArgumentTypeError(f"must be one size, not {text!r}")
    return found[0]


def fraction(text: str) -> float:
    """Parse a number above 0, at most 1."""
    number = float(text)
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most 1, not {text}")
    return number


def link_rate(text: str) -> float:
    """Parse the rate of a link, Mbit/s."""
    number = float(text)
    try:
        parse_rate(number * 1e6)
    except ConfError:
        raise argparse.ArgumentTypeError(f"must be Mbit/s, of at least 1 bit/s, not {text}") from None
    return number


def link_rates(text: str) -> list[float]:
    """Parse rates of links, Mbit/s: ``100,1000``."""
    try:
        return [link_rate(each) for each in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be numbers of Mbit/s, separated by commas, not {text!r}") from None


def topology_of(text: str) -> Topology:
    """Parse a topology, such as ``star:3``."""
    try:
        return Topology.parse(text)
    except ConfError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _json_file(text: str) -> str:
    """Parse the path of a file for JSON. Refuse one that cannot be written, before anything is measured."""
    if text != STDOUT and (not text or Path(text).is_dir() or not Path(text).absolute().parent.is_dir()):
        raise argparse.ArgumentTypeError(f"{text!r}: must be a file in a folder that exists")
    return text
