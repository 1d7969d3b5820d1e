"""The simulator of networks beside the lab, and what the lab cannot hold: the papers' figures at their sizes.

    python python/bench_sim.py --validate --json
    python python/bench_sim.py --scale --json
    python python/bench_sim.py --predict --json
    python python/bench_sim.py --blind --json

``--validate`` simulates cells that the lab has measured, whose results are in python/results: measured, simulated and error of
each, and of those that no parameter was fitted to the median and the worst error (see ``simulating/validation.py``).

``--scale`` simulates the BML paper's figure 5 at 1,024 servers with start-ups counted, and collectives of up to 64 ranks as in
the linear-pipeline paper's figure 4 (see ``simulating/scale.py``).

``--predict`` trains on the lab, predicts other networks and strategies from one fit's timeline, and trains there (see
``simulating/predicted.py``).

``--blind`` simulates collectives that were never measured, writes that down, and then measures them (see
``simulating/blind.py``).

Other seconds are virtual. Verified: no virtual time is below what links allow; what is measured has the right sums, or
weights.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator

from lab.arguments import parser as bench_parser
from lab.bench import Report, Row
from simulating import blind, predicted, scale, validation


def rows(options: Namespace, note: Callable[[str], None]) -> Iterator[Row]:
    if options.scale:
        return scale.rows(options)
    suite = blind if options.blind else predicted if options.predict else validation
    return suite.rows(options, note)


def main() -> int:
    parser = bench_parser(__doc__)
    for suite in (validation, scale, predicted, blind):
        suite.add_arguments(parser)
    options = parser.parse_args()
    if [options.validate, options.scale, options.predict, options.blind].count(True) != 1:
        parser.error("one of --validate, --scale, --predict and --blind")
    report = Report(json_to=options.json)
    return report.finish_after(rows(options, report.note))


if __name__ == "__main__":
    sys.exit(main())
