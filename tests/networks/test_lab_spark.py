"""Spark standalone on a lab: the training job of python/train.py, and where its bytes went."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from lab import Lab, access, state
from lab.spark import SparkCluster

from sparkdl_comm import plugin, spark_conf
from sparkdl_comm.errors import ConfError, DeadlineError, LabError
from tests import spark_home
from tests.spark_home import SPARK4

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", [pyspark.__version__, pytest.param("4.2.0", marks=pytest.mark.spark4)])
def test_the_bytes_that_training_counts_cross_the_shaped_links(networks, tmp_path, version):
    environment = dict(os.environ)
    if version != pyspark.__version__:
        if not SPARK4.exists():
            pytest.skip("no .spark4: make spark4-env")
        environment["SPARK_HOME"] = str(SPARK4 / "pyspark")
        environment["SPARK_CONF_DIR"] = str(spark_home.conf_directory(tmp_path, SPARK4 / "pyspark"))
        environment["PYTHONPATH"] = os.pathsep.join([str(SPARK4), os.environ.get("PYTHONPATH", str(ROOT))])
    counters, output = tmp_path / "counters.json", tmp_path / "demo"
    output.mkdir()
    settings = {
        "spark.plugins": plugin.CLASS,
        "spark.sparkdl.comm.strategy": "ps",
        "spark.sparkdl.comm.progress": "false",
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": (tmp_path / "warehouse").as_uri(),
    }
    command = [sys.executable, str(ROOT / "python" / "sparkdl-lab"), "submit", "--topology", "star:4,200mbit"]
    command += ["--timeout", "400", "--counters", str(counters), "--"]
    command += ["--jars", str(plugin.jar_for(version, plugin.JARS))]
    command += [f"--conf={key}={value}" for key, value in settings.items()]
    command += [str(ROOT / "python" / "train.py"), "--epochs", "1", "--output", str(output)]
    before = {known.name for known in state.every()}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stderr[-6000:]

    summary = json.loads((output / "summary.json").read_text())
    assert summary["spark_version"] == version
    assert summary["executors"] == 4
    traffic = {(row["host"], row["rail"]): row for row in json.loads(counters.read_text())}
    counted = sum(summary["bytes"].values())
    assert counted > 10**9
    for way in ("sent", "received"):
        assert sum(traffic[host, 0][way] for host in range(4)) == pytest.approx(counted, rel=0.1)
        for host in range(4):
            assert traffic[host, 0][way] == pytest.approx(counted / 4, rel=0.1)
            assert traffic[host, "control"][way] < 0.001 * counted
    assert {known.name for known in state.every()} <= before


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_collectives_use_all_rails_and_spark_another_network(networks):
    rails = "rails=rail0,rail1"
    cases = [f"bml {rails}", f"bml {rails} topology=bcube:2,2"]
    with Lab("bcube:2,2,200mbit") as lab:
        environment = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        with lab.spark(rail="control", env=environment) as cluster:
            before = lab.counters()
            arguments = [f"--conf={key}={value}" for key, value in spark_conf().items()]
            arguments += [str(ROOT / "tests/integration/many_fits.py"), "-", "4", *cases]
            done = cluster.submit(arguments, timeout=400, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            after = lab.counters()
    lines = [line.removeprefix("REPORT ") for line in done.stdout.splitlines() if line.startswith("REPORT ")]
    reports = [json.loads(line) for line in lines]
    assert [report["case"] for report in reports] == cases, done.stdout[-6000:]
    assert all(report["distance"] < 1e-5 for report in reports)
    sent = {where: after[where].sent - before[where].sent for where in after}
    counted = sum(report["bytes"] for report in reports)
    for host in range(4):
        for rail in range(2):
            # BML loads all rails alike; what else crosses them are headers, and the ranks' finding out of what rails cost.
            assert counted / 8 < sent[host, rail] < 1.2 * counted / 8 + 20e6


@pytest.mark.slow
def test_an_application_that_hangs_or_fails(networks, tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import sys, time; time.sleep(float(sys.argv[1])); sys.exit(3)\n")
    with Lab("hosts:1x2,200mbit") as lab, lab.spark() as cluster:
        assert cluster.submit([str(program), "0"], timeout=60).returncode == 3
        with pytest.raises(DeadlineError, match="within timeout=8 s and was killed"):
            cluster.submit([str(program), "60"], timeout=8)
        logs = cluster.executor_logs()
        assert {"master.log", "worker-0.log"} <= set(logs)
        namespaces = lab.layout.namespaces
    assert not any(space in subprocess.getoutput(f"{access.tool('ip')} netns list") for space in namespaces)


def daemons_are(home: Path, commands: str) -> None:
    """Has a cluster's daemons be these commands of the shell."""
    script = home / "bin" / "spark-class"
    script.parent.mkdir()
    script.write_text(f"#!/bin/sh\n{commands}\n")
    script.chmod(0o755)


def test_a_daemon_that_dies_is_named_with_its_log(tmp_path):
    daemons_are(tmp_path, "echo no such class; exit 4")
    with (
        Lab.loopback("star:2") as cluster,
        pytest.raises(LabError, match="(?s)Spark's master ended with status 4: no such class"),
        cluster.spark(spark_home=tmp_path),
    ):
        pass


def test_a_daemon_that_does_not_come_up_meets_its_deadline(tmp_path):
    daemons_are(tmp_path, "echo thinking; exec sleep 60")
    with (
        Lab.loopback("star:2") as cluster,
        pytest.raises(DeadlineError, match="(?s)master did not come up within start_timeout=1 s; .* last: thinking"),
        cluster.spark(spark_home=tmp_path, start_timeout=1),
    ):
        pass


def test_bad_settings_are_refused(tmp_path):
    with Lab.loopback("bcube:2,2") as cluster:
        with pytest.raises(ConfError, match="rail=1: the head"):
            SparkCluster(cluster, rail=1)
        with pytest.raises(ConfError, match="no bin/spark-class"):
            SparkCluster(cluster, spark_home=tmp_path)
