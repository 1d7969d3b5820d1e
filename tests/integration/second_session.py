"""A program of its own: `python second_session.py MASTER RANKS`. Does what the error of a fit without the plugin says, in the
same process. Prints one line of JSON about the fit that follows."""

import json
import sys

from pyspark.sql import SparkSession

import sparkdl_comm
from sparkdl_comm.errors import PluginError
from tests.integration.one_fit import fit


def main(master: str, ranks: str) -> None:
    conf = {"spark.ui.enabled": "false", "spark.sparkdl.comm.progress": "false"}
    spark = SparkSession.builder.master(master).config(map=conf).getOrCreate()
    try:
        fit(spark, "ps", int(ranks))
    except PluginError as error:
        advice = error.message
    spark.stop()
    spark = SparkSession.builder.config(map=sparkdl_comm.spark_conf()).getOrCreate()
    print("REPORT " + json.dumps({**fit(spark, "ps", int(ranks)), "advice": advice}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
