"""Executors whose Python lacks the package or a module of the user's: a few lines that say what to set."""

import os
import sys
from pathlib import Path

import pytest
from pyspark.errors import PythonException

from sparkdl_comm import CommDistributor, TorchModel
from sparkdl_comm.errors import ConfError, ModelError
from sparkdl_comm.job import session
from tests.integration.nets import Small
from tests.integration.test_training import fit, frame
from tests.slow import slow

SITE = Path(pytest.__file__).parents[1]


def lines(error: pytest.ExceptionInfo[BaseException]) -> int:
    """At 120 characters, as a terminal shows it."""
    return sum(1 + len(line) // 120 for line in str(error.value).splitlines())


@pytest.fixture
def executors_python(spark, monkeypatch, tmp_path):
    """Has executors use a Python that runs ``command``, a line of a shell script."""

    def use(command: str) -> Path:
        python = tmp_path / "python-there"
        python.write_text(f"#!/bin/bash\n{command}\n")
        python.chmod(0o755)
        monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
        return python

    return use


def without_the_package(*more: Path) -> str:
    """Python with no more than PySpark and ``more`` on its path. Spark starts its own daemon there, not this package's."""
    zips = Path(os.environ["SPARK_HOME"], "python", "lib").glob("*.zip")
    arguments = '"${@/sparkdl_comm.daemon/pyspark.daemon}"'
    return f'PYTHONPATH="{os.pathsep.join(map(str, [*zips, *more]))}" exec {sys.executable} -S {arguments}'


@pytest.mark.parametrize("more", [slow([]), [SITE]], ids=["a bare Python", "only without this package"])
def test_the_package_is_not_there(spark, executors_python, more):
    executors_python(without_the_package(*more))
    with pytest.raises(
        ConfError, match=r"the Python of executors, .*\(Python 3\.\d+\.\d+\) on .*sparkdl_comm'"
    ) as error:
        fit(frame(spark), strategy="gloo")
    assert "PYSPARK_PYTHON" in str(error.value)
    assert "spark.pyspark.python" in str(error.value)
    assert lines(error) <= 5
    with pytest.raises(ConfError, match="the Python of executors") as error:
        CommDistributor(num_workers=3).run(os.getpid)
    assert lines(error) <= 5
    with pytest.raises(PythonException, match="ImportError: the Python of executors, .*PYSPARK_PYTHON"):
        TorchModel(Small(), True).transform(frame(spark)).collect()


def test_no_such_python(spark, monkeypatch):
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/nowhere/python3")
    with pytest.raises(ConfError, match="executors cannot start their Python, /nowhere/python3: .*PYSPARK_PYTHON"):
        CommDistributor(num_workers=3).run(os.getpid)


def test_a_python_of_another_version(spark, monkeypatch):
    monkeypatch.setattr(spark.sparkContext, "pythonVer", "3.8")  # the driver's
    with pytest.raises(ConfError, match=r"in worker has different version.* driver:? 3\.8: .*PYSPARK_PYTHON"):
        CommDistributor(num_workers=3).run(os.getpid)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module that only the driver can import; its file."""
    name = f"beside_{tmp_path.name}"
    file = tmp_path / f"{name}.py"
    file.write_text(
        "import torch\n\n\nclass Net(torch.nn.Linear):\n    def __init__(self):\n        super().__init__(28, 10)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield file
    sys.modules.pop(name, None)


@pytest.mark.slow
def test_a_module_beside_the_script(spark, module):
    net = __import__(module.stem).Net
    with pytest.raises(ModelError, match=rf"no module '{module.stem}'.* Give them {module}, by .*addPyFile") as error:
        fit(frame(spark), model=net, strategy="gloo")
    assert lines(error) <= 5
    with pytest.raises(ModelError, match=f"Give them {module}") as error:
        CommDistributor(num_workers=3).run(net)
    assert lines(error) <= 5
    with pytest.raises(
        PythonException, match=rf"ModelError: executors have no module '{module.stem}'.* Give them {module}, by "
    ):
        TorchModel(net(), True).transform(frame(spark)).collect()
    spark.sparkContext.addPyFile(str(module))  # what the error says
    assert fit(frame(spark), model=net, strategy="gloo").summary["iterations"] > 0
    assert TorchModel(net(), True).transform(frame(spark)).count() > 0


@pytest.mark.slow
def test_one_machine_uses_the_python_of_the_driver(spark, monkeypatch):
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/nowhere/python3")
    monkeypatch.delenv("PYSPARK_PYTHON")
    assert CommDistributor(num_workers=3).run(lambda: sys.executable) == sys.executable
    assert spark.sparkContext.pythonExec == sys.executable
    for master, named in (("spark://m:7077", ""), ("local[2]", "/their/python")):
        monkeypatch.setattr(spark.sparkContext, "pythonExec", "theirs")
        monkeypatch.setenv("PYSPARK_PYTHON", named)
        monkeypatch.setattr(spark.sparkContext, "master", master)
        session.use_driver_python(spark)
        assert spark.sparkContext.pythonExec == "theirs"
