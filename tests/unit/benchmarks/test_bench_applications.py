"""Jobs and results of the Spark applications that benchmarks submit."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.applications import answer, submit
from pyspark.sql import SparkSession

import sparkdl_comm
from sparkdl_comm.errors import LabError


@dataclass(frozen=True)
class Job:
    ways: dict[str, list[int]]


def results(spark: Any, job: Job) -> Iterator[dict[str, Any]]:
    for name, numbers in job.ways.items():
        yield {"application": spark.name, "way": name, "sum": sum(numbers)}


class Cluster:
    """Runs what is submitted in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, status: int = 0) -> None:
        self.monkeypatch, self.status = monkeypatch, status
        self.submitted: list[str] = []

    def submit(self, arguments: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        self.submitted = arguments
        if not self.status:
            self.monkeypatch.setattr(sys, "argv", arguments[-3:])
            answer("sums", Job, results)
        return subprocess.CompletedProcess(arguments, self.status, "it broke", None)


@pytest.fixture(autouse=True)
def _no_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    def named(name: str) -> SimpleNamespace:
        return SimpleNamespace(getOrCreate=lambda: SimpleNamespace(name=name, stop=lambda: None))

    monkeypatch.setattr(SparkSession, "builder", SimpleNamespace(appName=named))
    monkeypatch.setattr(sparkdl_comm, "spark_conf", lambda **_: {"spark.plugins": "ours"})


def test_results_are_those_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch)
    job = Job({"few": [1, 2], "none": []})
    found = submit(cluster, Path("sums.py"), job, 5.0, {"spark.log.level": "INFO"})  # type: ignore[arg-type]
    assert found == [
        {"application": "sums", "way": "few", "sum": 3},
        {"application": "sums", "way": "none", "sum": 0},
    ]
    assert {"--conf=spark.plugins=ours", "--conf=spark.log.level=INFO"} <= set(cluster.submitted)
    assert cluster.submitted[-3:-1] == ["sums.py", json.dumps({"ways": job.ways})]


def test_one_that_fails_says_what_it_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LabError, match=r"^sums.py ended with status 1: it broke$"):
        submit(Cluster(monkeypatch, status=1), Path("sums.py"), Job({}), 5.0)  # type: ignore[arg-type]
