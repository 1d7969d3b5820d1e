"""Make the tables and charts of the pages from the results beside them.

    python python/benchmarks tables                   # writes them.
    python python/benchmarks tables --check           # has exit status 1 if a page differs from its results.
    python python/benchmarks tables --commands lab    # prints the commands that measure the results of the page `lab`.

A page is README.md, and appendix.md if there is one. Lines between `<!-- table: NAME -->` and `<!-- end -->` are
replaced by the table. NAME is a key of TABLES in the page's table.py. A table without results says so. A function
`chart` of table.py makes the page's chart.svg.
"""

from __future__ import annotations

import argparse
import functools
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

from lab.results import Origin, Results, Row, read

from benchmarks import charts
from sparkdl_comm.errors import InputError

PAGES = Path(__file__).parent
MIB = 1 << 20
#: From this number of samples on, tables show the middle half. Of fewer samples they show the whole range.
QUARTILES_FROM = 8
#: Minimum number of samples for a verdict.
COMPARED_FROM = 3

#: Columns of many tables.
PAPER = ("", "paper", "ours", "verdict")
PEER = ("", "in the same run", "ours", "verdict")

Line = tuple[str, ...]
_MARKED = re.compile(r"(<!-- table: (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
_COMMAND = re.compile(r"^    (python (?:.*\\\n)*.*)$", re.MULTILINE)
#: Sentence about the origins of a summary's rows.
ABOUT_SUMMARY = "Each row is of one commit and one machine. [The appendix](appendix.md) names both."
_NONE = "*Not measured at a commit whose samples are kept; the commands below write them.*\n"


@functools.cache
def _read_checked(path: Path) -> Results:
    """Return the results of a file. It is parsed once: a page's tables have many rows of one file.

    :raises InputError: a row is not verified, or the measured code is not that of a commit.
    """
    results = read(path)
    if results.origin.commit is None or results.origin.dirty:
        raise InputError(f"{path}: commit the code, and measure again: its commit is {results.origin.commit}, changed")
    if wrong := [f"{row.case} {row.algorithm}" for row in results.rows if not row.verified]:
        raise InputError(f"{path}: not verified: {', '.join(wrong)}")
    return results


class Data:
    """Results for one table. All files that it reads must be of one commit.

    :param folder: folder of the pages. Results are in PAGE/results/NAME.json.
    """

    def __init__(self, folder: Path = PAGES) -> None:
        self._folder = folder
        self.origins: dict[str, Origin] = {}

    def rows(self, name: str, **wanted: object) -> list[Row]:
        """Return the rows of NAME.json with the wanted fields, in their order. Without the file there are none.

        :raises InputError: a row is not verified, or the measured code is not that of a commit.
        """
        path = next(self._folder.glob(f"*/results/{name}.json"), None)
        if path is None:
            return []
        results = _read_checked(path)
        self.origins[name] = results.origin
        return [row for row in results.rows if all(_value(row, key) == value for key, value in wanted.items())]

    def row(self, name: str, **wanted: object) -> Row | None:
        """Return the only row with the wanted fields, or None."""
        found = self.rows(name, **wanted)
        if len(found) > 1:
            raise InputError(f"{name}.json: {len(found)} rows are {wanted}. One is wanted.")
        return found[0] if found else None

    def pairs(
        self, name: str, rivals: Mapping[str, Sequence[str]] | Sequence[str], *same: str
    ) -> Iterator[tuple[Row, Row]]:
        """Yield each row of NAME.json with the row of each rival, in the order of the file.

        :param rivals: the rivals of all other algorithms, or a mapping from an algorithm to its rivals.
        :param same: fields in which both rows agree.
        """
        for ours in self.rows(name):
            for rival in rivals.get(ours.algorithm, ()) if isinstance(rivals, Mapping) else rivals:
                other = self.row(name, algorithm=rival, **{key: _value(ours, key) for key in same})
                if other and rival != ours.algorithm:
                    yield ours, other

    def source(self) -> str:
        """Return one line: commit, date, machine.

        :raises InputError: the files used are of several commits, or of several machines.
        """
        for kind in ("commit", "cpu", "cores"):
            if len({getattr(origin, kind) for origin in self.origins.values()}) > 1:
                names = ", ".join(f"{name}: {getattr(origin, kind)}" for name, origin in self.origins.items())
                raise InputError(f"one table is of one {kind}, but {names}. Measure the older results again.")
        first = min(self.origins.values(), key=lambda origin: origin.date)
        load = max(origin.load for origin in self.origins.values())
        return (
            f"Commit {(first.commit or '')[:7]}, {first.date[:10]}, {first.cores} cores of {first.cpu}, Linux {first.kernel}, "
            f"torch {first.versions.get('torch', '-')}, Spark {first.versions.get('pyspark', '-')}; "
            f"load before the runs at most {load:.1f}."
        )


@dataclass(frozen=True)
class Table:
    """A table: its columns, and a function that makes its lines from results. Without results there are no lines.

    :param make: function of the data, or of the data and a part.
    :param parts: names of the table's parts, one after another: of results, as a rule.
    :param about_origins: sentence that replaces commit and machine, for results of several commits. Other tables of the
        page have these results too.
    """

    columns: Line
    make: Callable[..., Iterable[Line]]
    parts: Sequence[str] = ()
    about_origins: str = ""

    def lines(self, data: Data) -> Iterator[Line]:
        if not self.parts:
            yield from self.make(data)
        for part in self.parts:
            yield from self.make(data, part)


def summary(known: Mapping[str, Table], picks: Sequence[tuple[str, str, str, str]]) -> Table:
    """Return a table with lines of other tables.

    :param picks: for each group of lines a prefix for the first cell, the table, and the beginnings of the first and
        the second cell.
    """

    def lines(data: Data) -> Iterator[Line]:
        for what, name, about, peer in picks:
            for line in known[name].lines(data):
                if line[0].startswith(about) and line[1].startswith(peer):
                    yield what + line[0], *line[1:]

    return Table(("", "paper or peer", "ours", "verdict"), lines, about_origins=ABOUT_SUMMARY)


def _module(page: str) -> ModuleType:
    return import_module(f"benchmarks.{page}.table")


def tables(page: str) -> dict[str, Table]:
    """Return the tables of a page by name."""
    found: dict[str, Table] = _module(page).TABLES
    return found


def render(name: str, text: str, known_commands: Sequence[str], folder: Path = PAGES) -> str:
    """Return the text of a page's file with its tables made from results.

    :param name: name of the page.
    :param known_commands: commands of the page.
    :param folder: folder of the pages.
    :raises InputError: an unknown table, a marker without its end, results that are not verified or of no commit, or
        results whose command is not on the page.
    """
    if not len(_MARKED.findall(text)) == text.count("<!-- table:") == text.count("<!-- end -->"):
        raise InputError("each `<!-- table: NAME -->` needs an `<!-- end -->`. Put each of them on its own line.")
    known = tables(name)

    def table(match: re.Match[str]) -> str:
        if match[2] not in known:
            raise InputError(f"table {match[2]!r}: must be one of {', '.join(known)} ({name}/table.py)")
        return match[1] + _lines(known[match[2]], known_commands, Data(folder)) + match[4]

    return _MARKED.sub(table, text)


def _lines(table: Table, known_commands: Sequence[str], data: Data) -> str:
    lines = list(table.lines(data))
    if not lines:
        return _NONE
    known = [_options(command) for command in known_commands]
    for source, origin in data.origins.items():
        if _options(origin.command) not in known:
            raise InputError(f"{source}.json is what `{origin.command}` measured. Add this command to the page.")
    cells = [table.columns, *(("---",) * len(table.columns),), *lines]
    about = table.about_origins or data.source()
    return "".join(f"| {' | '.join(line)} |\n" for line in cells) + f"\n{about}\n"


def files(page: Path) -> list[Path]:
    """Return the Markdown files of a page."""
    return [path for path in (page / "README.md", page / "appendix.md") if path.is_file()]


def commands(page: Path) -> list[str]:
    """Return the commands in a page's indented lines. A backslash continues a line."""
    found = [each for path in files(page) for each in _COMMAND.findall(path.read_text())]
    return [" ".join(each.replace("\\\n", " ").split()) for each in found]


def _options(command: str) -> list[str]:
    """Return a command's options without folders: programs and files may have moved since."""
    words = command.split()
    first = next((index for index, word in enumerate(words) if word.startswith("--")), len(words))
    return [Path(word).name if "/" in word else word for word in words[first:]]


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python python/benchmarks tables",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", action="store_true", help="change nothing")
    parser.add_argument("--folder", type=Path, default=PAGES, help="folder of the pages")
    parser.add_argument("--commands", metavar="PAGE", help="print the commands of a page")
    options = parser.parse_args(words)
    if options.commands:
        page = options.folder / options.commands
        if not files(page):
            parser.error(f"--commands {options.commands}: there is no {page}/README.md.")
        print("\n".join(commands(page)))
        return 0
    status = 0
    for page in sorted(path.parent for path in options.folder.glob("*/README.md")):
        try:
            wanted = _wanted(page, options.folder)
        except InputError as error:
            print(f"{page.name}: {error}", file=sys.stderr)
            status = 1
            continue
        for path, text in wanted.items():
            if path.is_file() and path.read_text() == text:
                continue
            if options.check:
                print(f"{page.name}/{path.name} is not what the results make: run `make tables`", file=sys.stderr)
                status = 1
            else:
                path.write_text(text)
                print(f"{page.name}/{path.name}: written")
    return status


