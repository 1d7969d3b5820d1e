"""What tables are made from: the results in a folder, and how their figures are written."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from lab.results import Origin, Row, read

from sparkdl_comm.errors import InputError

#: From so many samples on the middle half of them is told, else all.
QUARTILES_FROM = 8
#: Of fewer samples no verdict is made.
COMPARED_FROM = 3


class Data:
    """The results that one table is made from. It notes which files are used, all of which must be of one commit.

    :param folder: of the files NAME.json.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.origins: dict[str, Origin] = {}

    def rows(self, name: str, **wanted: object) -> list[Row]:
        """The rows of NAME.json whose fields are as wanted, in their order; none if it is not measured yet.

        :raises InputError: a row is not verified, or the code that was measured is not known: without a commit, or
            with other code than its commit's.
        """
        path = self._folder / f"{name}.json"
        if not path.exists():
            return []
        results = read(path)
        if results.origin.commit is None or results.origin.dirty:
            raise InputError(
                f"{path}: commit the code, and measure again: its commit is {results.origin.commit}, changed"
            )
        self.origins[name] = results.origin
        if wrong := [f"{row.case} {row.algorithm}" for row in results.rows if not row.verified]:
            raise InputError(f"{path}: not verified: {', '.join(wrong)}")
        return [row for row in results.rows if all(_value(row, key) == value for key, value in wanted.items())]

    def row(self, name: str, **wanted: object) -> Row | None:
        """The only such row, or None."""
        found = self.rows(name, **wanted)
        if len(found) > 1:
            raise InputError(f"{self._folder / name}.json: {len(found)} rows are {wanted}, and one is wanted")
        return found[0] if found else None

    def source(self) -> str:
        """One line: commit, date, machine.

        :raises InputError: the files used are of several commits, or of several machines.
        """
        for kind in ("commit", "cpu", "cores"):
            told = {getattr(origin, kind) for origin in self.origins.values()}
            if len(told) > 1:
                names = ", ".join(f"{name}: {getattr(origin, kind)}" for name, origin in self.origins.items())
                raise InputError(f"one table is of one {kind}, but {names}: measure those again that are older")
        first = min(self.origins.values(), key=lambda origin: origin.date)
        load = max(origin.load for origin in self.origins.values())
        return (
            f"Commit {(first.commit or '')[:7]}, {first.date[:10]}, {first.cores} cores of {first.cpu}, Linux {first.kernel}, "
            f"torch {first.versions.get('torch', '-')}, Spark {first.versions.get('pyspark', '-')}; "
            f"load before the runs at most {load:.1f}."
        )


def _value(row: Row, key: str) -> object:
    return getattr(row, key) if hasattr(row, key) else row.extra.get(key)


def spread(samples: Sequence[float]) -> tuple[float, float]:
    """The lower and the upper quartile, of few samples the least and the largest."""
    if len(samples) < QUARTILES_FROM:
        return min(samples), max(samples)
    lower, _, upper = statistics.quantiles(samples, n=4, method="inclusive")
    return lower, upper


def seconds(row: Row) -> str:
    """The median with what `spread` says: `0.161 s (0.160 to 0.163)`, or in ms."""
    values = [row.seconds, *spread(row.samples)]
    unit, factor = ("s", 1.0) if row.seconds >= 0.1 else ("ms", 1e3)
    middle, lower, upper = (f"{value * factor:.3g}" for value in values)
    return f"{middle} {unit} ({lower} to {upper})"


def with_theory(row: Row) -> str:
    return seconds(row) if row.ratio is None else f"{seconds(row)}, {row.ratio:.2f} x theory"


def beside(ours: Row, other: Row) -> str:
    """A verdict: `faster: 0.51 of its time`. Where the two spreads overlap, or samples are few, no difference is claimed."""
    if min(len(ours.samples), len(other.samples)) < COMPARED_FROM:
        return f"too few samples: {ours.seconds / other.seconds:.2f} of its time"
    (low, high), (other_low, other_high) = spread(ours.samples), spread(other.samples)
    word = "faster" if high < other_low else "slower" if low > other_high else "no difference shown"
    return f"{word}: {ours.seconds / other.seconds:.2f} of its time"


def of_paper(ours: float, paper: float, figure: str = "the paper's") -> str:
    """A verdict on the paper's figure, where more is better: `the paper's **missed**: 0.75 of it`."""
    word = "reached" if round(ours / paper, 2) >= 1 else "**missed**"
    return f"{figure} {word}: {ours / paper:.2f} of it"


def of_range(saved: float, least: float, most: float) -> str:
    """A verdict on a range of the paper's.

    :param saved: the share of time that ours saves. `least`, `most`: of the paper's, %.
    """
    percent = round(100 * saved, 1)
    if percent < least:
        return "**less than the paper's least**"
    return "within the paper's range" if percent <= most else "more than the paper's most"


def at_most(ratio: float, aim: float) -> str:
    """A verdict on an aim."""
    return f"reached: {ratio:.2f}" if round(ratio, 2) <= aim else f"**missed**: {ratio:.2f}"
