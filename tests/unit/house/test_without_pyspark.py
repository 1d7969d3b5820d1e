"""A Python without pyspark, such as that of a notebook beside the cluster: a sentence that says what to install."""

import subprocess
import sys

import pytest

PROFILE = '{"startup": 1, "transfer": [1], "compute": [1]}'


def run(code: str) -> subprocess.CompletedProcess[str]:
    hidden = f"import os, sys; os.environ.pop('SPARK_HOME', None); sys.modules['pyspark'] = None\n{code}"
    return subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("import sparkdl_comm; sparkdl_comm.spark_conf()", "sparkdl_comm.spark_conf"),
        ("from sparkdl_comm import TorchEstimator", "sparkdl_comm.TorchEstimator"),
        ("from sparkdl_comm.bigdl import spark_conf", "sparkdl_comm.bigdl.spark_conf"),
        ("from sparkdl_comm.jvm.planner import plan_buckets; plan_buckets([{}])", "the planner"),
        ("from lab.spark import SparkCluster; SparkCluster(None)", "a Spark cluster of the lab"),
    ],
)
def test_what_needs_pyspark_says_so(code: str, what: str) -> None:
    done = run(code)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"sparkdl_comm.errors.PluginError: {what} needs pyspark, which this Python"), done.stderr
    assert "pip install 'sparkdl_comm[spark]'" in last
    assert "No module named" not in done.stderr
    assert "halted" not in done.stderr


def test_the_rest_works_without_it() -> None:
    done = run("import sparkdl_comm; print(sparkdl_comm.CommConf.from_mapping({}).strategy, sparkdl_comm.optim.LARS)")
    assert done.stdout.startswith("ps <class"), done.stderr
