"""The simulator of networks beside the lab, and what the lab cannot hold: the papers' figures at their sizes.

    python python/bench_sim.py --validate --json
    python python/bench_sim.py --scale --json

``--validate`` simulates cells that the lab has measured, whose results are in python/results: measured, simulated and error of
each, and of those that no parameter was fitted to the median and the worst error (see ``simulating/validation.py``).

``--scale`` simulates the BML paper's figure 5 at 1,024 servers with start-ups counted, and collectives of up to 64 ranks as in
the linear-pipeline paper's figure 4 (see ``simulating/scale.py``).

Nothing is measured here: seconds are virtual. Verified: no time is below what links allow.
"""

from __future__ import annotations

import sys

from simulating import scale, validation

from sparkdl_comm.lab.arguments import parser as bench_parser
from sparkdl_comm.lab.bench import Report


def main() -> int:
    parser = bench_parser(__doc__)
    validation.add_arguments(parser)
    scale.add_arguments(parser)
    options = parser.parse_args()
    if options.validate == options.scale:
        parser.error("one of --validate and --scale")
    report = Report(json_to=options.json)
    rows = scale.rows(options) if options.scale else validation.rows(options, report.note)
    return report.finish_after(rows)


if __name__ == "__main__":
    sys.exit(main())
