"""Draws of `make test` are the same on every machine and in every order of tests; those of `make test-all` can be repeated."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import seeds

TESTS = Path(__file__).parents[2]

#: Generators without a seed, and settings that only the profiles of tests/draws.py have.
ANEW = re.compile(r"default_rng\(\)|\bRandom\(\)|RandomState\(\)|urandom|SystemRandom|\.seed\(\)")
PROFILE = re.compile(r"\b(derandomize|database|deadline|print_blob)=")


def drawn() -> list[str]:
    found: list[str] = []

    @settings(max_examples=300)
    @given(st.integers(), st.floats(), st.text())
    def keep(number: int, fraction: float, text: str) -> None:
        found.append(repr((number, fraction, text)))

    keep()
    return found


@pytest.mark.skipif(seeds.of_run() != 0, reason="this run's draws are random")
def test_fixed_draws_do_not_depend_on_the_modules_that_are_loaded(tmp_path: Path) -> None:
    before = drawn()
    path = tmp_path / "constants.py"
    path.write_text(
        "\n".join(f"A{number} = {number * 7919}, {number * 0.37}, 'text {number}'" for number in range(1, 99))
    )
    spec = importlib.util.spec_from_file_location("constants", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "constants", module)
        spec.loader.exec_module(module)
        assert drawn() == before


def test_seeds_are_fixed_or_those_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(seeds.VARIABLE, raising=False)
    assert list(seeds.seeds(3)) == [0, 1, 2]
    assert seeds.header() == "draws: fixed"
    monkeypatch.setenv(seeds.VARIABLE, "random")
    drawn_seeds = seeds.seeds(3)
    assert drawn_seeds[0] > 0
    assert drawn_seeds[0] % seeds.STRIDE == 0
    assert seeds.seeds(3) == drawn_seeds, "the other processes of the run have the same"
    assert f"{seeds.VARIABLE}={drawn_seeds[0] // seeds.STRIDE} " in seeds.header()


def test_draws_without_a_seed_are_those_of_the_test() -> None:
    found = torch.rand(1).item(), np.random.rand()
    seeds.seed_generators()
    assert found == (torch.rand(1).item(), np.random.rand())


def test_no_test_draws_anew_by_itself() -> None:
    found = [
        f"{path.relative_to(TESTS)}: {match[0]}"
        for path in TESTS.rglob("*.py")
        if path.name not in ("seeds.py", "draws.py", Path(__file__).name)
        for match in ANEW.finditer(path.read_text())
    ]
    found += [
        f"{path.relative_to(TESTS)}: {match[0]}"
        for path in TESTS.rglob("*.py")
        if path.name not in ("draws.py", Path(__file__).name) and "from hypothesis" in (text := path.read_text())
        for match in PROFILE.finditer(text)
    ]
    assert found == []
