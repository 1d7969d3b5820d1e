"""Fits in applications of their own: another Spark, several ranks in one JVM."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sparkdl_comm.collectives.algorithms import ALGORITHMS
from sparkdl_comm.topology import Topology
from tests import spark_home
from tests.slow import slow
from tests.spark_home import SPARK4

ROOT = Path(__file__).parents[2]


def run(
    tmp_path: Path, program: str, arguments: list[str], spark: Path, python_path: list[Path], submit: bool = False
) -> list[dict]:
    """What a program of this folder reports. ``submit``: by spark-submit, which starts the JVM before Python."""
    environment = {**os.environ, **spark_home.environment(tmp_path, spark)}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, [*python_path, environment["PYTHONPATH"]]))
    start = [f"{environment['SPARK_HOME']}/bin/spark-submit"] if submit else [sys.executable]
    command = [*start, str(ROOT / "tests/integration" / program), *arguments]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=580, check=False
    )
    reports = [line for line in done.stdout.splitlines() if line.startswith("REPORT ")]
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return [json.loads(report.removeprefix("REPORT ")) for report in reports]


@pytest.mark.slow
def test_several_ranks_in_one_jvm_share_it_without_the_network(tmp_path):
    [report] = run(tmp_path, "one_fit.py", ["local[2]", "ps", "2"], spark_home.SPARK, [])
    assert report["summary"]["bytes"] == {"pull": 0, "push": 0}
    assert report["metrics"]["ps.pull.bytes"] == 0
    assert report["off"] < 1e-5
    assert report["scored"] > 10


@pytest.mark.parametrize("spark_4", [slow(False), pytest.param(True, marks=pytest.mark.spark4)])
@pytest.mark.slow
def test_a_fit_after_the_advice_of_one_without_the_plugin_in_the_same_process(tmp_path, spark_4):
    if spark_4 and not SPARK4.exists():
        pytest.skip("no .spark4: make spark4-env")
    home = SPARK4 / "pyspark" if spark_4 else spark_home.SPARK
    arguments = ["local-cluster[2,1,1024]", "2"]
    [report] = run(tmp_path, "second_session.py", arguments, home, [SPARK4] if spark_4 else [])
    assert report["spark"].startswith("4.2." if spark_4 else "3.5.")
    assert (
        "stop this one, then SparkSession.builder.config(map=sparkdl_comm.spark_conf()).getOrCreate()"
        in report["advice"]
    )
    assert report["summary"]["strategy"] == "ps"
    assert report["summary"]["bytes"]["pull"] > 0
    assert report["off"] < 1e-5
    assert report["scored"] > 10


@pytest.mark.slow
def test_a_program_under_spark_submit_without_jars(tmp_path):
    [report] = run(tmp_path, "one_fit.py", ["local-cluster[2,1,1024]", "ps", "2"], spark_home.SPARK, [], submit=True)
    assert report["summary"]["bytes"]["pull"] > 0
    assert report["off"] < 1e-5


SECRET = "spark.authenticate=true spark.authenticate.secret=words"


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        SECRET,
        f"{SECRET} spark.network.crypto.enabled=true",
        f"{SECRET} spark.io.encryption.enabled=true spark.network.crypto.enabled=true",
        "spark.memory.offHeap.enabled=true spark.memory.offHeap.size=128m",
    ],
)
def test_fits_over_tcp_whatever_protection_spark_is_set_to(tmp_path, settings):
    settings = [*settings.split(), "spark.sparkdl.comm.ps.sharedMemory=false"]
    [report] = run(tmp_path, "one_fit.py", ["local-cluster[2,1,1024]", "ps", "2", *settings], spark_home.SPARK, [])
    assert report["summary"]["bytes"]["pull"] > 0
    assert report["off"] < 1e-5


def keytool() -> str:
    java = shutil.which(
        "java", path=os.path.join(os.environ["JAVA_HOME"], "bin") if "JAVA_HOME" in os.environ else None
    )
    assert java is not None
    return str(Path(java).resolve().parent / "keytool")


@pytest.mark.spark4
@pytest.mark.slow
def test_a_fit_over_the_tls_of_spark_4(tmp_path):
    if not SPARK4.exists():
        pytest.skip("no .spark4: make spark4-env")
    store, password = tmp_path / "keys.p12", "only for this test"
    command = [keytool(), "-genkeypair", "-keystore", store, "-storetype", "PKCS12", "-storepass", password]
    command += ["-alias", "spark", "-keyalg", "EC", "-dname", "CN=localhost", "-ext", "san=ip:127.0.0.1,dns:localhost"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    settings = [
        "spark.ssl.rpc.enabled=true",
        "spark.ssl.rpc.protocol=TLSv1.3",
        f"spark.ssl.rpc.keyStore={store}",
        f"spark.ssl.rpc.keyStorePassword={password}",
        f"spark.ssl.rpc.keyPassword={password}",
        f"spark.ssl.rpc.trustStore={store}",
        f"spark.ssl.rpc.trustStorePassword={password}",
        "spark.sparkdl.comm.ps.sharedMemory=false",
    ]
    arguments = ["local-cluster[2,1,1024]", "ps", "2", *settings]
    [report] = run(tmp_path, "one_fit.py", arguments, SPARK4 / "pyspark", [SPARK4])
    assert report["summary"]["bytes"]["pull"] > 0
    assert report["off"] < 1e-5


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(600)
def test_all_strategies_on_nine_executors(tmp_path):
    star = Topology.parse("star:9")
    cases = ["ps", "gloo", "auto", *(a.name for a in ALGORITHMS.values() if not a.why_ineligible(star))]
    cases += ["hierarchical topology=hosts:3x3", "lp collective.loop=root-overlap"]
    arguments = ["local-cluster[9,1,1024]", "9", *cases]
    reports = run(tmp_path, "many_fits.py", arguments, spark_home.SPARK, [])
    assert [report["case"] for report in reports] == cases
    for report in reports:
        assert report["world"] == 9
        assert report["distance"] < 1e-5, report
