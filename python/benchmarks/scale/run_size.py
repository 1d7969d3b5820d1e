"""What a gang costs at its size: the driver, rank 0 and any other rank, with 8 to 1,024 ranks on the loopback interface.

    python python/benchmarks scale/size --json

The driver's listener, its rendezvous, rank 0 with the control connections and the key-value store, and rank 1 are the real
ones, each in a process of its own; all other ranks are threads of one process, which register, connect and gather as ranks
do, but have no gang of their own. For each of the three: processor seconds (those are what `seconds` has), memory, bytes
through its sockets, messages, connections and threads, from its start until all are in, and for each gathering of 100 bytes
per rank, such as there is one for each epoch. While training a rank sends nothing of all this but rank 0 a heartbeat to the
driver, one a second, and progress, five a second at most, whatever the number of ranks.

Verified: all ranks are in, and each gathering had what all gave.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.command import Note
from lab.arguments import positive, whole_numbers
from lab.bench import Row, versions

from sparkdl_comm.errors import LabError

PROGRAM = Path(__file__).with_name("member.py")


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    for world in options.ranks:
        driver, first, other = _run(world, options)
        yield _row("rendezvous", "driver", world, driver["rendezvous"])
        for algorithm, told in (("rank 0", first), ("rank 1", other)):
            yield _row("join", algorithm, world, told["join"])
            each = {name: told["gather"][name] / options.gathers for name in ("cpu", "elapsed", "bytes", "messages")}
            yield _row("gather", algorithm, world, {**told["gather"], **each})


def _run(world: int, options: Namespace) -> list[dict[str, Any]]:
    """What the driver, rank 0 and rank 1 tell."""
    with contextlib.ExitStack() as started:

        def start(*arguments: object) -> subprocess.Popen[str]:
            command = [sys.executable, str(PROGRAM), *map(str, arguments)]
            pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
            process = started.enter_context(subprocess.Popen(command, text=True, **pipes))
            started.callback(process.kill)
            return process

        driver = start("driver", world)
        port = int(driver.stdout.readline())
        crowd = start("crowd", world, port, options.gathers)
        ranks = [start("rank", world, port, options.gathers, rank) for rank in (0, 1)]
        _, *told = [_told(process, options.timeout) for process in (crowd, *ranks)]
        return [_told(driver, options.timeout, "end\n"), *told]


def _told(process: subprocess.Popen[str], timeout: float, last: str | None = None) -> dict[str, Any]:
    """What it tells after it was told ``last``.

    :raises LabError: it failed, or does not end.
    """
    try:
        out, err = process.communicate(last, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise LabError(f"{process.args} did not end within {timeout:g} s") from None
    if process.returncode:
        raise LabError(f"{process.args} ended with status {process.returncode}: {err[-1000:]}")
    return dict(json.loads(out))


def _row(case: str, algorithm: str, world: int, told: Mapping[str, float]) -> Row:
    return Row(
        suite="size",
        case=case,
        algorithm=algorithm,
        topology="loopback",
        rate_mbit=None,
        world=world,
        bytes=round(told["bytes"]),
        samples=[told["cpu"]],
        verified=True,
        versions=versions("sparkdl_comm"),
        extra={name: told[name] for name in ("elapsed", "memory", "messages", "files", "threads")},
    )


def arguments(parser: ArgumentParser, words: Sequence[str]) -> Namespace:
    parser.add_argument("--ranks", type=whole_numbers(2), default="8,64,512,1024", help="of a gang, one after another")
    parser.add_argument("--gathers", type=positive, default=5, help="that are counted")
    parser.add_argument("--timeout", type=float, default=240.0, help="seconds for one gang")
    options = parser.parse_args(words)
    if options.quick:
        options.ranks, options.gathers = [4, 8], 2
    return options
