"""The last lines of a process's output."""

from __future__ import annotations

import subprocess
import sys

from sparkdl_comm.errors import RankFailedError
from sparkdl_comm.train.failure import MAX_JSON, Failure
from sparkdl_comm.train.output import LINES

PROGRAM = """
import logging, os, sys
from sparkdl_comm.train.output import OutputTail

tail = OutputTail()
logging.basicConfig()
for line in range(200):
    print("line", line)
sys.stdout.flush()
os.system("echo child")
logging.warning("logged")
os.write(2, b"\\xff" + 5000 * b"x" + b"\\nnot ended")
found = tail.tail()
tail.close()
tail.close()
print("after")
assert len(os.listdir("/proc/self/fd")) == 4, os.listdir("/proc/self/fd")
with open(sys.argv[1], "w") as file:
    file.write(found)
"""


def test_whoever_writes_and_everything_is_passed_on(tmp_path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "found")], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = (tmp_path / "found").read_text().splitlines()
    assert len(found) == LINES
    assert found[-5:-2] == ["line 199", "child", "WARNING:root:logged"]
    assert found[-2:] == [1000 * "x", "not ended"]
    assert done.stdout == b"after\n"
    passed_on = done.stderr.splitlines()
    assert passed_on[:200] == [b"line %d" % n for n in range(200)]
    assert passed_on[-1] == b"not ended"


def test_in_the_exception() -> None:
    failure = Failure(2, 7, "forward", "KeyError", "x", "Traceback ...", log="one\ntwo")
    error = Failure.find(failure.embed()).to_exception()
    assert isinstance(error, RankFailedError)
    assert error.log_tail == "one\ntwo"
    assert str(error).endswith("Last lines that rank 2 printed:\none\ntwo")
    assert Failure.of(error, 0).log == "one\ntwo"


def test_the_longest_fits() -> None:
    long = 100_000 * "\U0001f600"
    failure = Failure(2**31 - 1, 2**31 - 1, long, long, long, long, log=long)
    assert len(failure.to_json()) <= MAX_JSON
    assert Failure.from_json(failure.to_json()) == failure
