"""Operators that select the k largest magnitudes of a vector, timed alone.

Theory is one pass over the vector, the time of its sum in the same run. Verified in every timed repeat: exactly k distinct
indices, ascending, among them all elements above the operator's upper threshold. Exact operators select the magnitudes of
torch.topk.
"""

from __future__ import annotations

import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from lab.bench import Row, measure

from sparkdl_comm.compress.selection import Operator, operator

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


def rows(options: Namespace) -> Iterator[Row]:
    """Yield a row for each distribution, count and operator."""
    for name, distribution in DISTRIBUTIONS.items():
        for count in options.counts:
            torch.manual_seed(_SEED)
            values = distribution(count).to(options.device)
            yield from _compared(name, values, max(1, round(options.density * count)), options)


def _compared(distribution: str, values: torch.Tensor, k: int, options: Namespace) -> Iterator[Row]:
    cases = {_ONE_PASS: lambda: _timed(values.sum)}
    operators = [operator(name) for name in options.operators]
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
