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
