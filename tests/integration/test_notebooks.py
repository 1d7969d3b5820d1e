"""The notebooks are run as they stand, in a process and a Spark application of their own."""

import json
import os
import re
import sys
from pathlib import Path
from statistics import fmean

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
MACHINE = re.compile(r"/(home|tmp|work|root)/")


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the kernel and Spark's executors inherit: this Python, this checkout, the loopback."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]))
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "MPLCONFIGDIR"):
        monkeypatch.setenv(name, str(tmp_path / name))


def run(notebook: nbformat.NotebookNode, folder: Path) -> None:
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    NotebookClient(notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()


def printed(notebook: nbformat.NotebookNode) -> str:
    """What its cells print, without warnings, as of a slow start of matplotlib. They draw something, too."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    return "".join(output.get("text", "") for output in outputs if output.get("name") != "stderr")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("environment", "spark")  # spark: sets SPARK_HOME to a copy that executors may write to
def test_quickstart(tmp_path: Path) -> None:
    notebook = nbformat.read(ROOT / "notebooks/quickstart.ipynb", as_version=4)
    check(notebook)  # as it is stored
    run(notebook, folder=tmp_path)
    check(notebook)


def test_quickstart_is_stored_with_its_outputs() -> None:
    text = (ROOT / "notebooks/quickstart.ipynb").read_text(encoding="utf-8")
    check(nbformat.reads(text, as_version=4))
    assert not MACHINE.search(text), "paths of the machine that ran it"


def test_stored_curves_are_those_that_were_measured() -> None:
    check_curves(nbformat.read(ROOT / "notebooks/compression.ipynb", as_version=4))


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
def test_strategies_are_stored_as_they_were_measured() -> None:
    notebook = nbformat.read(ROOT / "notebooks/strategies.ipynb", as_version=4)
    stored = printed(notebook)
    assert "bml+decoupled" in stored
    run(notebook, folder=ROOT / "notebooks")
    assert printed(notebook) == stored


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
def test_curves() -> None:
    notebook = nbformat.read(ROOT / "notebooks/compression.ipynb", as_version=4)
    run(notebook, folder=ROOT / "notebooks")
    check_curves(notebook)


def test_bigdl_is_stored_with_its_outputs() -> None:
    text = (ROOT / "notebooks/bigdl.ipynb").read_text(encoding="utf-8")
    check_bigdl(nbformat.reads(text, as_version=4))
    assert not MACHINE.search(text), "paths of the machine that ran it"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("environment")
def test_bigdl(tmp_path: Path, bigdl: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(bigdl), os.environ["PYTHONPATH"]]))
    monkeypatch.delenv("SPARK_CONF_DIR")  # its class path would be all that there is
    notebook = nbformat.read(ROOT / "notebooks/bigdl.ipynb", as_version=4)
    run(notebook, folder=tmp_path)
    check_bigdl(notebook)


def check_bigdl(notebook: nbformat.NotebookNode) -> None:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2, "the loss, and what overlaps"
    text = printed(notebook)
    right, rows = map(int, re.search(r"(\d+) of (\d+) rows of the test set right", text).groups())
    assert rows > 300
    assert right > 0.9 * rows
    assert re.search(r"(\d+) of (\d+) rows are taken for another digit", text).groups() == ("0", str(rows))


def check_curves(notebook: nbformat.NotebookNode) -> None:
    head, _, *lines = printed(notebook).splitlines()
    shown = {
        (task, line.split()[0]): float(value)
        for line in lines
        for task, value in zip(head.split()[1:], line.split()[1:], strict=True)
        if value != "-"
    }
    files = (ROOT / "python/benchmarks/compression/results").glob("compress-accuracy-*.json")
    rows = [row for file in files for row in json.loads(file.read_text(encoding="utf-8"))["rows"]]
    assert shown == {(row["case"], row["algorithm"]): round(100 * fmean(row["accuracies"]), 1) for row in rows}


def check(notebook: nbformat.NotebookNode) -> None:
    """That it shows what the guides promise of it."""
    text = printed(notebook)
    accuracy, log_loss = re.search(r"accuracy (\S+), log loss (\S+)", text).groups()
    assert float(accuracy) > 0.9
    assert float(log_loss) < 0.5
    different, rows = map(int, re.search(r"(\d+) of (\d+) rows scored differently", text).groups())
    assert different == 0
    assert rows > 300
    right, streamed = map(int, re.search(r"(\d+) of (\d+) streamed rows right", text).groups())
    assert streamed == rows
    assert right > 0.9 * rows
    tuned = re.findall(r"batchSize +(\d+): accuracy (\S+)", text)
    assert [batch for batch, _ in tuned] == ["128", "1024"]
    assert float(tuned[0][1]) > float(tuned[1][1])
