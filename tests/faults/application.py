"""The tests' end of `driver`: starts the application, has it run faults, and stops it."""

from __future__ import annotations

import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from tests import spark_home
from tests.faults import processes
from tests.faults.fault import Fault

ROOT = Path(__file__).parent.parent.parent
#: What the project promises: from a fault to the exception in the driver.
LIMIT_SECONDS = 15.0
#: When the application is taken for hung. Spark itself needs some seconds to start executors again.
HANG_SECONDS = 240.0


class Application:
    """One Spark application on three executors, in a process of its own.

    `cluster`: conf that says on which, if it is not a local-cluster of its own; that one's processes know the same `name`.
    `patience`: seconds after which it is taken for hung.
    """

    def __init__(
        self, folder: Path, cluster: dict[str, str] | None = None, name: str = "", patience: float = HANG_SECONDS
    ) -> None:
        self.folder = folder
        self._patience = patience
        self.name = name or secrets.token_hex(8)
        #: One dict per fault, for the summary that pytest prints.
        self.measured: list[dict[str, Any]] = []
        #: Bridge directories of the executors that were killed.
        self.abandoned: set[str] = set()
        self._faults = 0
        self._hung = ""
        (folder / "tmp").mkdir()
        cluster = cluster or {}
        environ = {
            **os.environ,
            **spark_home.environment(folder),
            "TMPDIR": str(folder / "tmp"),
            processes.VARIABLE: self.name,
            "SPARK_LOCAL_IP": cluster.get("spark.driver.host", "127.0.0.1"),
        }
        self._log = (folder / "driver.log").open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.driver", str(folder), json.dumps(cluster)],
            cwd=folder,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        self._answer("the start of the application")

    def run(
        self,
        strategy: str,
        *,
        conf: dict[str, str] | None = None,
        ragged: bool = False,
        settings: dict[str, Any] | None = None,
        files: bool = False,
        marker: Path | None = None,
        **fault: Any,
    ) -> Outcome:
        """A run with one fault, the fields of :class:`Fault`; without any field, one without a fault.

        `settings`: Params of the estimator. `files`: rows from files. `marker`: of a fault that has struck another
        application.
        """
        marker = self.begin(strategy, conf=conf, ragged=ragged, settings=settings, files=files, marker=marker, **fault)
        if fault.get("action") == "kill driver" and not marker.exists():
            self._process.wait(self._patience)
            return Outcome({}, json.loads(marker.read_text()), self, marker)
        outcome = self.end(f"{strategy} with {fault or 'no fault'}", marker)
        if fault or ragged:
            self.measured.append({"strategy": strategy, "ragged": ragged, **fault, **outcome.figures()})
        return outcome

    def begin(
        self,
        strategy: str,
        *,
        conf: dict[str, str] | None = None,
        settings: dict[str, Any] | None = None,
        marker: Path | None = None,
        ragged: bool = False,
        files: bool = False,
        settle: bool = True,
        **fault: Any,
    ) -> Path:
        """Has a run begun, as :meth:`run` says; the marker of its fault. `files`: rows from files. `settle`: it ends when all
        of it is gone, and another one was made."""
        self._faults += 1
        request: dict[str, Any] = {"strategy": strategy, "conf": conf, "settings": settings}
        request |= {"ragged": ragged, "files": files, "settle": settle}
        marker = marker or self.folder / f"fault-{self._faults}.json"
        if fault:
            request["fault"] = asdict(Fault(marker=str(marker), driver=self.pid, **fault))
        self._ask(request)
        return marker

    def end(self, of: str, marker: Path) -> Outcome:
        """How a run that was begun has ended."""
        answer = self._answer(of)
        mark = json.loads(marker.read_text()) if marker.exists() else None
        if mark and mark.get("bridge"):
            self.abandoned.add(mark["bridge"])
        return Outcome(answer, mark, self, marker)

    def remains(self, slots: int) -> dict[str, Any]:
        """What driver and Python workers know that is left of the runs before."""
        self._ask({"remains": slots})
        return self._answer("the question what is left")

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self) -> None:
        """Returns when the driver's process has ended."""
        self._process.wait(self._patience)

    def has_answered(self) -> bool:
        return not self._answers.empty()

    def _ask(self, request: dict[str, Any]) -> None:
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def stop(self) -> list[str]:
        """What is left when the application has ended as it should: its processes and bridge directories, by name.

        Directories of executors that were killed are left out: nobody was there to remove them. See `abandoned`.
        """
        self._process.stdin.close()
        self._answer("the end of the application")
        self._process.wait(self._patience)
        deadline = time.monotonic() + 10
        while processes.of_application(self.name) and time.monotonic() < deadline:
            time.sleep(0.1)
        left = [f"{process.name()} {process.pid}" for process in processes.of_application(self.name)]
        directories = {str(path) for path in (self.folder / "tmp").glob("sparkdl-*")}
        return left + sorted(directories - self.abandoned)

    def kill(self, spare: frozenset[int] = frozenset()) -> None:
        """Ends whatever is there of the application; nothing is after :meth:`stop`. `spare`: processes of its cluster."""
        for process in processes.of_application(self.name):
            if process.pid in spare:
                continue
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.Error:
                continue
        self._process.wait()
        self._log.close()

    def log(self) -> str:
        return (self.folder / "driver.log").read_text()[-4000:]

    def _read(self) -> None:
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def _answer(self, to: str) -> dict[str, Any]:
        assert not self._hung, f"the application hung in {self._hung}"
        try:
            line = self._answers.get(timeout=self._patience)
        except queue.Empty:
            self._hung = to
            raise AssertionError(f"no answer to {to} within {self._patience:g} s: it hangs\n{self.log()}") from None
        assert line, f"the application ended in {to}\n{self.log()}"
        return json.loads(line)


