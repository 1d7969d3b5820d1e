"""MLfabric: how long its scheduler takes, and what it gains, in virtual time and on emulated hosts.

    python python/bench_fabric.py --scheduler 10,100,500,1000 --json
    python python/bench_fabric.py --simulate --workers 30 --json
    python python/bench_fabric.py --train --workers 6 --setting C2-N2 --systems fabric,ring,ddp,async --json
    python python/bench_fabric.py --lda --workers 6 --json

``--scheduler``: one batch of so many updates, from when they are all there to the decisions about them. See
``scheduled/batches.py`` for the setting, which is the paper's, and for what is verified.

``--simulate``: the paper's table of nine settings, stragglers C1 to C3 by networks N1 to N3, in virtual time, with real SGD
on a small model and transfers of the size of ResNet-50's gradients. See ``scheduled/settings.py``.

``--train`` and ``--lda``: seconds until digits are read, or topics found, so well, by the fabric and by others, over emulated
links that change their rates: see ``racing/lab.py``, and lab for what that needs.
"""

from __future__ import annotations

import sys

from lab.arguments import parser as bench_parser
from lab.bench import Report
from racing import lab
from scheduled import batches, settings


def main() -> int:
    parser = bench_parser(__doc__)
    batches.add_arguments(parser)
    settings.add_arguments(parser)
    lab.add_arguments(parser)
    parser.add_argument("--seed", type=int, default=0, help="of everything that is drawn")
    options = parser.parse_args()
    if sum(map(bool, (options.scheduler, options.simulate, options.train, options.lda))) != 1:
        parser.error("one of --scheduler, --simulate, --train and --lda")
    suite = batches if options.scheduler else settings if options.simulate else lab
    if suite is lab:
        parser.set_defaults(**lab.defaults(options))
        options = parser.parse_args()
    suite.check(parser, options)
    return Report(json_to=options.json).finish_after(suite.rows(options))


if __name__ == "__main__":
    sys.exit(main())
