"""Ranks as processes of the driver's machine, without Spark."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import psutil
import pytest
import torch

from sparkdl_comm.conf import CommConf
from sparkdl_comm.distributor import _run_ranks
from sparkdl_comm.errors import RankFailedError, RankLostError, ResultError
from sparkdl_comm.gang.failure import Failure
from sparkdl_comm.gang.tensors import pack_value
from sparkdl_comm.job.driver_listener import DriverListener
from sparkdl_comm.job.function import FunctionSpec
from sparkdl_comm.job.launch import run_gang
from sparkdl_comm.job.local import run_locally
from tests.integration.training_functions import stands_still_at_the_end
from tests.slow import slow
from tests.unit.gang_helpers import wait_for
from tests.unit.local_functions import fails, is_killed, steps_lars, trains, who


def spec_of(function: Any, timeout: str = "30s", strategy: str = "gloo") -> FunctionSpec:
    conf = CommConf.from_mapping({}, progress=False, timeout=timeout, strategy=strategy)
    return FunctionSpec(
        cloudpickle.dumps(function), False, "cpu", conf, 2, "attempt", bytes(32), ("", 0), is_local=True
    )


def run(function: Any, **settings: str) -> Any:
    return _run_ranks(spec_of(function, **settings), run_locally, None)


def children(of: int | None = None) -> list[psutil.Process]:
    return [child for child in psutil.Process(of).children() if "sparkdl_comm.job.local" in child.cmdline()]


@pytest.mark.slow
def test_each_rank_is_a_process_of_one_node(capfd: Any) -> None:
    (first, one), (second, other) = run(who)
    assert first == ["0", "2", "0", "2", "0", "1"]
    assert second == ["1", "2", "1", "2", "0", "1"]
    assert len({one, other, os.getpid()}) == 3
    shown = capfd.readouterr()
    assert shown.out == "hello from 0\n"
    assert "hello" not in shown.err
    assert children() == []


@pytest.mark.parametrize("way", ["alone", slow("own group, alone")])
@pytest.mark.slow
def test_ranks_that_train_alone_are_told(caplog: pytest.LogCaptureFixture, way: str) -> None:
    names = {"NUM_NODES": "1", "DEVICES": "2"}
    lightning = {f"{kind}_{name}": names[name] for kind in ("PL_TRAINER", "LT") for name in names}
    assert run(functools.partial(trains, way)) == lightning
    (told,) = caplog.messages
    assert told.startswith("ranks 0, 1 of 2 never communicated")
    assert "Wrap the model in DistributedDataParallel" in told
    assert "num_nodes=1, devices=2, strategy='ddp'" in told


@pytest.mark.parametrize(
    ("way", "strategy"),
    [("ddp", "gloo"), slow("own group", "gloo"), ("communicator", "ring")],
)
@pytest.mark.slow
def test_ranks_that_communicate(caplog: pytest.LogCaptureFixture, way: str, strategy: str) -> None:
    run(functools.partial(trains, way), strategy=strategy)
    assert caplog.messages == []


@pytest.mark.slow
def test_an_optimizer_deals_out_its_norms() -> None:
    alone, dealt = run(steps_lars)
    for ends in (alone, dealt):
        assert torch.equal(ends[0], ends[1])
    torch.testing.assert_close(dealt[0], alone[0])


@pytest.mark.slow
def test_a_rank_that_raises() -> None:
    with pytest.raises(RankFailedError, match="LookupError: mine") as caught:
        run(fails)
    assert caught.value.rank == 1
    assert caught.value.log_tail.endswith("the last words")
    assert children() == []


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("reason", [Failure.of(LookupError("mine"), rank=1).embed(), "the JVM is gone"])
def test_what_a_failure_has_of_tensors_that_came_before(
    monkeypatch: pytest.MonkeyPatch, reason: str, trains: bool
) -> None:
    """Those of a model, by the names of its state_dict; nothing of what a function returned."""
    weight = torch.ones(2)
    sent = (
        {"weight": weight, ".extra.inner": torch.zeros(3), ".transient.mask": torch.ones(1)}
        if trains
        else pack_value(weight)
    )
    monkeypatch.setattr(DriverListener, "received_tensors", sent)

    def start(_: DriverListener) -> list[str]:
        raise RuntimeError(reason)

    expected: Any = RankFailedError
    if reason == "the JVM is gone":
        expected = ResultError if trains else RuntimeError
    with pytest.raises(expected, match=r"LookupError: mine|the JVM is gone") as caught:
        run_gang(start, spec_of(who), None, None, is_model=trains)
    assert getattr(caught.value, "state_dict", None) == ({"weight": weight} if trains else None)


def test_a_rank_that_is_killed() -> None:
    with pytest.raises(RankLostError) as caught:
        run(is_killed)
    assert caught.value.rank == 1
    assert children() == []


@pytest.mark.slow
def test_a_rank_that_stands_still_after_all_have_left() -> None:
    with pytest.raises(RankLostError, match=r"a rank has not exited 3 s .* after all had left the gang"):
        run(stands_still_at_the_end, timeout="3s")
    assert children() == []


@pytest.mark.slow
def test_ranks_end_with_the_driver(tmp_path: Path) -> None:
    program = (
        "from tests.unit import local_functions; from tests.unit.job.test_local import run; run(local_functions.sleeps)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, env=environment) as driver:
        wait_for(lambda: len(list(tmp_path.iterdir())) == 2, 60)
        ranks = children(driver.pid)
        driver.kill()
    assert len(ranks) == 2
    assert psutil.wait_procs(ranks, 5)[1] == []
