"""Operators that select the k largest magnitudes of a vector, timed alone.

The lower bound is one pass over the vector, the time of its sum in the same run. Every timed repeat is verified: exactly k
distinct indices, ascending; all elements that are larger than the operator's upper threshold are among them; and of an exact
operator the same magnitudes as torch.topk's.
"""

from __future__ import annotations

import statistics
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from lab.arguments import fraction, names_of, whole_numbers
from lab.bench import Row, measure, versions

from sparkdl_comm.compress.selection import OPERATORS, Operator, operator
from sparkdl_comm.errors import ConfError

#: Elements of a row of a gradient, which have a scale in common; and which part of the rows is zero.
ROW = 1024
ZERO_ROWS = 0.1
_ONE_PASS = "one pass"


def gaussian(count: int) -> torch.Tensor:
    """Independent, normally distributed."""
    return torch.randn(count)


def gradient_like(count: int) -> torch.Tensor:
    """Heavy tails: rows of ROW Gaussian elements, each row times exp(2 z) with a Gaussian z, ZERO_ROWS of them zero."""
    rows = -(-count // ROW)
    scales = torch.exp(2 * torch.randn(rows, 1)) * (torch.rand(rows, 1) >= ZERO_ROWS)
    return torch.randn(rows, ROW).mul_(scales).flatten()[:count]


DISTRIBUTIONS: dict[str, Callable[[int], torch.Tensor]] = {"gaussian": gaussian, "gradient-like": gradient_like}


class Timed(NamedTuple):
    seconds: float
    indices: torch.Tensor


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--operators", default=",".join(OPERATORS), help=f"of {', '.join(OPERATORS)}")
    parser.add_argument("--counts", type=whole_numbers(), default="4194304", help="elements of the vector, float32")
    parser.add_argument("--density", type=fraction, default=0.001, help="k / elements, above 0, at most 1")
    parser.add_argument(
        "--distributions",
        type=names_of(DISTRIBUTIONS),
        default=",".join(DISTRIBUTIONS),
        help=f"of {', '.join(DISTRIBUTIONS)}",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the vectors, and of what operators draw")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="that has the vectors")


def check(parser: ArgumentParser, options: Namespace) -> None:
    """Makes operators of their names, and ends the program if there is none of a name."""
    try:
        options.operators = [operator(name) for name in options.operators.split(",")]
    except ConfError as error:
        parser.error(f"--operators: {error}")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: there is no GPU that torch can use")
    if options.quick:
        options.counts, options.repeats = [1 << 18], 1


def rows(options: Namespace) -> Iterator[Row]:
    """A row for each distribution, count and operator."""
    for name in options.distributions:
        for count in options.counts:
            torch.manual_seed(options.seed)
            values = DISTRIBUTIONS[name](count).to(options.device)
            yield from _compared(name, values, max(1, round(options.density * count)), options)


def _compared(distribution: str, values: torch.Tensor, k: int, options: Namespace) -> Iterator[Row]:
    cases = {_ONE_PASS: lambda: _timed(values.sum)}
    for one in options.operators:
        cases[one.name] = lambda one=one: _selection(one, values, k, options.seed)
    timed = measure(cases, warmup=options.warmup, repeats=options.repeats)
    one_pass = _median(timed.pop(_ONE_PASS))
    topk = _median(timed["topk"]) if "topk" in timed else None
    largest = torch.topk(values.abs(), k).values
    for one in options.operators:
        repeats = timed[one.name]
        upper = float(largest[-1]) if one.is_exact else one.upper(values, k)
        above = int(torch.count_nonzero(values.abs() > upper))
        yield Row(
            suite="compress",
            case=distribution,
            algorithm=one.name,
            topology="loopback",
            rate_mbit=None,
            world=1,
            bytes=values.nbytes,
            samples=[repeat.seconds for repeat in repeats],
            theory_seconds=one_pass,
            verified=all(right(one, values, repeat.indices, largest, upper, above) for repeat in repeats),
            versions=versions("torch", "numpy"),
            extra={
                "count": len(values),
                "density": options.density,
                "k": k,
                "one_pass_seconds": one_pass,
                "speedup_over_topk": None if topk is None else topk / _median(repeats),
                "threads": torch.get_num_threads(),
                "device": torch.cuda.get_device_name() if values.is_cuda else "cpu",
                "seed": options.seed,
            },
        )


def right(
    one: Operator, values: torch.Tensor, indices: torch.Tensor, largest: torch.Tensor, upper: float, above: int
) -> bool:
    """Whether a selection is what ``one`` promises; ``largest``: the k largest magnitudes, descending; ``above``: how many of
    all elements are larger than the threshold ``upper``."""
    if indices.dtype != torch.int64 or indices.shape != largest.shape:
        return False
    if indices[0] < 0 or indices[-1] >= len(values) or not bool((indices.diff() > 0).all()):
        return False
    selected = values[indices].abs()
    if one.is_exact and not torch.equal(selected.sort(descending=True).values, largest):
        return False
    return int(torch.count_nonzero(selected > upper)) == above


def _selection(one: Operator, values: torch.Tensor, k: int, seed: int) -> Timed:
    generator = torch.Generator().manual_seed(seed)
    return _timed(lambda: one(values, k, generator))


def _timed(run: Callable[[], torch.Tensor]) -> Timed:
    begun = time.perf_counter()
    result = run()
    if result.is_cuda:
        torch.cuda.synchronize()  # nothing else is under way
    return Timed(time.perf_counter() - begun, result)


def _median(repeats: list[Timed]) -> float:
    return statistics.median(repeat.seconds for repeat in repeats)
