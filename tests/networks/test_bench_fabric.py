"""bench_fabric's races on an emulated network, and without links."""

import bench_fabric
import pytest
from lab.results import FIELDS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "case", "measure"),
    [
        (["--train", "--systems", "fabric-20,ring,ddp,async", "--accuracy", "0.5"], "train C2-N2", "accuracy"),
        (
            ["--lda", "--systems", "fabric-20,fabric-bsp,ring,async", "--perplexity", "760", "--words", "2000"],
            "lda C1-N1",
            "perplexity",
        ),
    ],
)
def test_a_row_for_each_system(networks, rows_of, arguments: list[str], case: str, measure: str) -> None:
    rows = rows_of(bench_fabric, "--workers", "3", *arguments)
    assert [row["system"] for row in rows] == arguments[2].split(",")
    for row in rows:
        assert list(row)[: len(FIELDS)] == list(FIELDS)
        hosts = 4 if row["system"].startswith(("fabric", "async")) else 3
        assert (row["verified"], row["case"], row["topology"], row["world"]) == (True, case, f"star:{hosts}", 3)
        assert row["busy_cores"] > 0
        assert row[f"seconds_to_{measure}"] == row["seconds"]
        [curve] = row["curves"]
        assert curve[-1][1] >= 60
        assert sorted(curve) == curve
    assert rows[0]["max_delay"] <= 20


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--train", "--setting", "C7-N1"], "--settings C7-N1: there are C0, C1"),
        (["--train", "--systems", "gloo"], "gloo: there are fabric, fabric-TAU"),
        (["--train", "--systems", "fabric-0"], "async:0"),
        (["--train", "--workers", "1"], "--workers 1: at least 2"),
        (["--train", "--rate", "nan"], "--rate nan"),
        (["--lda", "--systems", "ddp"], "--systems ddp: "),
        (["--lda", "--train"], "one of --scheduler"),
    ],
)
def test_what_makes_no_sense_is_said(refused, arguments: list[str], said: str) -> None:
    assert said in refused(bench_fabric.main, *arguments)
