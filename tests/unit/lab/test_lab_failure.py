"""What is shown of a failed program's output."""

from __future__ import annotations

import pytest
from lab.failure import excerpt

FRAMES = "\n".join(
    f"\tat org.apache.spark.rpc.netty.Dispatcher.call{number}(Dispatcher.scala:42)" for number in range(99)
)
WARNING = "26/11/25 12:00:00 WARN TaskSetManager: Lost task 0.0 in stage 0.0"


@pytest.mark.parametrize(
    "first",
    [
        'Exception in thread "main" org.apache.spark.SparkException: Job aborted',
        "py4j.protocol.Py4JJavaError: An error occurred while calling o42.collect",
        "java.lang.OutOfMemoryError",
    ],
)
def test_the_first_exception_and_the_last_cause_come_before_the_end(first: str) -> None:
    causes = [f"Caused by: java.io.IOException: {why}" for why in ("the channel is closed", "no space is left")]
    output = "\n".join([WARNING, first, FRAMES, causes[0], FRAMES, causes[1], FRAMES, "the last line"])
    shown = excerpt(output).splitlines()
    assert shown[:3] == [first, causes[1], "..."]
    assert shown[-1] == "the last line"
    assert causes[0] not in shown
    assert len(excerpt(output)) < len(output)


def test_what_the_end_holds_is_not_repeated() -> None:
    first, cause = "java.lang.IllegalStateException: odd", "Caused by: java.io.IOException: it is full"
    assert excerpt(f"{first}\n{cause}\nthe end") == f"{first}\n{cause}\nthe end"
    shown = excerpt("\n".join([first, FRAMES, cause, "the end"]))
    assert shown.startswith(f"{first}\n...\n")
    assert shown.count(cause) == 1


def test_an_output_without_exceptions_is_its_end() -> None:
    assert excerpt("") == ""
    assert excerpt("x" * 5000) == "x" * 3000


def test_a_long_line_is_cut() -> None:
    shown = excerpt(f"java.lang.Error: {'x' * 2000}\n{FRAMES}").splitlines()
    assert len(shown[0]) == 500
