"""Faults that a rank does to itself, at an exact place of a training run; runs in the ranks.

The product has no hooks for this. The model factory, the user's own code, is called in the rank's process before anything
else: it wraps what is to fail there, for this run alone (`disarm` undoes it, as Spark uses a Python worker again).

What a fault is, and how it strikes, is in :mod:`tests.faults.fault`.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial, wraps
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.faults.fault import STALL_SECONDS, Fault, executor_of_this_worker, strike, undo

#: Seconds by which one rank is slower, so that the victim is certain to wait for it when it is killed.
SLOW_SECONDS = 1.0
#: Seconds after which the victim is killed, in a phase that it is killed in the middle of.
IN_FLIGHT_SECONDS = 0.005

#: What a run does more than once.
STEPS = ("pull", "push", "publish", "forward", "backward", "update", "checkpoint")


class Net(nn.Sequential):
    """1.1 million parameters: 4.5 MB, a few milliseconds of transfer."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 2))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        time.sleep(_pause)
        outcome = hit("forward")
        output = super().forward(rows)
        if output.requires_grad:
            output.register_hook(_backward)
        return output * float("nan") if outcome == "nan" else output


def _backward(_gradient: torch.Tensor) -> None:
    hit("backward")


#: More values than strategy ps tries an optimizer out on, before the first step of a process.
_TRIED_OUT = 100_000


class Sgd(torch.optim.SGD):
    """The user's optimizer."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.01, momentum=0.9)

    def step(self, closure: Any = None) -> Any:
        if sum(tensor.numel() for group in self.param_groups for tensor in group["params"]) > _TRIED_OUT:
            hit("update")
        return super().step(closure)


class Factory:
    """Makes the model, and arms `fault` in the process of the rank it is for (and slows another one)."""

    def __init__(self, fault: Fault | None) -> None:
        self._fault = fault

    def __call__(self) -> nn.Module:
        from pyspark import TaskContext

        disarm()
        context = TaskContext.get()
        if self._fault is not None and context is not None:  # None: the driver rebuilds the trained module
            arm(self._fault, context.partitionId(), struck=os.path.exists(self._fault.marker))
        hit("set-up")
        return Net()


# ---- one process's state

_fault: Fault | None = None
_rank = -1
_first_steps = ""
_pause = 0.0
_hits: dict[str, int] = {}


def arm(fault: Fault, rank: int, struck: bool) -> None:
    """`struck`: it has, and this gang takes the place of the one that it struck."""
    global _fault, _rank, _first_steps, _pause
    _rank, _first_steps, _pause = rank, fault.first_steps, fault.pause
    _hits.clear()
    with open(fault.ranks, "a") as file:
        file.write(json.dumps({"rank": rank, "pid": os.getpid(), "executor": executor_of_this_worker()}) + "\n")
    if struck:
        return
    _fault = fault

    from sparkdl_comm.job import rendezvous
    from sparkdl_comm.job.driver_client import DriverClient
    from sparkdl_comm.jvm.bridge import Bridge
    from sparkdl_comm.storage.files import LocalStorage
    from sparkdl_comm.strategies.all_reduce import AllReduce
    from sparkdl_comm.strategies.collective import CollectiveAllReduce
    from sparkdl_comm.strategies.fabric import FabricWorker
    from sparkdl_comm.strategies.ps.parameter_server import ParameterServer

    _wrap(rendezvous, "register", lambda *_: "join")
    for name in ("request", "post"):
        if hasattr(Bridge, name):
            _wrap(Bridge, name, _bridge_phase, lambda _bridge, _op, **fields: fields.get("version"))
    _wrap(torch.distributed, "all_reduce", lambda *_: "push")
    _wrap(AllReduce, "finish", lambda *_: "finish")
    _wrap(ParameterServer, "finish", lambda *_: "finish")
    _wrap(DriverClient, "send_tensors", lambda *_: "send")
    _wrap(
        LocalStorage,
        "create",
        lambda _storage, path, _write: "probe" if _checkpoint_step(path) is None else "checkpoint",
        lambda _storage, path, _write: _checkpoint_step(path),
    )
    for strategy in (AllReduce, CollectiveAllReduce, FabricWorker, ParameterServer):
        close = strategy.close

        def close_and_disarm(self: Any, close: Callable[[Any], None] = close) -> None:
            close(self)
            disarm()

        _replace(strategy, "close", close_and_disarm)


def disarm() -> None:
    global _fault, _first_steps, _pause
    _fault, _first_steps, _pause = None, "", 0.0
    while undo:
        undo.pop()()


def _checkpoint_step(path: str) -> int | None:
    match = re.search(r"/step-(\d+)\.", path)
    return int(match[1]) if match else None


def _bridge_phase(_bridge: Any, op: str) -> str:
    if op in ("push", "collect"):  # the slow rank is late to give its gradients, the victim waits for the sum
        victim = _fault is not None and _rank == _fault.rank
        return "push" if (op == "collect") == victim else ""
    return op if op in ("attach", "publish", "pull") else ""


def _replace(owner: Any, name: str, value: Any) -> None:
    old = getattr(owner, name)
    setattr(owner, name, value)
    undo.append(lambda: setattr(owner, name, old))


def _wrap(
    owner: Any,
    name: str,
    phase_of: Callable[..., str],
    step_of: Callable[..., int | None] = lambda *_, **__: None,
) -> None:
    """Every call of `owner.name` belongs to a phase: the victim is struck while it waits there, the slow rank comes late."""
    call = getattr(owner, name)

    @wraps(call)
    def wrapped(*args: Any, **fields: Any) -> Any:
        phase = phase_of(*args)
        step = step_of(*args, **fields)
        if step is None:
            step = _count(phase)
        fault = _fault
        if fault is None or not _is_due(phase, step):
            return call(*args, **fields)
        if _rank != fault.rank:
            if _rank == _slow_rank() and phase in ("publish", "push", "join", "finish"):
                time.sleep(SLOW_SECONDS)
            return call(*args, **fields)
        if phase == "checkpoint":
            storage, name, write = args
            return call(storage, name, lambda path: _strike_half_way(fault, step, path, write))
        if phase == "send":
            client, tensors = args
            return call(client, _StrikesHalfWay(tensors, partial(strike, fault, step, in_flight=True)))
        if phase == "attach":  # so that both sides have mapped the segment
            answer = call(*args, **fields)
            strike(fault, step)
            return answer
        answered = threading.Event()
        delay = 0.2 if phase == "join" else IN_FLIGHT_SECONDS
        threading.Thread(target=_strike_later, args=(fault, delay, answered, step), daemon=True).start()
        try:
            return call(*args, **fields)
        finally:
            answered.set()

    _replace(owner, name, wrapped)


class _StrikesHalfWay(dict[str, torch.Tensor]):
    """Tensors that are sent one by one; the fault strikes after the first."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], struck: Callable[[], object]) -> None:
        super().__init__(tensors)
        self._struck = struck

    def values(self) -> Any:
        for number, tensor in enumerate(super().values()):
            if number == 1:
                self._struck()
            yield tensor


