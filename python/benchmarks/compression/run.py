"""Compressed gradients: how long selecting their largest elements takes, and how long whole sums of them.

    python python/benchmarks compression --operators mstopk,exact,topk,dgc --counts 4194304 --density 0.001 --json
    python python/benchmarks compression --topology hosts:4x2 --rate 200 --counts 25000000 --density 0.01 --json

Selection alone, beside torch.topk: one process, float32, on the CPU with torch's number of threads (OMP_NUM_THREADS), or on
a GPU with ``--device cuda``. Theory is the vector's sum in the same run, one pass. Vectors are Gaussian, or gradient-like:
rows of 1024 with scales that vary by orders of magnitude, a tenth of them zero. See ``selection.py``.

Whole sums, with ``--topology``, are of Gaussian gradients on emulated hosts. Theory is the traffic into the NIC of a host.
Verified: all ranks end with the same bits, those of a sum made on one rank. See ``sums.py``, and lab for what it needs.
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
