"""Compressed gradients: how long selecting their largest elements takes, beside torch.topk and one pass over memory.

    python python/bench_compress.py --operators mstopk,exact,topk,dgc --counts 4194304 --density 0.001 --json

One process, on the CPU, float32, with as many threads as torch takes (OMP_NUM_THREADS). Theory is one pass over the vector,
the time of its sum in the same run: no operator that looks at every element takes less. Vectors are Gaussian, or
gradient-like: Gaussian rows of 1024, each with a scale of its own that varies by orders of magnitude, a tenth of them zero.

Verified: every repeat selects exactly k distinct elements, among them all above the operator's upper threshold; exact
operators select the magnitudes that torch.topk does.
"""

from __future__ import annotations

import sys

from compressed import selecting

from sparkdl_comm.lab.bench import Report
from sparkdl_comm.lab.bench import parser as bench_parser


def main() -> int:
    parser = bench_parser(__doc__)
    parser.set_defaults(repeats=5)
    selecting.add_arguments(parser)
    options = parser.parse_args()
    selecting.check(parser, options)
    report = Report(json_to=options.json)
    for row in selecting.rows(options):
        report.add(row)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
