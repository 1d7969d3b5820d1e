"""bench_fetch on an emulated network: the window that follows the link beside fixed ones."""

import bench_fetch
import pytest


@pytest.mark.slow
@pytest.mark.usefixtures("networks")
def test_a_row_for_each_rate_and_window(rows_of) -> None:
    options = ["--topology", "star:3", "--rate", "50,200", "--windows", "64KiB,1MiB"]
    found = rows_of(bench_fetch, *options)
    ways = ["own", "fixed 65536", "fixed 1048576"]
    assert [(row["rate_mbit"], row["algorithm"]) for row in found] == [
        *((50, way) for way in ways),
        *((200, way) for way in ways),
    ]
    for row in found:
        assert row["verified"]
        assert row["seconds"] > 0.9 * row["theory_seconds"], "no link carries more than it can"
