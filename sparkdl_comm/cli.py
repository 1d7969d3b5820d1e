"""The console script ``sparkdl-comm``: the sub-commands of the modules in COMMANDS.

Each of these modules has ``add_parser(commands)``. It adds sub-commands to an argparse object, and sets the default
``call`` of each: a function of the parsed options that returns the exit status. The modules import what they need when
called.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from sparkdl_comm import __version__
from sparkdl_comm.errors import SparkdlCommError

#: Modules of sub-commands, in the order that --help lists them.
COMMANDS = ("sparkdl_comm.report.commands", "sparkdl_comm.data.local_disk")


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="sparkdl-comm", description="Deep learning on Spark: tools beside the estimator."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for module in COMMANDS:
        import_module(module).add_parser(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line of ``sparkdl-comm``; see :func:`run`."""
    return run(make_parser(), arguments)


def run(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> int:
    """Run a command line. Return 0 on success, 1 after an error of this package, which is printed on one line."""
    options = parser.parse_args(arguments)
    try:
        return int(options.call(options))
    except SparkdlCommError as error:
        print(f"{parser.prog}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