def _is_due(phase: str, step: int) -> bool:
    if _fault is None:
        return False
    if phase == "publish" and _fault.phase == "pull":  # what a pull waits for
        return _rank == _slow_rank() and step == _fault.step
    if phase != _fault.phase:
        return False
    return step == _fault.step or phase not in STEPS


def _slow_rank() -> int:
    return 2 if _fault.rank != 2 else 1


def _count(phase: str) -> int:
    count = _hits.get(phase, 0)
    _hits[phase] = count + 1
    return count


def hit(phase: str) -> str | None:
    """The user's code is in `phase`: strikes if it is time. Returns "nan" if the loss is to become that."""
    step = _count(phase)
    if phase == "update" and step == 0 and _first_steps:
        with open(_first_steps, "a") as file:
            file.write(json.dumps({"rank": _rank, "at": time.monotonic()}) + "\n")
    if _fault is None or _rank != _fault.rank or not _is_due(phase, step):
        return None
    return strike(_fault, step)


def _strike_later(fault: Fault, delay: float, answered: threading.Event, step: int) -> None:
    in_flight = not answered.wait(delay)
    strike(fault, step, in_flight)


def _strike_half_way(fault: Fault, step: int, path: Path, write: Callable[[Path], object]) -> None:
    """A file of a checkpoint has half of its bytes when the fault strikes, or none when the disk is full."""
    if fault.action != "full disk":
        write(path)
        os.truncate(path, path.stat().st_size // 2)
    strike(fault, step, in_flight=True)
    if fault.action.startswith("kill"):
        time.sleep(STALL_SECONDS)  # a rank whose executor or driver was killed lives a little longer
    write(path)
