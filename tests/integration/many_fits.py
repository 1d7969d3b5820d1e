"""A program of its own: `python many_fits.py MASTER RANKS CASE...`. Prints a line of JSON about each fit.

A case is a strategy and settings of this package: "lp collective.loop=root". MASTER is "-" under spark-submit.
"""

import json
import sys

from lab.settings import applied
from pyspark.sql import SparkSession

import sparkdl_comm
from tests.integration.nets import Large
from tests.integration.test_training import distance, fit, frame, in_one_process

STEPS = 4


def main(master: str, ranks: str, *cases: str) -> None:
    conf = {"spark.ui.enabled": "false", **sparkdl_comm.spark_conf(progress=False, slot_timeout="2min")}
    if master != "-":
        conf["spark.master"] = master
    spark = SparkSession.builder.config(map=conf).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    data, reference = frame(spark), in_one_process(Large, "sgd", STEPS)
    for case in cases:
        strategy, *words = case.split()
        settings = dict(word.split("=", 1) for word in words)
        with applied(spark, settings):
            model = fit(data, model=Large, epochs=STEPS, strategy=strategy, num_workers=int(ranks))
        report = {
            "case": case,
            "distance": distance(model.module.state_dict(), reference),
            "world": model.summary["world"],
            "bytes": sum(model.summary["bytes"].values()),
        }
        print("REPORT " + json.dumps(report), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
