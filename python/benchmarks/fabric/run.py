"""MLfabric: how long its scheduler takes, and what it gains, in virtual time and on emulated hosts.

    python python/benchmarks fabric --scheduler 10,100,500,1000 --json
    python python/benchmarks fabric --simulate --workers 30 --json
    python python/benchmarks fabric --train --workers 6 --setting C2-N2 --systems fabric,ring,ddp,async --json
    python python/benchmarks fabric --lda --workers 6 --json

``--scheduler``: seconds in which it decides on one batch of updates (``simulation/batches.py``).

``--simulate``: the paper's table of nine settings, stragglers C1 to C3 by networks N1 to N3, in virtual time
(``simulation/settings.py``).

``--train`` and ``--lda``: seconds until digits or topics are learned, by the fabric and by others, over emulated links
that change their rates (``races.py``). See lab for what they need.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence

from benchmarks.command import Note
from benchmarks.fabric import races
from benchmarks.fabric.conditions import setting_names
from benchmarks.fabric.simulation import batches, settings
from lab.arguments import positive
from lab.bench import Row


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    return (batches if options.scheduler else settings if options.simulate else races).rows(options)


def arguments(parser: ArgumentParser, words: Sequence[str]) -> Namespace:
    for suite in (batches, settings, races):
        suite.add_arguments(parser)
    common = parser.add_argument_group("of --simulate, --train and --lda")
    common.add_argument("--workers", type=positive, default=30, help="each on its own host; default: 30, in races 6")
    common.add_argument("--settings", type=setting_names, default=",".join(settings.PAPER), help="such as C1-N1,C2-N3")
    common.add_argument(
        "--systems",
        default="fabric-30,ring,ring-2,async",
        help="fabric-TAU, fabric-bsp, ring and async; simulated also ring-PASSES; trained also ddp",
    )
    common.add_argument("--computing", type=float, default=0.1, help="seconds of an iteration without slowdown")
    common.add_argument("--accuracy", type=float, default=0.8, help="goal; default: 0.8, in races 0.92")
    common.add_argument("--updates", type=int, default=0, help="that end a run; default: at the goal, in races enough")
    options = parser.parse_args(words)
    if sum(map(bool, (options.scheduler, options.simulate, options.train, options.lda))) != 1:
        parser.error("one of --scheduler, --simulate, --train and --lda")
    if options.train or options.lda:
        parser.set_defaults(**races.defaults(options))
        options = parser.parse_args(words)
    if options.quick:
        options.settings, options.repeats = options.settings[:1], 1
        options.scheduler = [min(100, updates) for updates in options.scheduler or []]
    if not options.scheduler:
        (settings if options.simulate else races).check(parser, options)
    return options
