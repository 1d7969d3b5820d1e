"""Spark standalone on a lab: the master and the driver on the head, one worker with one executor per host.

Spark uses one address of each host, by default that of rail 0, so all of its transfers cross the shaped links. On BCube,
hosts relay between switches. Executors reach the driver over the head's link, which is as fast as the hosts'.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from lab.failure import excerpt
from lab.layout import HEAD, HostId, RailId
from lab.processes import kill_group
from sparkdl_comm import plugin
from sparkdl_comm.errors import ConfError, DeadlineError, LabError

if TYPE_CHECKING:
    from lab.cluster import Cluster

_MASTER_PORT = 7077
_MASTER_UP = "I have been elected leader"
_WORKER_UP = "Successfully registered with master"
_DAEMON_MEMORY = "256m"


class SparkCluster:
    """Spark standalone cluster, which is up inside its context. Afterwards its processes and directories are gone.

    :param cluster: hosts. Each worker has as many cores as its host has ranks.
    :param memory: memory of each executor, as Spark writes it.
    :param rail: rail of the NIC that Spark uses: 0, or "control".
    :param spark_home: default: SPARK_HOME, else pyspark's own.
    :param env: variables of daemons and executors, added to this process's environment.
    :param start_timeout: seconds for the master, and then for all workers, to come up.
    """

    def __init__(
        self,
        cluster: Cluster,
        memory: str = "1g",
        rail: RailId = 0,
        spark_home: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        start_timeout: float = 120.0,
    ) -> None:
        if rail not in (0, "control"):
            raise ConfError(f"rail={rail!r}: the head, where the driver runs, has rail 0 and control")
        self._cluster, self._memory, self._rail = cluster, memory, rail
        self.spark_home = Path(spark_home or os.environ.get("SPARK_HOME") or _pyspark_home())
        if not (self.spark_home / "bin" / "spark-class").exists():
            raise ConfError(f"spark_home={self.spark_home}: no bin/spark-class there")
        self._environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            **(env or {}),
            "SPARK_HOME": str(self.spark_home),
            "SPARK_DAEMON_MEMORY": _DAEMON_MEMORY,
        }
        self._start_timeout = start_timeout
        self._daemons: dict[str, subprocess.Popen[Any]] = {}
        self._undo = contextlib.ExitStack()

    @property
    def master(self) -> str:
        return f"spark://{self._cluster.address(HEAD, self._rail)}:{_MASTER_PORT}"

    @property
    def conf(self) -> dict[str, str]:
        """Settings of an application on the whole cluster: one executor per host, one core per rank."""
        topology, head = self._cluster.topology, self._cluster.address(HEAD, self._rail)
        return {
            "spark.driver.host": head,
            "spark.driver.bindAddress": head,
            "spark.executor.instances": str(len(topology.hosts)),
            "spark.executor.cores": str(topology.ranks_per_host),
            "spark.executor.memory": self._memory,
            "spark.cores.max": str(topology.world),
            "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
        }

    def __enter__(self) -> SparkCluster:
        with contextlib.ExitStack() as undo:
            # This is also the daemons' configuration directory. It is empty, so they log in the default form.
            self._folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="sparkdl-lab-spark-")))
            undo.callback(self._stop)
            head = self._cluster.address(HEAD, self._rail)
            master = ["master.Master", "--host", head, "--port", str(_MASTER_PORT), "--webui-port", "0"]
            self._start("master", HEAD, master)
            self._wait_for(_MASTER_UP)
            topology = self._cluster.topology
            for host in topology.hosts:
                address = self._cluster.address(host.index, self._rail)
                worker = [
                    "worker.Worker",
                    "--host",
                    address,
                    "--cores",
                    str(topology.ranks_per_host),
                    "--memory",
                    self._memory,
                ]
                worker += ["--webui-port", "0", "--work-dir", str(self._folder / "work" / str(host.index)), self.master]
                self._start(f"worker-{host.index}", host.index, worker)
            self._wait_for(_WORKER_UP)
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()

    def submit(
        self,
        arguments: Sequence[str],
        *,
        timeout: float,
        env: Mapping[str, str] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run ``spark-submit`` on the head, with :attr:`conf`, which ``--conf`` among the ``arguments`` overrides.

        :param arguments: arguments of spark-submit, without --master.
        :param timeout: seconds. After them, or an exception, the driver is killed with all its children.
        :param stdout: as in subprocess, and so is ``stderr``. subprocess.PIPE collects the output.
        :return: the ended process. Its exit status is not checked.
        :raises DeadlineError: it took longer.
        """
        if not timeout > 0:
            raise ConfError(f"timeout={timeout}: must be more than 0 seconds")
        settings = [f"--conf={key}={value}" for key, value in self.conf.items()]
        command = [str(self.spark_home / "bin" / "spark-submit"), "--master", self.master, *settings, *arguments]
        environment = {**self._environment, **(env or {}), **self._address(HEAD)}
        driver = self._cluster.popen(
            HEAD, command, env=environment, text=True, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr
        )
        try:
            out, err = driver.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise DeadlineError(
                f"spark-submit {' '.join(arguments)} did not end within timeout={timeout:g} s and was killed"
            ) from None
        finally:
            kill_group(driver)
        return subprocess.CompletedProcess(command, driver.returncode, out, err)

    def executor_logs(self) -> dict[str, str]:
        """Return the output of executors and daemons so far, by path."""
        files = [*self._folder.glob("*.log"), *self._folder.glob("work/*/*/*/std*")]
        return {str(path.relative_to(self._folder)): path.read_text(errors="replace") for path in sorted(files)}

    def _address(self, host: HostId) -> dict[str, str]:
        return {"SPARK_LOCAL_IP": self._cluster.address(host, self._rail)}

    def _start(self, name: str, host: HostId, arguments: Sequence[str]) -> None:
        program = [
            str(self.spark_home / "bin" / "spark-class"),
            f"org.apache.spark.deploy.{arguments[0]}",
            *arguments[1:],
        ]
        environment = {**self._environment, **self._address(host), "SPARK_CONF_DIR": str(self._folder)}
        with open(self._folder / f"{name}.log", "wb") as log:
            self._daemons[name] = self._cluster.popen(
                host, program, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def _wait_for(self, line: str) -> None:
        """Wait until the daemons that were started since the last call have logged ``line``."""
        deadline = time.monotonic() + self._start_timeout
        waiting = [name for name in self._daemons if (name == "master") == (line == _MASTER_UP)]
        while waiting:
            for name in list(waiting):
                ended = self._daemons[name].poll()
                log = (self._folder / f"{name}.log").read_text(errors="replace")
                if line in log:
                    waiting.remove(name)
                elif ended is not None:
                    raise LabError(f"Spark's {name} ended with status {ended}: {excerpt(log)}")
            if waiting and time.monotonic() > deadline:
                log = (self._folder / f"{waiting[0]}.log").read_text(errors="replace")
                raise DeadlineError(
                    f"Spark's {', '.join(waiting)} did not come up within start_timeout={self._start_timeout:g} s;"
                    f" {waiting[0]} wrote last: {excerpt(log)}"
                )
            time.sleep(0.1)

    def _stop(self) -> None:
        # A worker that ends kills its executors, which may lead other process groups.
        for process in self._daemons.values():
            process.terminate()
        for process in self._daemons.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            kill_group(process)


def _pyspark_home() -> str:
    with plugin.needs_pyspark("a Spark cluster of the lab"):
        import pyspark

    return str(pyspark.__path__[0])
