"""The console script ``sparkdl-comm``: one sub-command per module of COMMANDS.

A module here has ``add_parser(commands)``: it adds its sub-command to an argparse object and sets the default ``call``, a
function of the parsed options that returns the exit status. Such modules import what they need when called.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from sparkdl_comm import __version__
from sparkdl_comm.errors import SparkdlCommError

#: Modules of sub-commands, in the order that --help lists them.
COMMANDS = (
    "sparkdl_comm.lab.commands",
    "sparkdl_comm.report.explain_command",
    "sparkdl_comm.report.plan_command",
    "sparkdl_comm.report.predict_command",
)


def parser() -> argparse.ArgumentParser:
    """Of the whole command line."""
    made = argparse.ArgumentParser(
        prog="sparkdl-comm", description="Deep learning on Spark: tools beside the estimator."
    )
    made.add_argument("--version", action="version", version=__version__)
    commands = made.add_subparsers(metavar="COMMAND", required=True)
    for module in COMMANDS:
        import_module(module).add_parser(commands)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line; 0 if it worked, 1 after an error of this package, which is shown in one line."""
    options = parser().parse_args(arguments)
    try:
        return int(options.call(options))
    except SparkdlCommError as error:
        print(f"sparkdl-comm: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
