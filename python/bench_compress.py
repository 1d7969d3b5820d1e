"""Compressed gradients: how long selecting their largest elements takes, and how long whole sums of them.

    python python/bench_compress.py --operators mstopk,exact,topk,dgc --counts 4194304 --density 0.001 --json
    python python/bench_compress.py --topology hosts:4x2 --rate 200 --counts 25000000 --density 0.01 --json

Selection alone, beside torch.topk: one process, float32, on the CPU with as many threads as torch takes (OMP_NUM_THREADS), or,
with ``--device cuda``, on a GPU.
Theory is one pass over the vector, the time of its sum in the same run: no operator that looks at every element takes less.
Vectors are Gaussian, or gradient-like: Gaussian rows of 1024, each with a scale of its own that varies by orders of
magnitude, a tenth of them zero.

Verified: every repeat selects exactly k distinct elements, among them all above the operator's upper threshold; exact
operators select the magnitudes that torch.topk does.

Whole sums, with ``--topology``, are of Gaussian gradients, on emulated hosts whose links have the rate: see lab
for what that needs. Theory is what the NIC of a host must take in. Verified: all ranks end with the same bits, which are
those of a sum made on one rank.
"""

from __future__ import annotations

import sys

from compressed import exchanging, selecting
from lab.arguments import parser as bench_parser
from lab.bench import Report


def main() -> int:
    parser = bench_parser(__doc__)
    parser.set_defaults(repeats=5)
    selecting.add_arguments(parser)
    exchanging.add_arguments(parser)
    options = parser.parse_args()
    selecting.check(parser, options)
    if options.topology:
        exchanging.check(parser, options)
    suite = exchanging if options.topology else selecting
    return Report(json_to=options.json).finish_after(suite.rows(options))


if __name__ == "__main__":
    sys.exit(main())
