"""Access of a lab's commands to the kernel: as root, or in a user namespace.

A user namespace ends with its last process. So the lab starts a holder in it, a process that only sleeps. Commands enter
the namespace with ``nsenter``, so the program that uses the lab stays outside.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sparkdl_comm.errors import ConfError, DeadlineError, LabError, LabUnavailableError

Mode = Literal["root", "userns"]

#: Seconds for one command of iproute2; they take milliseconds.
COMMAND_SECONDS = 30.0
_PACKAGES = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}

#: Holders that this process started, by process id.
_holders: dict[int, subprocess.Popen[bytes]] = {}

# /run/netns must be ours to write: `ip netns` keeps its names there. /run itself, where the directory is missing.
_HOLD = """
if [ -d /run/netns ]; then mount -t tmpfs tmpfs /run/netns; else mount -t tmpfs tmpfs /run && mkdir /run/netns; fi &&
echo ready && exec sleep infinity
"""


def _search_path() -> str:
    """Return PATH and the folders of system tools, which a user's PATH may lack."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def tool(name: str) -> str:
    """Return the path of a system tool.

    :raises LabUnavailableError: it is missing. The text names its package.
    """
    found = shutil.which(name, path=_search_path())
    if found is None:
        raise LabUnavailableError(f"no `{name}` on this machine: install the package {_PACKAGES[name]}")
    return found


@dataclass(frozen=True)
class Access:
    """Namespaces of the lab, in which commands run: those of the process ``holder``, or (None) ours, as root."""

    holder: int | None = None

    def inside(self, argv: Sequence[str]) -> list[str]:
        """Return the command that runs ``argv`` there, in our working directory."""
        if self.holder is None:
            return list(argv)
        enter = [tool("nsenter"), f"--target={self.holder}", "--user", "--preserve-credentials", "--mount", "--net"]
        return [*enter, f"--wd={os.getcwd()}", "--", *argv]

    def in_namespace(self, namespace: str, argv: Sequence[str]) -> list[str]:
        """Return the command that runs ``argv`` in a named network namespace of the lab."""
        return self.inside([tool("ip"), "netns", "exec", namespace, *argv])

    def run(self, name: str, *arguments: str, stdin: str = "") -> str:
        """Run a tool there. Return its output.

        :raises LabError: it failed. The text has its error output.
        """
        argv = self.inside([tool(name), *arguments])
        try:
            # In a session of its own: Ctrl-C is for us, and must not stop a command half-way.
            done = subprocess.run(
                argv,
                input=stdin,
                capture_output=True,
                text=True,
                timeout=COMMAND_SECONDS,
                start_new_session=True,
                check=False,
            )
        except subprocess.TimeoutExpired as exc:
            raise DeadlineError(f"`{' '.join(argv)}` took longer than {COMMAND_SECONDS:g} s") from exc
        if done.returncode:
            raise LabError(f"`{name} {' '.join(arguments)}` failed ({done.returncode}): {done.stderr.strip()}")
        return done.stdout

    def batch(self, name: str, lines: Sequence[str], namespace: str | None = None) -> None:
        """Run ``lines`` by one process of the tool ``name``, ``ip`` or ``tc``. It stops at the first line that fails.

        :param namespace: network namespace of the lab. None: the commands run outside of the lab's network namespaces.
        :raises LabError: a line failed. The text has the tool's error output.
        """
        if lines:
            where = [] if namespace is None else ["-netns", namespace]
            self.run(name, *where, "-batch", "-", stdin="\n".join(lines) + "\n")


def open_access(mode: Mode | None = None) -> Access:
    """Return access as root if we may, else by a new holder. ``mode`` asks for one of them.

    :raises LabUnavailableError: a tool is missing, or neither is permitted. For a tool, the message names its package.
    """
    if mode not in (None, "root", "userns"):
        raise ConfError(f"mode {mode!r}: must be root or userns")
    for name in _PACKAGES:
        tool(name)
    if mode == "root" or (mode is None and os.geteuid() == 0):
        allowed = subprocess.run(
            [tool("unshare"), "--net", "--mount", "true"], capture_output=True, text=True, check=False
        )
        if allowed.returncode == 0:
            return Access()
        if mode == "root":
            raise _no_permission(allowed.stderr)
    command = [tool("unshare"), "--user", "--map-root-user", "--net", "--mount", "sh", "-c", _HOLD]
    holder = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    assert holder.stdout is not None
    assert holder.stderr is not None
    try:
        readable, _, _ = select.select([holder.stdout], [], [], COMMAND_SECONDS)
        if readable and holder.stdout.readline() == b"ready\n":
            _holders[holder.pid] = holder
            return Access(holder.pid)
        holder.kill()
        raise _no_permission(holder.communicate()[1].decode(errors="replace"))
    except BaseException:
        holder.kill()
        raise
    finally:
        holder.stdout.close()
        holder.stderr.close()


def close_access(access: Access) -> None:
    """End the holder. Its namespaces go with it, if no other process is left in them."""
    if access.holder is None:
        return
    started = _holders.pop(access.holder, None)
    if started is not None:
        started.kill()
        started.wait(COMMAND_SECONDS)
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(access.holder, signal.SIGKILL)


def _no_permission(said: str) -> LabUnavailableError:
    return LabUnavailableError(
        f"no permission to make network namespaces ({said.strip()}). Run as root, or allow unprivileged user namespaces"
        " (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone=1,"
        " kernel.apparmor_restrict_unprivileged_userns=0); to try programs without shaped links, use loopback"
    )
