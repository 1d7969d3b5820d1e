"""Dumps the classes that an application of the tests loads into the archive of :mod:`tests.spark_home`, of the Spark that
Python finds."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

import sparkdl_comm
from tests import spark_home


def main() -> None:
    """Driver and executor in one JVM, which dumps when it ends."""
    archive = spark_home.archive()
    archive.unlink(missing_ok=True)
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(spark_home.environment(Path(folder)))
        conf = {
            "spark.master": "local[2]",
            "spark.ui.enabled": "false",
            "spark.driver.extraJavaOptions": f"{spark_home.class_path()} -XX:ArchiveClassesAtExit={archive}",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": folder,
            **sparkdl_comm.spark_conf(progress=False),
        }
        spark = SparkSession.builder.config(map=conf).getOrCreate()
        rows = spark.createDataFrame(
            [(number, [float(number)] * 3) for number in range(20)], "label int, features array<float>"
        )
        rows.repartition(2).write.parquet(f"{folder}/rows")
        rows = spark.read.parquet(f"{folder}/rows")
        rows.groupBy("label").count().collect()
        rows.repartition(2, "label").mapInArrow(lambda batches: batches, rows.schema, barrier=True).collect()
        gateway = spark.sparkContext._gateway
        spark.stop()
        gateway.proc.stdin.close()  # the JVM ends with it
        gateway.proc.wait(120)


if __name__ == "__main__":
    main()
