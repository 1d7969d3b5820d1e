"""Arguments of the benchmarks: what the types make of texts, and what they refuse."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lab.arguments import (
    STDOUT,
    fraction,
    link_rate,
    link_rates,
    names_of,
    numbers,
    parser,
    size,
    sizes,
    topology_of,
    whole_numbers,
)


def test_json_without_a_file_is_standard_output(tmp_path: Path) -> None:
    file = str(tmp_path / "a.json")
    assert [parser("").parse_args(words).json for words in ([], ["--json"], ["--json", file])] == [None, STDOUT, file]


def test_a_json_file_that_cannot_be_written_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in (tmp_path, tmp_path / "no" / "a.json"):
        with pytest.raises(SystemExit):
            parser("").parse_args(["--json", str(file)])
        assert f"{str(file)!r}: must be a file in a folder that exists" in capsys.readouterr().err


def test_sizes_have_units_or_are_in_mib() -> None:
    assert sizes("16") == sizes("16MiB") == [16 << 20]
    assert sizes("0.25,64KiB, 1 ,1kB") == [1 << 18, 1 << 16, 1 << 20, 1000]
    assert sizes("10B") == [8], "whole float32 values"
    assert size("0.5") == 1 << 19
    with pytest.raises(argparse.ArgumentTypeError, match="one size, not '1,2'"):
        size("1,2")


def test_numbers_are_above_0() -> None:
    assert numbers("1,1.5") == [1.0, 1.5]
    for wrong in ("", "0", "1,-2", "nan", "inf", "1;2"):
        with pytest.raises(argparse.ArgumentTypeError, match="must be numbers above 0"):
            numbers(wrong)


@pytest.mark.parametrize("text", ["", "16,", "-1", "1e3", "sixteen", "16Mbit", "0", "2B"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="without a unit it is in MiB"):
        sizes(text)


def refusal(parse: Callable[[str], Any], text: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What a program says that is given this text."""
    made = parser("")
    made.add_argument("--it", type=parse)
    with pytest.raises(SystemExit):
        made.parse_args(["--it", text])
    return capsys.readouterr().err.splitlines()[-1]


def test_lists() -> None:
    assert whole_numbers()("3,1,3") == [3, 1, 3]
    assert whole_numbers(8)("8") == [8]
    assert names_of(("ring", "bml"))("bml,ring,bml") == ["bml", "ring", "bml"]
    assert link_rates("100,0.5") == [100.0, 0.5]


@pytest.mark.parametrize(
    ("parse", "text", "said"),
    [
        (whole_numbers(), "", "--it: must be whole numbers, at least 1, separated by commas, not ''"),
        (whole_numbers(), "1,x", "--it: must be whole numbers"),
        (whole_numbers(8), "8,7", "--it: must be whole numbers, at least 8, separated by commas, not '8,7'"),
        (names_of(("ring", "bml")), "lp,ring,mst", "--it: lp, mst: there are ring, bml"),
        (fraction, "0", "--it: must be above 0 and at most 1, not 0"),
        (fraction, "nan", "--it: must be above 0"),
        (fraction, "half", "'half'"),
        (link_rate, "inf", "--it: must be Mbit/s, of at least 1 bit/s, not inf"),
        (link_rate, "nan", "--it: must be Mbit/s"),
        (link_rate, "1e-7", "--it: must be Mbit/s"),
        (link_rates, "100,fast", "--it: must be numbers of Mbit/s, separated by commas, not '100,fast'"),
        (link_rates, "100,0", "--it: must be Mbit/s, of at least 1 bit/s, not 0"),
        (topology_of, "ring:3", "--it: topology 'ring:3': unknown kind 'ring'"),
    ],
)
def test_what_is_refused(parse: Callable[[str], Any], text: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in refusal(parse, text, capsys)
