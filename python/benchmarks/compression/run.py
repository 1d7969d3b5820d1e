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

import torch
from benchmarks.command import Note
from benchmarks.compression import selection, sums
from lab.arguments import fraction, link_rate, names_of, topology_of, whole_numbers
from lab.bench import Row

from sparkdl_comm.compress.selection import OPERATORS
from sparkdl_comm.errors import ConfError


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    return (sums if options.topology else selection).rows(options)


def arguments(parser: ArgumentParser, words: Sequence[str]) -> Namespace:
    parser.set_defaults(repeats=5)
    parser.add_argument("--counts", type=whole_numbers(), default="4194304", help="elements of the vector, float32")
    parser.add_argument("--density", type=fraction, default=0.001, help="k / elements, above 0, at most 1")
    alone = parser.add_argument_group("selection alone")
    alone.add_argument("--operators", type=names_of(OPERATORS), default=",".join(OPERATORS))
    alone.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="that has the vectors")
    whole = parser.add_argument_group("whole sums")
    whole.add_argument("--topology", type=topology_of, help="such as hosts:4x2")
    whole.add_argument("--rate", type=link_rate, default=200.0, help="Mbit/s of each host's link, each way")
    whole.add_argument("--algorithms", type=names_of(sums.NAMES), default="hitopk,naive-ag,tree-ar,torus2d")
    options = parser.parse_args(words)
    if options.quick:
        options.counts = [1 << 18]
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no GPU")
    if options.topology:
        options.topology = options.topology.with_rates(round(options.rate * 1e6))
        try:
            sums.check(options.topology, options.algorithms)
        except ConfError as error:
            parser.error(str(error))
    return options
