"""Compressed gradients: how long selecting their largest elements takes, and how long whole sums of them.

    python python/benchmarks compression --operators mstopk,exact,topk,dgc --counts 4194304 --density 0.001 --json
    python python/benchmarks compression --topology hosts:4x2 --rate 200 --counts 25000000 --density 0.01 --json

Selection alone, beside torch.topk: one process, float32, on the CPU with torch's number of threads (OMP_NUM_THREADS), or on
a GPU with ``--device cuda``. Theory is the vector's sum in the same run, one pass. Vectors are Gaussian, or gradient-like:
rows of 1024 with scales that vary by orders of magnitude, a tenth of them zero. Verified in every timed repeat: exactly k
distinct indices, ascending, among them all elements above the operator's upper threshold. Exact operators select the
magnitudes of torch.topk.

Whole sums, with ``--topology``, are of Gaussian gradients on emulated hosts. Theory is the traffic into the NIC of a host.
Verified: all ranks end with the same bits, those of a sum made on one rank. See ``sums.py``, and lab for what it needs.
"""

from __future__ import annotations

import statistics
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from benchmarks.command import Note
from benchmarks.compression import sums
from lab.arguments import fraction, link_rate, names_of, topology_of, whole_numbers
from lab.bench import Row, measure

from sparkdl_comm.compress.selection import OPERATORS, Operator
from sparkdl_comm.errors import ConfError


def rows(options: Namespace, note: Note) -> Iterator[Row]:
    return sums.rows(options) if options.topology else selections(options)


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


#: Elements of a row of a gradient, which have one scale, and the share of zero rows.
ROW = 1024
ZERO_ROWS = 0.1
_SEED = 0
_ONE_PASS = "one pass"


def gradient_like(count: int) -> torch.Tensor:
    """Return a heavy-tailed vector: Gaussian rows, each times exp(2 z) with a Gaussian z, and some rows of zeros."""
    rows = -(-count // ROW)
    scales = torch.exp(2 * torch.randn(rows, 1)) * (torch.rand(rows, 1) >= ZERO_ROWS)
    return torch.randn(rows, ROW).mul_(scales).flatten()[:count]


DISTRIBUTIONS: dict[str, Callable[[int], torch.Tensor]] = {"gaussian": torch.randn, "gradient-like": gradient_like}


class Timed(NamedTuple):
    seconds: float
    indices: torch.Tensor


def selections(options: Namespace) -> Iterator[Row]:
    """Time the selections. Yield a row of results for each distribution, number of elements and operator."""
    for name, distribution in DISTRIBUTIONS.items():
        for count in options.counts:
            torch.manual_seed(_SEED)
            values = distribution(count).to(options.device)
            yield from _compared(name, values, max(1, round(options.density * count)), options)


def _compared(distribution: str, values: torch.Tensor, k: int, options: Namespace) -> Iterator[Row]:
    cases = {_ONE_PASS: lambda: _timed(values.sum)}
    operators = [OPERATORS[name] for name in options.operators]
    for one in operators:
        cases[one.name] = lambda one=one: _timed(lambda: one(values, k, torch.Generator().manual_seed(_SEED)))
    timed = measure(cases, warmup=options.warmup, repeats=options.repeats)
    one_pass = statistics.median(repeat.seconds for repeat in timed.pop(_ONE_PASS))
    largest = torch.topk(values.abs(), k).values
    for one in operators:
        upper = float(largest[-1]) if one.is_exact else one.upper(values, k)
        above = int(torch.count_nonzero(values.abs() > upper))
        yield Row(
            suite="compress",
            case=distribution,
            algorithm=one.name,
            world=1,
            bytes=values.nbytes,
            samples=[repeat.seconds for repeat in timed[one.name]],
            theory_seconds=one_pass,
            verified=all(right(one, values, repeat.indices, largest, upper, above) for repeat in timed[one.name]),
            extra={
                "count": len(values),
                "density": options.density,
                "device": torch.cuda.get_device_name() if values.is_cuda else "cpu",
            },
        )


def right(
    one: Operator, values: torch.Tensor, indices: torch.Tensor, largest: torch.Tensor, upper: float, above: int
) -> bool:
    """Check the selection of an operator.

    :param largest: the k largest magnitudes, descending.
    :param above: number of all elements above the threshold ``upper``.
    """
    if indices.dtype != torch.int64 or indices.shape != largest.shape:
        return False
    if indices[0] < 0 or indices[-1] >= len(values) or not bool((indices.diff() > 0).all()):
        return False
    selected = values[indices].abs()
    if one.is_exact and not torch.equal(selected.sort(descending=True).values, largest):
        return False
    return int(torch.count_nonzero(selected > upper)) == above


def _timed(run: Callable[[], torch.Tensor]) -> Timed:
    begun = time.perf_counter()
    result = run()
    if result.is_cuda:
        torch.cuda.synchronize()  # nothing else is under way
    return Timed(time.perf_counter() - begun, result)
