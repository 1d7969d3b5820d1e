"""MLfabric: how long its scheduler takes, and what it gains, in virtual time and on emulated hosts.

    python python/benchmarks fabric --scheduler 10,100,500,1000 --json
    python python/benchmarks fabric --simulate --workers 30 --json
    python python/benchmarks fabric --train --workers 6 --setting C2-N2 --systems fabric,ring,ddp,async --json
    python python/benchmarks fabric --lda --workers 6 --json

``--scheduler``: one batch of so many updates, from when they are all there to the decisions about them. See
``simulation/batches.py`` for the setting, which is the paper's, and for what is verified.

``--simulate``: the paper's table of nine settings, stragglers C1 to C3 by networks N1 to N3, in virtual time, with real SGD
on a small model and transfers of the size of ResNet-50's gradients. See ``simulation/settings.py``.

``--train`` and ``--lda``: seconds until digits are read, or topics found, so well, by the fabric and by others, over emulated
links that change their rates: see ``races.py``, and lab for what that needs.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence

from benchmarks.command import Note
from benchmarks.fabric import races
from benchmarks.fabric.simulation import batches, settings
from lab.bench import Row


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    return (batches if options.scheduler else settings if options.simulate else races).rows(options)


def arguments(parser: ArgumentParser, words: Sequence[str]) -> Namespace:
    for suite in (batches, settings, races):
        suite.add_arguments(parser)
    parser.add_argument("--seed", type=int, default=0, help="of everything that is drawn")
    options = parser.parse_args(words)
    if sum(map(bool, (options.scheduler, options.simulate, options.train, options.lda))) != 1:
        parser.error("one of --scheduler, --simulate, --train and --lda")
    if options.train or options.lda:
        parser.set_defaults(**races.defaults(options))
        options = parser.parse_args(words)
    (batches if options.scheduler else settings if options.simulate else races).check(parser, options)
    return options
