"""Files at any path that Hadoop reaches (``hdfs:``, ``s3a:``, ``viewfs:``, ``file:``), from a Python worker.

A worker has no JVM of its own to call; its executor's plugin does the work, with the executor's Hadoop settings: the
cluster's files and what the application's conf has as ``spark.hadoop.*``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from types import TracebackType

from sparkdl_comm.strategies.ps.bridge import Bridge


@dataclass(frozen=True)
class Entry:
    """What :meth:`ExecutorFiles.list` finds: its name within the directory, and its length in bytes."""

    name: str
    is_directory: bool
    length: int


class ExecutorFiles:
    """Files, through the executor that runs this Python worker, on a connection of their own.

    So a long copy does not hold up this rank's other requests. Not thread-safe, but :meth:`abort` may be called from any
    thread. Remote paths are Hadoop's; one without a scheme is in ``spark.hadoop.fs.defaultFS``.

    All methods raise PersistenceError, with the path and Hadoop's message, for what the file system refuses;
    DeadlineError if the executor does not answer in ``timeout`` seconds and a grace; BridgeError if it goes away. After the
    last two this object is of no more use.
    """

    def __init__(self, timeout: float) -> None:
        """Connects to the executor.

        :param timeout: seconds that one operation may take, a whole copy too (``CommConf.timeout``).
        :raises PluginError: the plugin is not loaded in this executor.
        """
        self._bridge = Bridge.of_this_executor(timeout)

    def put(self, local: str | os.PathLike[str], remote: str) -> None:
        """Copy a local file to ``remote``, in place of what is there. Parents are made.

        A copy that fails leaves nothing, but it is not atomic: who may be read meanwhile, or killed, puts under another
        name and renames.
        """
        self._bridge.request("fs.put", local=os.path.abspath(local), remote=remote)

    def get(self, remote: str, local: str | os.PathLike[str]) -> None:
        """Copy the file at ``remote`` to a local one, in place of what is there; its directory must exist."""
        self._bridge.request("fs.get", remote=remote, local=os.path.abspath(local))

    def list(self, remote: str) -> list[Entry]:
        """What is in the directory ``remote``, by name."""
        return [Entry(**entry) for entry in self._bridge.request("fs.list", remote=remote)["entries"]]

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory within its file system. ``target`` must not exist, its parent must.

        Atomic where the file system's rename is, which an object store's is not.
        """
        self._bridge.request("fs.rename", **{"from": source, "to": target})

    def delete(self, remote: str, recursive: bool = False) -> None:
        """Delete a file or directory; one that is not empty only if ``recursive``. What is not there counts as deleted."""
        self._bridge.request("fs.delete", remote=remote, recursive=recursive)

    def exists(self, remote: str) -> bool:
        return bool(self._bridge.request("fs.exists", remote=remote)["exists"])

    def abort(self) -> None:
        """Wakes an operation that waits: it raises BridgeError, and the executor ends a copy that is under way."""
        self._bridge.abort()

    def close(self) -> None:
        self._bridge.close()

    def __enter__(self) -> ExecutorFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
