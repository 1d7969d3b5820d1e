"""The last lines of a process's output."""

from __future__ import annotations

import subprocess
import sys

from sparkdl_comm.errors import RankFailedError
from sparkdl_comm.gang.failure import MAX_JSON, Failure
from sparkdl_comm.job.output import MAX_LINES

PROGRAM = """
import logging, os, sys
from sparkdl_comm.job.output import OutputCapture

tail = OutputCapture()
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
    assert len(found) == MAX_LINES
    assert found[-5:-2] == ["line 199", "child", "WARNING:root:logged"]
    assert found[-2:] == [1000 * "x", "not ended"]
    assert done.stdout == b"after\n"
    passed_on = done.stderr.splitlines()
    assert passed_on[:200] == [b"line %d" % n for n in range(200)]
    assert passed_on[-1] == b"not ended"


FLOOD = """
import sys, time
from sparkdl_comm.job.output import OutputCapture

sent = []
tail = OutputCapture()
print("before", flush=True)
tail.forward(lambda lines, dropped: sent.append((lines, dropped)) or len(sent) != 2)
time.sleep(0.5)
assert sent == [(["before"], 0)], sent
line = 99 * "x" + "\\n"
begin = time.monotonic()
for _ in range(1000):
    sys.stdout.write(1000 * line)
seconds = time.monotonic() - begin
print("the last", end="")
tail.end_forward()
print("not for the driver")
tail.close()
refused, taken = sent[1], sent[2:]
assert len(sent) <= 2 + (seconds + 1) / 0.25, (len(sent), seconds)
assert all(len(lines) <= 100 for lines, _ in sent)
assert sum(len(lines) + dropped for lines, dropped in taken) == 1_000_001, refused
assert sent[-1][0][-1] == "the last"
"""


def test_of_a_flood_the_last_lines_are_sent() -> None:
    done = subprocess.run([sys.executable, "-c", FLOOD], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stderr) > 100_000_000


HOLDS_THE_INTERPRETER = """
import ctypes, os
from sparkdl_comm.job.output import OutputCapture

write = ctypes.PyDLL(None).write  # PyDLL does not let other threads run during a call
text = (1 << 20) * b"x" + b"\\nthe last\\n"
tail = OutputCapture()
for _ in range(20):
    assert write(1, text, len(text)) == len(text)
    assert tail.tail().endswith("the last")
assert os.fstat(1).st_blocks * 512 <= 2 << 20, os.fstat(1)
tail.close()
"""


def test_native_code_that_holds_the_interpreter_never_waits_for_us() -> None:
    done = subprocess.run([sys.executable, "-c", HOLDS_THE_INTERPRETER], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stderr.splitlines()) == 40
    assert len(done.stderr) > 20 << 20


LAGS = """
import ctypes, os, sys
from sparkdl_comm.job import output

output.MAX_UNREAD_BYTES = 4 << 20
write = ctypes.PyDLL(None).write
tail = output.OutputCapture()
write(2, b"first\\n" + (5 << 20) * b"x" + b"\\nlast\\n", (5 << 20) + 12)
assert tail.tail().splitlines()[-1] == "last"
os.system("echo by a shell > /dev/stderr")
os.system("echo after it")
assert tail.tail().splitlines()[-1] == "after it", tail.tail()[-100:]
tail.close()
print("closed")
"""


def test_of_more_than_memory_the_last_is_passed_on() -> None:
    done = subprocess.run([sys.executable, "-c", LAGS], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert b"bytes of output left out here]" in done.stderr[:100]
    assert done.stderr.endswith(b"after it\n")
    assert len(done.stderr) < 3 << 20
    assert done.stdout == b"closed\n"


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
