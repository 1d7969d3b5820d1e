"""MLfabric: how long its scheduler takes, and what it gains in virtual time.

    python python/bench_fabric.py --scheduler 10,100,500,1000 --json
    python python/bench_fabric.py --simulate --workers 30 --json

``--scheduler``: one batch of so many updates, from when they are all there to the decisions about them. See
``scheduled/batches.py`` for the setting, which is the paper's, and for what is verified.

``--simulate``: the paper's table of nine settings, stragglers C1 to C3 by networks N1 to N3, in virtual time, with real SGD
on a small model and transfers of the size of ResNet-50's gradients. See ``scheduled/settings.py``.
"""

from __future__ import annotations

import sys

from scheduled import batches, settings

from sparkdl_comm.lab.bench import Report
from sparkdl_comm.lab.bench import parser as bench_parser


def main() -> int:
    parser = bench_parser(__doc__)
    batches.add_arguments(parser)
    settings.add_arguments(parser)
    parser.add_argument("--seed", type=int, default=0, help="of everything that is drawn")
    options = parser.parse_args()
    if bool(options.scheduler) == options.simulate:
        parser.error("either --scheduler or --simulate")
    suite = settings if options.simulate else batches
    suite.check(parser, options)
    report = Report(json_to=options.json)
    for row in suite.rows(options):
        report.add(row)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
