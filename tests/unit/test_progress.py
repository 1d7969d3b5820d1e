"""The driver's progress bar."""

from typing import Any

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
