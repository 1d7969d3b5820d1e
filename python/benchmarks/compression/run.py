"""Compressed gradients: how long selecting their largest elements takes, and how long whole sums of them.

    python python/benchmarks compression --operators mstopk,exact,topk,dgc --counts 4194304 --density 0.001 --json
    python python/benchmarks compression --topology hosts:4x2 --rate 200 --counts 25000000 --density 0.01 --json

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

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence

from benchmarks.command import Note
from benchmarks.compression import selection, sums
from lab.bench import Row


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    return (sums if options.topology else selection).rows(options)


def arguments(parser: ArgumentParser, words: Sequence[str]) -> Namespace:
    parser.set_defaults(repeats=5)
    selection.add_arguments(parser)
    sums.add_arguments(parser)
    options = parser.parse_args(words)
    selection.check(parser, options)
    if options.topology:
        sums.check(parser, options)
    return options