def _wanted(page: Path, folder: Path) -> dict[Path, str]:
    """Return the text that each file of a page must have."""
    known_commands = commands(page)
    found = {path: render(page.name, path.read_text(), known_commands, folder) for path in files(page)}
    chart = _module(page.name).chart(Data(folder)) if hasattr(_module(page.name), "chart") else None
    if chart and any(bars for _, bars in chart.groups):
        found[page / "chart.svg"] = charts.svg(chart)
    return found


def _value(row: Row, key: str) -> object:
    return getattr(row, key) if hasattr(row, key) else row.extra.get(key)


def spread(samples: Sequence[float]) -> tuple[float, float]:
    """Return the lower and the upper quartile, or the least and the largest of few samples."""
    if len(samples) < QUARTILES_FROM:
        return min(samples), max(samples)
    lower, _, upper = statistics.quantiles(samples, n=4, method="inclusive")
    return lower, upper


def seconds(row: Row) -> str:
    """Return the median with the spread: `0.161 s (0.160 to 0.163)`, or in ms."""
    values = [row.seconds, *spread(row.samples)]
    unit, factor = ("s", 1.0) if row.seconds >= 0.1 else ("ms", 1e3)
    middle, lower, upper = (f"{value * factor:.3g}" for value in values)
    return f"{middle} {unit} ({lower} to {upper})"


