"""The command line of all benchmarks.

    python python/benchmarks                        # lists them
    python python/benchmarks NAME --help            # shows the options of one
    python python/benchmarks tables --check         # see tables.py

NAME is PAGE, for the benchmark ``PAGE/run.py``, or PAGE/OTHER, for ``PAGE/run_OTHER.py``. The file has a function
``rows(options, note)``. It yields the measured rows, and ``note`` prints a line beside them. For options of its own the
file has ``arguments(parser, words)``, which adds them to a parser, parses the words and returns the checked options.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

from lab.arguments import parser
from lab.bench import Report

PAGES = Path(__file__).parent
Note = Callable[[str], None]


def names() -> list[str]:
    """Return the names of all benchmarks."""
    files = sorted(PAGES.glob("*/run*.py"))
    return [path.parent.name + path.stem.removeprefix("run").replace("_", "/", 1) for path in files]


def bench(name: str) -> ModuleType:
    """Import a benchmark.

    :raises KeyError: no benchmark has this name.
    """
    if name not in names():
        raise KeyError(name)
    page, _, other = name.partition("/")
    return import_module(f"benchmarks.{page}.run{'_' * bool(other)}{other}")


def main(words: Sequence[str]) -> int:
    """Run a benchmark, or make tables. Return the exit status."""
    name, *rest = words or [""]
    if name == "tables":
        return import_module("benchmarks.tables").main(rest)
    try:
        module = bench(name)
    except KeyError:
        print(__doc__, "Benchmarks: ", ", ".join(names()), sep="\n" if not name else "", file=sys.stderr)
        return int(bool(name)) * 2
    asked = parser(module.__doc__)
    asked.prog = f"python python/benchmarks {name}"
    options = module.arguments(asked, rest) if hasattr(module, "arguments") else asked.parse_args(rest)
    if options.quick:
        options.repeats = 1
    report = Report(json_to=options.json)
    return report.finish_after(module.rows(options, report.note))
