"""Access to Hadoop's file systems (``hdfs:``, ``s3a:``, ``viewfs:``, ``file:``) from a Python worker.

The plugin in the executor does the work. It uses the executor's Hadoop settings: the cluster's configuration files, and
``spark.hadoop.*`` of the application.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from types import TracebackType

from sparkdl_comm.jvm.bridge import Bridge


@dataclass(frozen=True)
class FileEntry:
    """Entry of a directory: ``name`` within the directory, ``length`` in bytes."""

    name: str
    is_directory: bool
    length: int


class ExecutorFiles:
    """Files in Hadoop's file systems, accessed through the executor that runs this Python worker.

    It has its own connection, so a long copy does not delay this rank's other requests. Not thread-safe, but :meth:`abort` may
    be called from any thread. Remote paths are Hadoop paths; a path without a scheme is in ``spark.hadoop.fs.defaultFS``.

    All methods raise PersistenceError, with the path and Hadoop's message, if the file system refuses the operation. They
    raise DeadlineError if the executor does not answer within ``timeout`` seconds and a grace period, and BridgeError if it
    goes away. After these two errors the object is unusable.
    """

    def __init__(self, timeout: float) -> None:
        """Connect to the executor.

        :param timeout: seconds that one operation may take, including a whole copy (``CommConf.timeout``).
        :raises PluginError: the plugin is not loaded in this executor.
        """
        self._bridge = Bridge.connect(timeout)

    def put(self, local: str | os.PathLike[str], remote: str) -> None:
        """Copy a local file to ``remote``. Overwrite an existing file, and create parent directories.

        A failed copy leaves no file, but the copy is not atomic. If a reader could see it, or this process may be killed, put
        the file under another name and rename it.
        """
        self._bridge.request("fs.put", local=os.path.abspath(local), remote=remote)

    def get(self, remote: str, local: str | os.PathLike[str]) -> None:
        """Copy the file ``remote`` to ``local``. Overwrite an existing file; the directory of ``local`` must exist."""
        self._bridge.request("fs.get", remote=remote, local=os.path.abspath(local))

    def list(self, remote: str) -> list[FileEntry]:
        """Return the entries of the directory ``remote``, sorted by name."""
        return [FileEntry(**entry) for entry in self._bridge.request("fs.list", remote=remote)["entries"]]

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory within its file system. ``target`` must not exist, but its parent must.

        The operation is atomic if the file system's rename is. An object store's is not.
        """
        self._bridge.request("fs.rename", **{"from": source, "to": target})

    def delete(self, remote: str, recursive: bool = False) -> None:
        """Delete a file or directory, a non-empty one only if ``recursive``. A missing path is no error."""
        self._bridge.request("fs.delete", remote=remote, recursive=recursive)

    def exists(self, remote: str) -> bool:
        return bool(self._bridge.request("fs.exists", remote=remote)["exists"])

    def abort(self) -> None:
        """End a waiting operation with BridgeError. The executor stops a running copy."""
        self._bridge.abort()

    def close(self) -> None:
        self._bridge.close()

    def __enter__(self) -> ExecutorFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
