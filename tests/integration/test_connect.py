"""Fits of a Spark Connect client, without a JVM of its own, on servers of both Spark lines."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest
import torch

from sparkdl_comm import plugin
from tests import spark_home
from tests.spark_home import SPARK4

ROOT = Path(__file__).parents[2]
CONNECT_JARS = ROOT / "build/connect"  # Spark 3's own package is without Spark Connect
RANKS = 2
#: A directory that only Hadoop knows by this name.
HADOOP = "viewfs://tests/mounted"


@contextmanager
def server(folder: Path, pyspark_home: Path, python_path: str, jars: list[Path]) -> Iterator[str]:
    """The address of a server with two executors and the plugin."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    conf = {
        "spark.plugins": plugin.CLASS,
        "spark.jars": ",".join(map(str, jars)),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port,
        "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
        "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": 5,
        "spark.sql.warehouse.dir": folder / "warehouse",
        "spark.sparkdl.comm.progress": "false",
        "spark.ui.enabled": "false",
        "spark.hadoop.fs.viewfs.mounttable.tests.link./mounted": folder.as_uri(),
    }
    environment = {**os.environ, **spark_home.environment(folder, pyspark_home), "PYTHONPATH": python_path}
    command = [environment["SPARK_HOME"] + "/bin/spark-submit", "--master", f"local-cluster[{RANKS},1,1024]"]
    command += [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    log = folder / "server.log"
    with log.open("w") as output:
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=output, stderr=output)
    try:
        until = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < until:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.2)
        else:
            pytest.fail(f"the server did not start:\n{log.read_text()[-4000:]}")
        yield f"sc://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


def fits(folder: Path, pyspark_home: Path, python_path: list[Path], jars: list[Path]) -> dict:
    path = os.pathsep.join(map(str, [*python_path, ROOT]))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK", "PYSPARK"))}
    # no JVM could be started
    environment |= {"PYTHONPATH": path, "PATH": "", "JAVA_HOME": str(folder)}
    with server(folder, pyspark_home, path, jars) as address:
        client = [sys.executable, str(ROOT / "tests/integration/connect_client.py"), address, str(RANKS), HADOOP]
        done = subprocess.run(
            client, env=environment, cwd=folder, capture_output=True, text=True, timeout=500, check=False
        )
    reports = [line for line in done.stdout.splitlines() if line.startswith("REPORT ")]
    assert reports, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}\n{(folder / 'server.log').read_text()[-3000:]}"
    assert {"metadata", "model.safetensors"} <= {path.name for path in (folder / "model").iterdir()}
    assert not [*folder.glob(".*.new"), *folder.glob(".*.old")]  # what a save uses on its way
    exported = torch.jit.load(str(folder / "model.pt"))(torch.zeros(3, 28))
    assert exported.shape == (3, 10)
    assert (folder / "model.onnx").stat().st_size
    return json.loads(reports[0].removeprefix("REPORT "))


def check(report: dict) -> None:
    losses = report["losses"]
    assert len(losses["ps"]) == 5
    assert losses["ps"][-1] < losses["ps"][0]
    assert losses["ps"] == pytest.approx(losses["gloo"], rel=1e-5)
    assert report["norms"]["ps"] == pytest.approx(report["norms"]["gloo"], rel=1e-5)
    assert report["scored"]["ps"] == report["scored"]["gloo"] > 10
    assert report["columns"] == ["features", "label", "rawPrediction", "probability", "prediction"]
    assert report["probability"] == pytest.approx(1.0)
    assert report["loaded"] == report["scored"]["ps"]
    assert report["trained_on"] == pytest.approx([report["trained_on"][0]] * 3)
    assert report["trained_on"][0] < losses["ps"][-1]
    assert report["kept"][0] == report["kept"][1] < losses["ps"][0]
    assert report["decoded"] == [pytest.approx(losses["ps"][0], rel=0.5), 60]
    assert report["refused"][0].startswith(f"{HADOOP}/model already exists")
    assert "there is nothing at" in report["refused"][1]
    assert report["returned"] == 0
    assert report["failed"] == [1, "LookupError", "the user's mistake", "from a child"]
    assert "Spark says: " in report["slots"]
    assert report["interrupted"] == 0


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_spark_3(tmp_path: Path) -> None:
    jars = sorted(CONNECT_JARS.glob("spark-connect_2.12-*.jar"))
    if not jars:
        pytest.skip("no Spark Connect for Spark 3: make connect-jar")
    report = fits(
        tmp_path, Path(pyspark.__file__).parent, [], [plugin.jar_for(pyspark.__version__, plugin.JARS), *jars]
    )
    assert report["spark"].startswith("3.5.")
    check(report)


@pytest.mark.slow
@pytest.mark.timeout(700)
@pytest.mark.spark4
def test_spark_4(tmp_path: Path) -> None:
    if not SPARK4.exists():
        pytest.skip("no .spark4: make spark4-env")
    report = fits(tmp_path, SPARK4 / "pyspark", [SPARK4], [plugin.jar_for("4.2.0", plugin.JARS)])
    assert report["spark"].startswith("4.2.")
    check(report)