class Outcome:
    """What a run ended with. Attributes of the answer: `error` (class name, None for success), `text`, `rank`, …"""

    def __init__(
        self, answer: dict[str, Any], mark: dict[str, Any] | None, application: Application, marker: Path
    ) -> None:
        self.answer = answer
        self.mark = mark
        self.marker = marker
        self._application = application

    def __getattr__(self, name: str) -> Any:
        try:
            return self.answer[name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def struck(self) -> bool:
        """Whether there was a fault, and something for it to strike."""
        return self.mark is not None and self.mark.get("struck", True) is not None

    @property
    def seconds_to_error(self) -> float:
        """From the fault to the exception in the driver."""
        return self.answer["raised_at"] - self.mark["at"]

    @property
    def seconds_to_step(self) -> float:
        """From the fault to the end of the first step of the gang that was started after it."""
        lines = Path(f"{self.marker}.steps").read_text().splitlines()
        return min(step["at"] for step in map(json.loads, lines) if step["at"] > self.mark["at"]) - self.mark["at"]

    def figures(self) -> dict[str, Any]:
        answer = self.answer
        return {
            "error": answer["error"],
            "of_rank": answer.get("rank"),
            "to_error": self.seconds_to_error if self.mark and "raised_at" in answer else None,
            "idle_after": answer["idle_after"],
            "quiet_after": answer["quiet_after"],
            "again": answer.get("again", {}).get("seconds"),
        }

    def assert_fired(self, phase: str, step: int | None = None) -> None:
        """The fault struck where it should: in the middle of what a rank waits for there, if that is how it is made."""
        assert self.mark is not None, f"the fault did not happen: {self.answer}"
        assert self.mark["phase"] == phase
        assert self.mark["in_flight"] is not False, "the operation was over before the fault"
        if step is not None:
            assert self.mark["step"] == step

    def assert_typed(self, *kinds: str) -> None:
        """The driver has one of our errors (`kinds`, or any), Spark's own as its cause or context, in time."""
        assert self.error is not None, "the fit succeeded"
        assert "SparkdlCommError" in self.bases, f"{self.error} is not of ours:\n{self.text}"
        assert not kinds or self.error in kinds, f"{self.error}:\n{self.text}"
        assert self.cause != "NoneType", "Spark's exception is not chained"
        if self.mark is not None:
            assert self.seconds_to_error <= LIMIT_SECONDS

    def assert_nothing_left(self) -> None:
        """No task still runs, no segment is still mapped, no worker is without its JVM; the next run succeeds."""
        assert self.idle_after is not None, "tasks of the failed run still run"
        assert self.idle_after <= LIMIT_SECONDS
        assert self.leftovers == [], "\n".join(self.leftovers)
        assert self.again["error"] is None, self.again["error"]
        assert self.again["iterations"] == 16
