"""bench_compress: what its rows say, what its verification finds, and the options that it refuses."""

from collections.abc import Callable

import bench_compress
import pytest
import torch
from compressed import selecting
from lab.results import FIELDS

from sparkdl_comm.compress.selection import OPERATORS, operator


@pytest.mark.slow
def test_a_row_for_every_distribution_and_operator(rows_of):
    rows = rows_of(bench_compress, "--density", "0.01", "--seed", "3")
    assert [(row["case"], row["algorithm"]) for row in rows] == [
        (distribution, name) for distribution in ("gaussian", "gradient-like") for name in OPERATORS
    ]
    for row in rows:
        assert list(row)[: len(FIELDS)] == list(FIELDS)
        assert row["verified"] is True
        assert (row["suite"], row["count"], row["bytes"]) == ("compress", 1 << 18, 1 << 20)
        assert (row["density"], row["k"], row["seed"]) == (0.01, 2621, 3)
        assert row["seconds"] > 0
        assert row["theory_seconds"] == row["one_pass_seconds"] > 0
    topk = [row for row in rows if row["algorithm"] == "topk"]
    assert [row["speedup_over_topk"] for row in topk] == [1, 1]


def test_one_operator_alone(rows_of):
    [row] = rows_of(bench_compress, "--operators", "exact", "--distributions", "gaussian")
    assert (row["algorithm"], row["k"], row["speedup_over_topk"]) == ("exact", 262, None)
    assert row["verified"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--density", "0"], "--density: must be above 0 and at most 1, not 0"),
        (["--density", "1.5"], "--density: must be"),
        (["--density", "nan"], "--density: must be"),
        (["--operators", "exact,best"], "--operators: operator 'best': there are mstopk, exact, topk, dgc"),
        (["--counts", "4M"], "--counts: must be whole numbers"),
        (["--counts", "1024,0"], "--counts: must be whole numbers, at least 1"),
        (["--distributions", "flat"], "--distributions: flat: there are gaussian, gradient-like"),
    ],
)
def test_options_that_make_no_sense(arguments: list[str], said: str, refused: Callable[..., str]) -> None:
    assert said in refused(bench_compress.main, *arguments).splitlines()[-1]


@pytest.mark.parametrize(
    ("name", "indices", "right"),
    [
        ("exact", [1, 3, 4], True),
        ("exact", [1, 3, 5], False),
        ("mstopk", [1, 3, 5], True),
        ("mstopk", [1, 4, 5], False),
        ("mstopk", [3, 1, 4], False),
        ("mstopk", [1, 1, 3], False),
        ("mstopk", [1, 3], False),
        ("mstopk", [1, 3, 6], False),
        ("mstopk", [-1, 1, 3], False),
    ],
)
def test_verification(name: str, indices: list[int], right: bool) -> None:
    values = torch.tensor([1.0, -9.0, 0.0, 8.0, 3.0, -2.0])
    assert (
        selecting.right(operator(name), values, torch.tensor(indices), torch.tensor([9.0, 8.0, 3.0]), 4.0, 2) is right
    )


def test_gradient_like_vectors_have_heavy_tails_and_zeros():
    torch.manual_seed(0)
    values = selecting.gradient_like(300_001)
    assert len(values) == 300_001
    assert 0.05 < float((values == 0).float().mean()) < 0.2
    assert float(values.pow(4).mean() / values.pow(2).mean() ** 2) > 30, "a Gaussian has 3"
