"""Operations in flight: they are waited for, followed by callbacks, mapped and guarded."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from sparkdl_comm.collectives.communicator import Communicator, _TorchWork
from sparkdl_comm.collectives.work import Work
from sparkdl_comm.conf import CommConf
from sparkdl_comm.errors import DeadlineError, GangError
from tests.unit.gang_helpers import gang_of


def test_a_result_wakes_who_waits_and_calls_back_once() -> None:
    work: Work[int] = Work("adding")
    heard: list[Any] = []
    work.then(heard.append)
    assert not work.is_over
    threading.Timer(0.05, work.set_result, [5]).start()
    assert work.wait(5.0) == 5
    assert work.is_over
    work.then(lambda again: heard.append(again.wait()))
    assert heard == [work, 5]


def test_a_wait_has_a_deadline_of_its_own_or_that_of_the_work() -> None:
    for work, seconds in ((Work[int]("adding"), 0.01), (Work[int]("adding", timeout=0.01), None)):
        with pytest.raises(DeadlineError, match=r"adding is not complete after 0.01 s; set spark"):
            work.wait(seconds)
        with pytest.raises(DeadlineError):
            work.map(str).wait(seconds)
    with pytest.raises(DeadlineError, match="after 0.02 s"):
        Work[int]("adding").map(str, timeout=0.02).wait()


def test_what_is_mapped_ends_with_its_source() -> None:
    @contextmanager
    def guard() -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            raise GangError("the cause") from error

    for end, expected in ((lambda work: work.set_result(2), "4"), (lambda work: work.set_error(ValueError("x")), None)):
        source: Work[int] = Work("adding")
        mapped = source.map(lambda number: 2 * number).map(str, guard=guard)
        heard: list[Any] = []
        mapped.then(heard.append)
        assert not mapped.is_over
        end(source)
        assert mapped.is_over
        assert heard == [mapped]
        assert (mapped.error is None) == (expected is not None)
        if expected is None:
            with pytest.raises(GangError, match="the cause"):
                mapped.wait()
        else:
            assert mapped.wait() == expected


def test_collectives_of_torch_call_back() -> None:
    with gang_of(1) as gangs:
        dist.init_process_group("gloo", store=gangs[0].store("torch"), rank=0, world_size=1)
        try:
            communicator = Communicator(gangs[0], torch.device("cpu"), CommConf.from_mapping({}, strategy="gloo"))
            work = communicator.all_reduce_async(torch.ones(2))
            heard = threading.Event()
            work.then(lambda ended: ended.error is None and heard.set())
            assert heard.wait(5.0)
            assert work.is_over
            assert work.wait().tolist() == [1.0, 1.0]
        finally:
            dist.destroy_process_group()


def test_torch_work_is_over_when_its_callback_runs() -> None:
    """torch's Gloo completes the future first, and its Work a moment later."""
    future: torch.futures.Future[Any] = torch.futures.Future()
    running = SimpleNamespace(is_completed=lambda: False, get_future=lambda: future)
    with gang_of(1) as gangs:
        work: _TorchWork[None] = _TorchWork("all-reduce", gangs[0], 1.0, running, None)
        seen: list[bool] = []
        work.then(lambda ended: seen.append(ended.is_over))
        assert not work.is_over
        future.set_result(None)
        assert seen == [True]
