"""Progress bar and rank 0's output, shown on the driver during a run."""

from __future__ import annotations

import logging
import sys
from types import TracebackType
from typing import Any

_log = logging.getLogger(__name__)


def show_line(visible: bool, line: str) -> None:
    """Print a line if the progress bar is shown, else log it."""
    if visible:
        print(line, flush=True)
    else:
        _log.info("%s", line)


class ProgressBar:
    """Progress bar for a terminal or a notebook, fed with rank 0's messages.

    Call it with a progress dict: ``epoch`` (from 0), ``epochs``, ``step`` (in the epoch, from 1), ``steps``, ``loss``
    (or None), ``samples_per_second``.
    """

    def __init__(self, visible: bool) -> None:
        self._visible = visible
        self._bar: Any = None

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def __call__(self, progress: dict[str, Any]) -> None:
        if not self._visible:
            return
        if self._bar is None:
            from tqdm.auto import tqdm

            self._bar = tqdm(total=progress["epochs"] * progress["steps"], unit="step", dynamic_ncols=True)
        postfix = {"samples/s": f"{progress['samples_per_second']:.0f}"}
        if progress.get("loss") is not None:
            postfix["loss"] = f"{progress['loss']:.4g}"
        self._bar.set_description(f"epoch {progress['epoch'] + 1}/{progress['epochs']}", refresh=False)
        self._bar.set_postfix(postfix, refresh=False)
        self._bar.update(progress["epoch"] * progress["steps"] + progress["step"] - self._bar.n)

    def log(self, lines: list[str], dropped: int) -> None:
        """Print lines of rank 0's standard output above the bar. ``dropped``: number of lines lost before them."""
        if dropped:
            lines = [f"[{dropped} lines of rank 0 not shown]", *lines]
        text = "\n".join(lines)
        if self._bar is None:
            print(text, flush=True)
        else:
            self._bar.write(text, file=sys.stdout)