def bar(row: Row, series: str = "", unit: float = 1.0) -> charts.Bar:
    """Return a bar for a chart: the median and the spread, in units of ``unit`` seconds."""
    low, high = spread(row.samples)
    return charts.Bar(series or row.algorithm, row.seconds / unit, low / unit, high / unit)


def with_theory(row: Row) -> str:
    return seconds(row) if row.ratio is None else f"{seconds(row)}, {row.ratio:.2f} x theory"


def beside(ours: Row, other: Row) -> str:
    """Return a verdict, such as `faster: 0.51 of its time`.

    No difference is claimed if the two spreads overlap or samples are few.
    """
    if min(len(ours.samples), len(other.samples)) < COMPARED_FROM:
        return f"too few samples: {ours.seconds / other.seconds:.2f} of its time"
    (low, high), (other_low, other_high) = spread(ours.samples), spread(other.samples)
    word = "faster" if high < other_low else "slower" if low > other_high else "no difference shown"
    return f"{word}: {ours.seconds / other.seconds:.2f} of its time"


def of_paper(ours: float, paper: float, figure: str = "the paper's") -> str:
    """Return a verdict on a figure where more is better: `the paper's **missed**: 0.75 of it`."""
    word = "reached" if round(ours / paper, 2) >= 1 else "**missed**"
    return f"{figure} {word}: {ours / paper:.2f} of it"


def at_most(ratio: float, aim: float) -> str:
    """Return a verdict on an aim where less is better: `**missed**: 1.09`."""
    return f"reached: {ratio:.2f}" if round(ratio, 2) <= aim else f"**missed**: {ratio:.2f}"
