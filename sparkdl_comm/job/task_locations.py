"""Executors in Spark's scheduler: where the tasks of a job ran, and partitions that prefer given executors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from sparkdl_comm.job.interrupt import JobTag


def find_task_locations(spark: SparkSession, tag: JobTag, tasks: int) -> dict[int, str]:
    """Return where the tasks of the last stage of the jobs with ``tag`` ran, by partition, in the form for
    :func:`make_partitions_at`.

    :raises Py4JError: Spark does not know.
    """
    context: Any = spark.sparkContext._jsc.sc()
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in context.statusTracker().getJobIdsForTag(tag.name)]
    stages = [stage for job in jobs if job is not None for stage in job.stageIds]
    if not stages:
        return {}
    found = context.statusStore().taskList(max(stages), 0, tasks)
    each = [found.apply(index) for index in range(found.size())]
    return {task.partitionId(): f"executor_{task.host()}_{task.executorId()}" for task in each}


def make_partitions_at(spark: SparkSession, locations: Sequence[str]) -> DataFrame:
    """Return a DataFrame with one row for each of ``locations``, each in its own partition.

    Spark computes a partition at its place if there is a free slot.

    :raises Py4JError: Spark cannot make it.
    """
    jvm: Any = spark.sparkContext._jvm
    gateway: Any = spark.sparkContext._gateway
    sequence = jvm.org.apache.spark.api.python.PythonUtils.toSeq
    rows = []
    for number, location in enumerate(locations):
        values = gateway.new_array(jvm.java.lang.Object, 1)
        values[0] = number
        rows.append(jvm.scala.Tuple2(jvm.org.apache.spark.sql.RowFactory.create(values), sequence([location])))
    any_class = getattr(getattr(jvm.scala.reflect, "ClassTag$"), "MODULE$").AnyRef()
    rdd = spark.sparkContext._jsc.sc().makeRDD(sequence(rows), any_class).toJavaRDD()
    schema = jvm.org.apache.spark.sql.types.StructType.fromDDL("place int")
    session: Any = spark._jsparkSession
    return DataFrame(session.createDataFrame(rdd, schema), spark)
