"""What a Python without the package says when it gets a function of the package's; without Spark."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest
from pyspark import cloudpickle

from sparkdl_comm.errors import ConfError
from sparkdl_comm.gang.failure import Failure
from sparkdl_comm.job import broadcasts
from sparkdl_comm.job.import_check import ImportCheck
from sparkdl_comm.job.launch import _diagnose
from sparkdl_comm.optim.optimizer import Optimization
from tests.slow import slow


def function() -> Any:
    """As the package's are: a closure that needs a class of the package's."""
    made = Optimization(print)

    def run(batches: Iterator[int]) -> Iterator[Any]:
        yield from ((batch, made) for batch in batches)

    run.__module__ = "sparkdl_comm.train.spec"
    return run


def test_it_is_the_function_where_the_package_is() -> None:
    for touch in (
        ImportCheck(function(), is_rank=True),
        cloudpickle.loads(cloudpickle.dumps(ImportCheck(function(), True))),
    ):
        assert [batch for batch, _ in touch(iter([1, 2]))] == [1, 2]


def test_of_a_large_function_the_same_module_is_imported_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large function comes by a broadcast, whose own module needs less than the function does."""
    monkeypatch.setattr(broadcasts, "is_classic", lambda _: True)
    monkeypatch.setattr(broadcasts, "_LARGE_BYTES", 0)
    monkeypatch.setattr(broadcasts.MODULE_BROADCASTS, "sweep", lambda _: None)
    spark: Any = SimpleNamespace(
        sparkContext=SimpleNamespace(broadcast=lambda _: SimpleNamespace(destroy=lambda: None))
    )
    with broadcasts.broadcast_if_large(spark, function()) as large:
        _, (check, _) = ImportCheck(large, is_rank=True).__reduce__()
        _, (module, _) = check.__reduce__()
    assert module == "sparkdl_comm.train.spec"


@pytest.mark.parametrize("rank", [slow(True), False])
def test_a_python_without_the_package_tells_its_name_and_what_to_set(tmp_path: Path, rank: bool) -> None:
    (tmp_path / "shipped").write_bytes(cloudpickle.dumps(ImportCheck(function(), rank)))
    zips = Path(pyspark.__file__).parent.glob("python/lib/*.zip")
    load = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", load, str(tmp_path / "shipped")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, zips))},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    failure = Failure.find(done.stderr)
    assert (failure is not None) == rank
    error = failure.to_exception() if failure is not None else ImportError(done.stderr.splitlines()[-1])
    assert isinstance(error, ConfError) == rank
    text = str(error)
    assert f"the Python of executors, {sys.executable} (Python {sys.version.split()[0]})" in text
    assert "No module named 'sparkdl_comm'" in text
    assert "PYSPARK_PYTHON" in text
    assert "spark.pyspark.python" in text
    assert len(text) < 600


def test_a_python_whose_address_space_is_limited(tmp_path: Path) -> None:
    (tmp_path / "shipped").write_bytes(cloudpickle.dumps(ImportCheck(function(), True)))
    load = (
        "import pickle, resource, sys; resource.setrlimit(resource.RLIMIT_AS, (512 << 20, 512 << 20));"
        " pickle.load(open(sys.argv[1], 'rb'))"
    )
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-c", load, str(tmp_path / "shipped")],
        env={**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    failure = Failure.find(done.stderr)
    assert failure is not None, done.stderr
    text = str(failure.to_exception())
    assert "may map 512 MiB of address space, too little to load PyTorch: " in text
    assert "The limit is spark.executor.pyspark.memory. Unset it" in text
    assert "Install" not in text


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            'java.io.IOException: Cannot run program "python9": error=2, No such file or directory',
            "executors cannot start their Python, python9: ",
        ),
        (
            "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different"
            " version: 3.9 than that in driver: 3.11, PySpark cannot run with different minor versions.",
            "Python in worker has different version: 3.9 than that in driver: 3.11: ",
        ),
    ],
)
def test_a_python_that_is_not_there_or_another_in_the_words_of_spark(words: str, told: str) -> None:
    error = _diagnose(f"Job aborted due to stage failure: Lost task 1.0 in stage 0.0: {words}\n\tat x")
    assert isinstance(error, ConfError)
    assert error.message.startswith(told)
    assert "PYSPARK_PYTHON" in error.message
