"""Process groups, which end as one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import Any

#: Seconds that a killed program may take to end.
GRACE_SECONDS = 3.0


def kill_group(process: subprocess.Popen[Any]) -> None:
    """Kill the process group that a process leads, and reap the process."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(GRACE_SECONDS)
