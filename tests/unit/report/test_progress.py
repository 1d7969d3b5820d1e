"""The driver's progress bar, and what rank 0 prints."""

from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from sparkdl_comm.report.progress import ProgressBar


def progress(**changes: Any) -> dict[str, Any]:
    return {"epoch": 0, "epochs": 2, "step": 1, "steps": 10, "loss": 0.5, "samples_per_second": 99.6, **changes}


def test_progress_bar(capsys: Any) -> None:
    with ProgressBar(True) as bar:
        bar(progress())
        bar(progress(epoch=1, step=4, loss=None))
        assert (bar._bar.n, bar._bar.total) == (14, 20)
        bar(progress(epoch=1, step=10, loss=0.123456))
    shown = capsys.readouterr().err
    assert "epoch 2/2: 100%" in shown
    assert "samples/s=100" in shown


def test_hidden() -> None:
    with ProgressBar(False) as bar:
        bar(progress())
    assert bar._bar is None


def test_printed_lines_are_above_the_bar(capsys: Any) -> None:
    with ProgressBar(True) as bar:
        bar.log(["before"], 0)
        bar(progress())
        bar.log(["one", "two"], 3)
        bar(progress(step=2))
    shown = capsys.readouterr()
    assert shown.out == "before\n[3 lines of rank 0 not shown]\none\ntwo\n"
    assert "samples/s=100" in shown.err


CELL = """
import time

from sparkdl_comm.report.progress import ProgressBar
from sparkdl_comm.job.driver_listener import DriverListener
from sparkdl_comm.job.driver_client import DriverClient

step = {"epoch": 0, "epochs": 1, "steps": 2, "loss": 0.5, "samples_per_second": 99.6}
with ProgressBar(True) as bar, DriverListener("127.0.0.1", None, bytes(32), bar, on_log=bar.log) as listener:
    with DriverClient.connect(listener.address, bytes(32), "attempt", 10) as client:
        client.send_progress({**step, "step": 1})
        client.send_lines(["printed by", "rank 0"], 0)
        client.send_progress({**step, "step": 2})
        client.send_tensors({})
    listener.wait_for_tensors(time.monotonic() + 10)
"""


@pytest.mark.slow
def test_in_a_notebook(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes from the connection's thread is shown below the cell that waits for the run."""
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL), nbformat.v4.new_code_cell("1 + 1")])
    NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    outputs, after = (cell.outputs for cell in notebook.cells)
    printed = "".join(output.text for output in outputs if output.get("name") == "stdout")
    assert printed == "printed by\nrank 0\n"
    bar = "".join(output.get("text", "") for output in outputs if output.get("name") == "stderr")
    assert "epoch 1/1: 100%" in bar
    assert [output.output_type for output in after] == ["execute_result"]
