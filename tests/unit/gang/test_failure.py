from __future__ import annotations

import copy
import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

from sparkdl_comm import errors
from sparkdl_comm.data.fields import Field
from sparkdl_comm.data.ragged import Ragged, call
from sparkdl_comm.errors import (
    ERRORS_BY_NAME,
    ConfError,
    DeadlineError,
    GangError,
    InputError,
    ModelError,
    NonFiniteLossError,
    ProtocolError,
    RankFailedError,
    RankLostError,
    SparkdlCommError,
)
from sparkdl_comm.gang.failure import MARKER, MAX_JSON, Failure, is_secondary, user_traceback


def repickled(error):
    return pickle.loads(pickle.dumps(error))  # noqa: S301 - our own


def raised(exc: BaseException) -> BaseException:
    try:
        raise exc
    except BaseException as caught:  # noqa: BLE001 - that is what is tested
        return caught


def examples() -> list[SparkdlCommError]:
    kinds = [cls("what", rank=3, step=7, phase="pull", remote_traceback="tb\n") for cls in ERRORS_BY_NAME.values()]
    return [
        *kinds,
        RankFailedError(rank=1, step=None, phase="", error="ValueError", error_message="m", remote_traceback="t"),
    ]


@pytest.mark.parametrize("error", examples(), ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("trip", [repickled, copy.copy, copy.deepcopy])
def test_errors_survive_pickle_and_copy(error, trip):
    back = trip(error)
    assert type(back) is type(error)
    assert back.args == error.args
    assert vars(back) == vars(error)
    assert str(back) == str(error)


def test_subclass_with_required_keyword_survives_pickle():
    back = repickled(PickyError(must="x"))
    assert (back.must, back.message) == ("x", "picky x")


class PickyError(ConfError):
    def __init__(self, *, must: str) -> None:
        super().__init__(f"picky {must}")
        self.must = must


def test_tree():
    builtin = {
        "ConfError": ValueError,
        "InputError": ValueError,
        "ModelError": ValueError,
        "PluginError": RuntimeError,
        "SlotsError": RuntimeError,
        "BridgeError": RuntimeError,
        "PersistenceError": OSError,
        "ProtocolError": GangError,
        "NonFiniteLossError": FloatingPointError,
        "GangError": RuntimeError,
        "DeadlineError": TimeoutError,
    }
    for name, base in builtin.items():
        assert issubclass(getattr(errors, name), base), name
        assert issubclass(getattr(errors, name), SparkdlCommError), name
    for name in ("RankFailedError", "RankLostError", "DeadlineError", "AuthenticationError"):
        assert issubclass(getattr(errors, name), GangError), name


def test_string_shows_message_and_remote_traceback():
    assert str(ConfError("set x")) == "set x"
    text = str(ConfError("set x", rank=2, remote_traceback='File "train.py"'))
    assert text.startswith("set x\n")
    assert "rank 2" in text
    assert 'File "train.py"' in text


@pytest.mark.parametrize("kind", [ConfError, InputError, ModelError])
def test_what_the_user_did_wrong_is_told_in_one_sentence(kind):
    failure = replace(Failure.of(raised(kind("labels 10 of 9")), rank=1), log="printed")
    back = Failure.from_json(failure.to_json()).to_exception()
    assert str(back) == "labels 10 of 9"
    assert (back.rank, back.log_tail) == (1, "printed")


def test_code_of_the_users_behind_it_keeps_its_traceback():
    error = InputError("decode raised")
    error.__cause__ = raised(KeyError("their line"))
    assert "their line" in str(Failure.of(raised(error), rank=1).to_exception())
    error = ConfError("cannot listen")
    error.__cause__ = OSError("in use")
    assert str(Failure.of(raised(error), rank=1).to_exception()) == "cannot listen"


def test_foreign_exception_becomes_rank_failed():
    failure = Failure.of(raised(KeyError("no such layer")), rank=2, step=5, phase="forward")
    back = Failure.from_json(failure.to_json()).to_exception()
    assert type(back) is RankFailedError
    assert (back.rank, back.step, back.phase, back.error) == (2, 5, "forward", "KeyError")
    assert "rank 2" in str(back)
    assert "no such layer" in str(back)
    assert "in raised" in str(back)  # a line of the traceback
    assert not failure.secondary


def test_own_error_comes_back_as_its_own_class():
    failure = Failure.of(raised(NonFiniteLossError("loss is nan")), rank=1, step=3, phase="loss")
    back = Failure.from_json(failure.to_json()).to_exception()
    assert type(back) is NonFiniteLossError
    assert (back.message, back.rank, back.step, back.phase) == ("loss is nan", 1, 3, "loss")
    assert "in raised" in (back.remote_traceback or "")


@pytest.mark.parametrize("first", [ValueError("x"), ConfError("x"), RankLostError("gone", rank=0)])
def test_reporting_another_ranks_failure_keeps_it(first):
    original = Failure.of(raised(first), rank=2, step=5, phase="forward")
    again = Failure.of(raised(original.to_exception()), rank=0, step=9, phase="push")
    assert again == Failure(**{**vars(original), "secondary": True})


def test_an_error_about_another_rank_names_that_rank():
    assert Failure.of(RankLostError("2 is gone", rank=2), rank=0).rank == 2


def test_user_class_of_the_same_name_is_not_taken_for_ours():
    impostor = type("ConfError", (ValueError,), {"__module__": "user"})
    failure = Failure.of(impostor("x"), rank=0)
    assert failure.error == "user.ConfError"
    assert type(failure.to_exception()) is RankFailedError


def test_exception_without_message():
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert "RuntimeError" in Failure.of(MuteError(), rank=0).message


@pytest.mark.parametrize(
    ("exc", "expected"),
    [
        (RankLostError("x", rank=1), True),
        (DeadlineError("x"), True),
        (errors.BridgeError("x"), True),
        (ConnectionResetError(), True),
        (RuntimeError("[pair.cc:538] Connection closed by peer [127.0.0.1]:4711"), True),
        (RuntimeError("Timed out waiting 1800000ms for recv operation to complete"), True),
        (RuntimeError("Timed out waiting 4000ms for recv operation to complete"), True),
        (torch.distributed.DistNetworkError("The client socket has failed to connect"), True),
        (RuntimeError("shapes do not match"), False),
        (ValueError("connection closed by peer"), False),
        (ConfError("x"), False),
        (ConfError("x", remote_traceback=""), True),
    ],
)
def test_secondary(exc, expected):
    assert is_secondary(exc) is expected
    assert Failure.of(exc, 0).secondary is expected
    assert Failure.of(exc, 0, secondary=not expected).secondary is not expected


def test_secondary_by_its_cause():
    outer = GangError("all-reduce failed")
    outer.__cause__ = ConnectionResetError()
    assert is_secondary(outer)


def test_huge_texts_are_cut_in_the_middle():
    failure = Failure(0, 1, "p", "E", "m" * 10**6, "first line\n" + "\x00\U0001f600" * 10**5 + "\nlast line")
    text = failure.to_json()
    assert len(text) <= MAX_JSON
    assert text.isascii()
    assert failure.traceback.startswith("first line\n")
    assert failure.traceback.endswith("\nlast line")
    assert "characters cut" in failure.traceback
    assert len(text) > MAX_JSON // 2  # what is there is used
    assert Failure.from_json(text) == failure


GOOD = {
    "rank": 1,
    "step": None,
    "phase": "",
    "error": "E",
    "message": "",
    "traceback": "",
    "secondary": False,
    "log": "",
}


@pytest.mark.parametrize(
    "wrong",
    [
        {**GOOD, "rank": -1},
        {**GOOD, "rank": True},
        {**GOOD, "rank": 2**40},
        {**GOOD, "step": 1.5},
        {**GOOD, "message": None},
        {**GOOD, "error": "E" * 300},
        {**GOOD, "traceback": "x" * 50_000},
        {**GOOD, "secondary": 1},
        {**GOOD, "extra": 1},
        {key: value for key, value in GOOD.items() if key != "phase"},
        [],
        None,
    ],
)
def test_wrong_json_is_refused(wrong):
    assert Failure.from_json(json.dumps(GOOD)).rank == 1
    with pytest.raises(ProtocolError):
        Failure.from_json(json.dumps(wrong))


@pytest.mark.parametrize("text", ["", "{", "[" * 30_000, "nan", " " * (MAX_JSON + 1)])
def test_no_json_is_refused(text):
    with pytest.raises(ProtocolError):
        Failure.from_json(text)


SPARK = """org.apache.spark.SparkException: Job aborted due to stage failure: Could not recover from a failed
barrier ResultStage. Most recent failure reason: Stage failed because barrier task ResultTask(3, 1) finished
unsuccessfully. org.apache.spark.api.python.PythonException: Traceback (most recent call last): File
"worker.py", line 1247, in main process() RuntimeError: {}

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:572)
Caused by: org.apache.spark.api.python.PythonException: RuntimeError: {}
\tat org.apache.spark.executor.Executor$TaskRunner.run(Executor.scala:635)
"""


def test_find_in_spark_text():
    failure = Failure.of(raised(ValueError('quote " brace } backslash \\ ümlaut\nsecond')), 1, 4, "backward")
    assert Failure.find(SPARK.format(failure.embed(), failure.embed())) == failure
    assert "\n" not in failure.embed()


def test_find_prefers_the_primary_one():
    lost = Failure.of(DeadlineError("late"), 0, 4, "pull")
    cause = Failure.of(ValueError("x"), 1, 4, "pull")
    assert Failure.find(SPARK.format(lost.embed(), cause.embed())) == cause
    assert Failure.find(SPARK.format(lost.embed(), "nothing")) == lost


@pytest.mark.parametrize("cut", [1, 20, 60, 200])
def test_find_skips_what_is_cut(cut):
    failure = Failure.of(raised(ValueError("x")), 1)
    broken = failure.embed()[: len(MARKER) + cut]
    assert Failure.find(broken) is None
    assert Failure.find(SPARK.format(broken, failure.embed())) == failure


def test_find_nothing():
    assert Failure.find("") is None
    assert Failure.find(MARKER + "{}") is None
    assert Failure.find(MARKER + '{"a":' * 50_000) is None


def their_bug(rows):
    return json.loads("{")


def test_the_traceback_shows_the_users_code_alone():
    """Between this package's frames and the last one, which is of Python's library."""
    rows = Ragged.of(Field("featuresCol", "x", collate=their_bug), np.ones(2, np.float32), np.array([2]))
    with pytest.raises(ModelError) as caught:
        call(lambda: rows.collate(), [])
    shown = user_traceback(caught.value)
    assert "in their_bug" in shown
    assert "in raw_decode" in shown, "where it was raised"
    assert "in loads" not in shown
    assert "ragged.py" not in shown, "this package's"
    assert "json.decoder.JSONDecodeError: Expecting property name" in shown
    assert shown.rstrip().splitlines()[-1].startswith("sparkdl_comm.errors.ModelError: collate_fn raised")


def test_a_fault_without_the_users_code_keeps_its_traceback():
    with pytest.raises(ProtocolError) as caught:
        Failure.from_json("[]")
    fault = caught.value.with_traceback(caught.value.__traceback__.tb_next)  # without this test's frame
    shown = user_traceback(fault)
    assert "in from_json" in shown
    assert "in from_dict" in shown
