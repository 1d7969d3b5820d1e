"""The simulator of networks beside the lab, and what the lab cannot hold: the papers' figures at their sizes.

    python python/benchmarks scale --validate --json
    python python/benchmarks scale --scale --json
    python python/benchmarks scale --predict --json
    python python/benchmarks scale --blind --json

``--validate`` simulates cells that the lab has measured, which pages tell: measured, simulated and error of
each, and of those that no parameter was fitted to the median and the worst error (see ``validation.py``).

``--scale`` simulates the BML paper's figure 5 at 1,024 servers with start-ups counted, and collectives of up to 64 ranks as in
the linear-pipeline paper's figure 4 (see ``figures.py``).

``--predict`` trains on the lab, predicts other networks and strategies from one fit's timeline, and trains there (see
``prediction.py``).

``--blind`` simulates collectives that were never measured, writes that down, and then measures them (see
``blind.py``).

Other seconds are virtual. Verified: no virtual time is below what links allow; what is measured has the right sums, or
weights.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence

from benchmarks.command import Note
from benchmarks.scale import blind, figures, prediction, validation
from lab.bench import Row

#: By their options.
SUITES = {"validate": validation, "scale": figures, "predict": prediction, "blind": blind}


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    [suite] = [suite for name, suite in SUITES.items() if getattr(options, name)]
    return suite.rows(options, note)


def arguments(parser: ArgumentParser, words: Sequence[str]) -> Namespace:
    for suite in SUITES.values():
        suite.add_arguments(parser)
    options = parser.parse_args(words)
    if [getattr(options, name) for name in SUITES].count(True) != 1:
        parser.error("one of --validate, --scale, --predict and --blind")
    return options
