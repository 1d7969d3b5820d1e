"""Cost of a gang at its size: the driver, rank 0 and any other rank, with 8 to 1,024 ranks on the loopback interface.

    python python/benchmarks scale/size --json

The driver's listener with its rendezvous, rank 0 with control connections and key-value store, and rank 1 each have a
process. The other ranks are threads of one process, which register, connect and gather like ranks, but have no Gang.

Rows have processor seconds (as `seconds`), peak memory, bytes through sockets, messages and open files: from the start
until all ranks are in, and for each gathering of 100 bytes per rank. A fit has one such gathering per epoch. During
training only rank 0 talks to the driver: a heartbeat each second, and progress at most five times a second.

Verified: all ranks are in, and each gathering had the contributions of all.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.command import Note
from lab.bench import Row

from sparkdl_comm.errors import LabError

PROGRAM = Path(__file__).with_name("member.py")
#: Numbers of ranks, gatherings, and seconds for one gang.
WORLDS, GATHERINGS, TIMEOUT = (8, 64, 512, 1024), 5, 240.0


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    worlds, gatherings = ((4, 8), 2) if options.quick else (WORLDS, GATHERINGS)
    for world in worlds:
        driver, first, other = _run(world, gatherings)
        yield _row("rendezvous", "driver", world, driver["rendezvous"])
        for algorithm, used in (("rank 0", first), ("rank 1", other)):
            yield _row("join", algorithm, world, used["join"])
            each = {name: used["gather"][name] / gatherings for name in ("cpu", "bytes", "messages")}
            yield _row("gather", algorithm, world, {**used["gather"], **each})


def _run(world: int, gatherings: int) -> list[dict[str, Any]]:
    """Run a gang. Return the usage of the driver, of rank 0 and of rank 1."""
    with contextlib.ExitStack() as started:

        def start(*arguments: object) -> subprocess.Popen[str]:
            command = [sys.executable, str(PROGRAM), *map(str, arguments)]
            pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
            process = started.enter_context(subprocess.Popen(command, text=True, **pipes))
            started.callback(process.kill)
            return process

        driver = start("driver", world)
        port = int(driver.stdout.readline())
        crowd = start("crowd", world, port, gatherings)
        ranks = [start("rank", world, port, gatherings, rank) for rank in (0, 1)]
        _, *used = [_result(process) for process in (crowd, *ranks)]
        return [_result(driver, "end\n"), *used]


def _result(process: subprocess.Popen[str], last: str | None = None) -> dict[str, Any]:
    """Send a process its ``last`` input. Return the JSON that it prints.

    :raises LabError: the process failed, or did not end in time.
    """
    try:
        out, err = process.communicate(last, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        raise LabError(f"{process.args} did not end within {TIMEOUT:g} s") from None
    if process.returncode:
        raise LabError(f"{process.args} ended with status {process.returncode}: {err[-1000:]}")
    return dict(json.loads(out))


def _row(case: str, algorithm: str, world: int, used: Mapping[str, float]) -> Row:
    return Row(
        suite="size",
        case=case,
        algorithm=algorithm,
        world=world,
        bytes=round(used["bytes"]),
        samples=[used["cpu"]],
        verified=True,
        extra={name: used[name] for name in ("memory", "messages", "files")},
    )
