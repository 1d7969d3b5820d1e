"""Makes the tables of the pages in python/results from the results beside them.

    python python/make_tables.py            # writes them
    python python/make_tables.py --check    # exit status 1 if a page is not what its results make
    python python/make_tables.py --commands lab    # prints the commands by which the page lab.md has its results measured

In a page a table is between the lines `<!-- table: NAME -->` and `<!-- end -->`; what is between them is replaced. NAME is
of tables/pages.py. A table whose results do not exist yet says so.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from tables.data import Data
from tables.pages import TABLES

from sparkdl_comm.errors import InputError

RESULTS = Path(__file__).parent / "results"
_MARKED = re.compile(r"(<!-- table: (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
_COMMAND = re.compile(r"^    (python (?:.*\\\n)*.*)$", re.MULTILINE)
_NONE = "*Not measured at a commit whose samples are kept; the commands below write them.*\n"


def made(page: str, folder: Path) -> str:
    """The page with its tables made from the results in a folder.

    :raises InputError: a table that is not known, a marker without its end, results that cannot stand in a table, or
        a command of them that the page does not tell.
    """
    if page.count("<!-- table:") != len(_MARKED.findall(page)) or page.count("<!-- end -->") != page.count(
        "<!-- table:"
    ):
        raise InputError("each `<!-- table: NAME -->` needs an `<!-- end -->`, both on lines of their own")
    return _MARKED.sub(lambda match: match[1] + _table(match[2], page, folder) + match[4], page)


def _table(name: str, page: str, folder: Path) -> str:
    if name not in TABLES:
        raise InputError(f"table {name!r}: must be one of {', '.join(TABLES)} (tables/pages.py)")
    table, data = TABLES[name], Data(folder)
    lines = list(table.lines(data))
    if not lines:
        return _NONE
    told = commands(page)
    for source, origin in data.origins.items():
        if origin.command not in told:
            raise InputError(f"{source}.json is what `{origin.command}` measured, which the page does not tell")
    cells = [table.columns, *(("---",) * len(table.columns),), *lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells) + f"\n{data.source()}\n"


def commands(page: str) -> list[str]:
    """The commands of a page's indented lines; long ones are broken by a backslash."""
    return [" ".join(found.replace("\\\n", " ").split()) for found in _COMMAND.findall(page)]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing")
    parser.add_argument("--folder", type=Path, default=RESULTS, help="of pages and results")
    parser.add_argument("--commands", metavar="PAGE", help="print those of a page")
    options = parser.parse_args(arguments)
    if options.commands:
        page = options.folder / f"{options.commands}.md"
        if not page.is_file():
            parser.error(f"--commands {options.commands}: there is no {page}")
        print("\n".join(commands(page.read_text())))
        return 0
    status = 0
    for path in sorted(options.folder.glob("*.md")):
        page = path.read_text()
        try:
            wanted = made(page, options.folder)
        except InputError as error:
            print(f"{path.name}: {error}", file=sys.stderr)
            status = 1
            continue
        if wanted != page and options.check:
            print(f"{path.name}: its tables are not what the results make: run `make tables`", file=sys.stderr)
            status = 1
        elif wanted != page:
            path.write_text(wanted)
            print(f"{path.name}: written")
    return status


if __name__ == "__main__":
    sys.exit(main())
