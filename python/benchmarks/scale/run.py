"""The simulator of networks beside the lab, and the papers' figures at sizes that the lab cannot hold.

    python python/benchmarks scale --validate --json
    python python/benchmarks scale --scale --json
    python python/benchmarks scale --predict --json
    python python/benchmarks scale --blind --json

``--validate`` simulates the cells of other pages. It notes the median and the worst error (see ``validation.py``).

``--scale`` simulates figures of the papers (see ``figures.py``).

``--predict`` predicts other networks and strategies from one fit's timeline, and then trains there (see
``prediction.py``).

``--blind`` simulates collectives that were never measured, writes the predictions down, and then measures (see
``blind.py``).

Verified: no virtual time is below the links' bound; measured collectives and fits have the right sums, or weights.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence

from benchmarks.command import Note
from benchmarks.scale import blind, figures, prediction, validation
from lab.bench import Row

from sparkdl_comm.sim.profile import shipped

#: Option -> suite.
SUITES = {"--validate": validation, "--scale": figures, "--predict": prediction, "--blind": blind}


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    yield from options.suite.rows(options, note)


def arguments(parser: ArgumentParser, words: Sequence[str]) -> Namespace:
    suites = parser.add_mutually_exclusive_group(required=True)
    for name, suite in SUITES.items():
        suites.add_argument(name, dest="suite", action="store_const", const=suite)
    parser.add_argument("--network", choices=shipped(), default="googlenet", help="of --predict")
    return parser.parse_args(words)
