"""The benchmark of single fetches, on the executors of these tests."""

import bench_fetch


def test_every_way_brings_every_block(spark):
    rows = bench_fetch.rows(spark, 3, [1000, 3_000_000], repeats=2)
    assert all(row.verified for row in rows)
    assert all(len(row.samples) == 2 for row in rows)
    ways = {(row.algorithm, row.bytes) for row in rows}
    assert ways >= {("notice", 0), ("notice", 1000), ("fetchBlockSync", 1000), ("fetch", 3_000_000)}
    assert ways >= {("at once", 6_000_000), ("in turn", 6_000_000)}
    assert ("notice", 3_000_000) not in ways
    assert ways >= {("same host", 1000), ("memcpy", 3_000_000), ("bf16 encode", 1000), ("fp16 decode", 3_000_000)}


def test_fixed_windows_bring_them_beside_the_one_that_follows_the_link(spark):
    found = bench_fetch.rows(spark, 3, [3_000_000], repeats=2, windows=[1 << 16, 1 << 20])
    assert [row.algorithm for row in found] == ["own", "fixed 65536", "fixed 1048576"]
    assert all(row.verified and row.bytes == 6_000_000 for row in found)
