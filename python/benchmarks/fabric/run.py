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
from pathlib import Path

from benchmarks.command import Note
from benchmarks.fabric import races
from benchmarks.fabric.conditions import setting_names
from benchmarks.fabric.simulation import batches, settings
from lab.arguments import numbers, positive, whole_numbers
from lab.bench import Row


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    return (batches if options.scheduler else settings if options.simulate else races).rows(options)


def arguments(parser: ArgumentParser, words: Sequence[str]) -> Namespace:
    suites = parser.add_mutually_exclusive_group(required=True)
    suites.add_argument("--scheduler", type=whole_numbers(), metavar="UPDATES", help="sizes of batches, such as 10,100")
    for name in ("--simulate", "--train", "--lda"):
        suites.add_argument(name, action="store_true")
    simulated = parser.add_argument_group("of --simulate")
    simulated.add_argument(
        "--bytes", type=positive, default=100_000_000, help="of an update and of the model; default: ResNet-50's"
    )
    simulated.add_argument(
        "--as-raced", type=Path, metavar="RESULTS", help="use the draws of --train, and show its seconds"
    )
    simulated.add_argument(
        "--lag", type=numbers, default="0.2", help="seconds until a new rate is reported; a row for each"
    )
    simulated.add_argument(
        "--divergence",
        type=numbers,
        default=[None],
        help="bound on the distance of the server's replica; a row for each",
    )
    documents = parser.add_argument_group("of --lda")
    documents.add_argument("--perplexity", type=float, default=670.0, help="goal")
    documents.add_argument("--words", type=int, default=4000, help="most frequent words that are used")
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
    if options.train or options.lda:
        parser.set_defaults(**races.defaults(options))
        options = parser.parse_args(words)
    if options.quick:
        options.settings = options.settings[:1]
        options.scheduler = [min(100, updates) for updates in options.scheduler or []]
    if not options.scheduler:
        (settings if options.simulate else races).check(parser, options)
    return options
