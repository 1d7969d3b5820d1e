"""What it costs to bring a block from one executor to another: this package's fetch beside Spark's plain `fetchBlockSync`, and
what memory alone takes.

    python python/bench_fetch.py --json

One executor measures, the others serve; local-cluster, loopback, one run. `fetchBlockSync` leaves the block in a buffer of
its own, `fetch` in memory of the caller's choice, as it arrives. `notice` is the way of blocks of at most 64 KiB: in a
message (half of the time there and back). With more than one server, `at once` fetches a block from each in parallel, and
`in turn` one after another; their bytes are those of all servers. `same host` copies a block from memory that another
executor of the host shares, as ranks of one host do, `memcpy` one from the executor's own. `bf16` and `fp16`, `encode` and
`decode`, are the conversions of `ps.wire`; bytes are those of the float32 numbers.

Verified: after every run, the bytes that came are those that were published; what was encoded is decoded to almost the same.
"""

from __future__ import annotations

import json
import sys

from bench_jar import load_bench_jar
from pyspark.sql import SparkSession

from sparkdl_comm import spark_conf
from sparkdl_comm.lab.bench import Report, Row, sizes, versions
from sparkdl_comm.lab.bench import parser as bench_parser

#: The JVM's arrays are no larger.
MAX_BYTES = 2**31 - 1


def session(executors: int, settings: list[str]) -> SparkSession:
    conf = {
        **spark_conf(progress=False),
        "spark.master": f"local-cluster[{executors},1,1536]",
        "spark.executor.memory": "1536m",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **dict(setting.split("=", 1) for setting in settings),
    }
    spark = SparkSession.builder.appName("bench_fetch").config(map=conf).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def rows(spark: SparkSession, executors: int, blocks: list[int], repeats: int) -> list[Row]:
    context = spark.sparkContext
    load_bench_jar(context)
    bench = context._jvm.sparkdl.comm.bench.FetchBench
    found = json.loads(bench.run(context._jsc.sc(), executors, ",".join(map(str, blocks)), repeats))
    return [
        Row(
            suite="fetch",
            case=f"{one['servers']} server{'s' if one['servers'] > 1 else ''}",
            algorithm=one["way"],
            topology="loopback",
            rate_mbit=None,
            world=executors,
            bytes=one["bytes"] * one["servers"],
            # there and back again
            samples=[seconds / 2 if one["way"] == "notice" else seconds for seconds in one["seconds"]],
            verified=one["verified"],
            versions=versions("pyspark"),
        )
        for one in found
    ]


def main() -> int:
    parser = bench_parser(__doc__)
    parser.set_defaults(repeats=30)
    parser.add_argument("--servers", default="1,3", help="numbers of executors that serve")
    parser.add_argument(
        "--sizes",
        dest="bytes",
        type=sizes,
        default="1KiB,64KiB,1MiB,16MiB,64MiB",
        help="of a block: 16 (MiB), 64KiB, ...",
    )
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="of Spark, to try settings")
    options = parser.parse_args()
    if options.quick:
        options.servers, options.bytes, options.repeats = "2", sizes("1KiB,1MiB"), 3
    if max(options.bytes) > MAX_BYTES:
        parser.error(f"--sizes: a block of {max(options.bytes)} bytes is larger than {MAX_BYTES}")
    report = Report(json_to=options.json)
    for servers in map(int, options.servers.split(",")):
        spark = session(servers + 1, options.conf)
        for row in rows(spark, servers + 1, options.bytes, options.repeats):
            report.add(row)
        spark.stop()
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
