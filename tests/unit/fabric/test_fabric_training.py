"""Training with strategy ``fabric``: ranks in threads with the real loop, servers and aggregators as processes."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sparkdl_comm.conf import CommConf
from sparkdl_comm.errors import ConfError, InputError, ModelError, NonFiniteLossError
from sparkdl_comm.strategies.fabric import FabricWorker
from sparkdl_comm.train.asynchronous_loop import check_settings
from sparkdl_comm.train.spec import Observation, Stopping
from tests.slow import slow
from tests.unit.ranks import Rows, train
from tests.unit.train.test_resume import Fit

SETTINGS = {"fabric_batch_interval": "10ms", "fabric_aggregators": 0}
WEIGHTS = torch.tensor([[1.0], [-2.0], [0.5]])


def line(count: int = 120) -> Rows:
    """Rows of a plane, which a linear layer finds."""
    features = torch.randn(count, 3, generator=torch.Generator().manual_seed(1))
    return Rows(features, features @ WEIGHTS + 0.25)


def fit(world: int = 2, epochs: int = 6, conf: dict | None = None, net=lambda: torch.nn.Linear(3, 1), **more):
    loops = train(
        net,
        line().cut(*[120 // world] * world),
        strategy=FabricWorker,
        conf={**SETTINGS, **(conf or {})},
        batch=6 * world,
        epochs=epochs,
        **more,
    )
    values = [loop.model.values for loop in loops]
    assert all(torch.equal(values[0], other) for other in values)
    return loops


def mean_losses(loops) -> list[float]:
    return [sum(rows) for rows in zip(*([row["loss"] for row in loop.progress.history] for loop in loops), strict=True)]


@pytest.mark.parametrize("sync", ["async:8", slow("async:1"), slow("ssp:2"), "bsp"])
def test_learns(sync: str) -> None:
    loops = fit(conf={"fabric_sync": sync})
    assert torch.allclose(loops[0].model.values[:3], WEIGHTS.flatten(), atol=0.2)
    losses = mean_losses(loops)
    assert losses[-1] < 0.1 * losses[0]
    history = loops[0].progress.history
    assert [row["epoch"] for row in history] == list(range(1, 7))
    steps = np.diff([0, *(row["step"] for row in history)])
    if sync.startswith("async"):
        # One of the other rank may be under way when the last one is applied.
        assert all(20 <= step <= 21 for step in steps)
    else:
        assert all(step == 20 for step in steps)
    details = loops[0].strategy.details()
    assert details["updates"] == history[-1]["step"]
    assert sum(details["delays"].values()) == details["updates"]
    if sync.startswith("async"):
        assert max(details["delays"]) <= int(sync[6:])


def test_learns_over_aggregators_with_momentum_and_an_adaptive_step() -> None:
    conf = {"fabric_aggregators": 1, "fabric_momentum": 0.5, "fabric_step_scale": 2.0}
    losses = mean_losses(fit(world=3, conf=conf))
    assert losses[-1] < 0.1 * losses[0]


def test_bsp_is_what_one_process_does() -> None:
    """The sum of all workers' steps from one model: as SGD on all their rows, with their means added."""
    loops = fit(epochs=2, conf={"fabric_sync": "bsp"})
    torch.manual_seed(loops[0]._spec.seed)
    module = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    sampler, parts = loops[0]._sampler, line().cut(60, 60)
    for epoch in range(2):
        orders = [loop_order(loops[rank], epoch, rank) for rank in range(2)]
        for step in range(sampler.steps):
            optimizer.zero_grad()
            for rank, (order, part) in enumerate(zip(orders, parts, strict=True)):
                index = order[slice(*sampler.slice(rank, step))]
                torch.nn.functional.mse_loss(module(part.features[index]), part.targets[index]).backward()
            optimizer.step()
    expected = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
    assert torch.allclose(loops[0].model.values, expected, atol=1e-5)


def loop_order(loop, epoch: int, rank: int) -> torch.Tensor:
    from sparkdl_comm.data.partitions import permutation

    return torch.from_numpy(permutation(60, loop._spec.seed, epoch, rank))


def test_a_rank_without_rows_in_a_step_takes_it_all_the_same() -> None:
    """Else the others would wait for its update."""
    rows = line(24).cut(23, 1)
    conf = {**SETTINGS, "fabric_sync": "bsp"}
    loops = train(lambda: torch.nn.Linear(3, 1), rows, strategy=FabricWorker, conf=conf, batch=4, epochs=2)
    assert [loop.progress.step for loop in loops] == [12, 12]


def test_validation_and_early_stopping() -> None:
    observation = Observation(stopping=Stopping(patience=1, min_delta=1e9))
    loops = fit(epochs=9, validation=line(40).cut(20, 20), observation=observation)
    history = loops[0].progress.history
    assert len(history) == 2
    assert [row["val_loss"] for row in history] == [row["val_loss"] for row in loops[1].progress.history]


def resumable(
    directory: Path,
    sync: str,
    epochs: int,
    resume: bool = False,
    world: int = 2,
    strategy: type[FabricWorker] = FabricWorker,
    **conf: Any,
) -> Fit:
    """Ranks with an Adam each; a checkpoint at the end of each epoch, if it has two updates."""
    return Fit(
        directory,
        strategy,
        epochs,
        make=lambda: torch.nn.Linear(3, 1),
        parts=line().cut(*[120 // world] * world),
        validation=line(40).cut(*[40 // world] * world),
        batch=6 * world,
        conf={**SETTINGS, "fabric_sync": sync, **conf},
        resume=resume,
    )


@pytest.mark.parametrize(("world", "momentum"), [(2, 0.0), slow(1, 0.8)])
def test_goes_on_from_a_checkpoint(tmp_path: Path, world: int, momentum: float) -> None:
    """Ranks run in lockstep, so that speed does not matter. The order matters with momentum, so that rank is alone."""
    settings: dict[str, Any] = {"world": world, "fabric_momentum": momentum}
    whole = resumable(tmp_path / "whole", "bsp", 5, **settings)
    resumable(tmp_path / "cut", "bsp", 2, **settings)
    epoch = whole.loops[0].progress.history[0]["step"]
    assert sorted(path.name for path in (tmp_path / "cut").iterdir()) == [f"step-{n * epoch:08d}" for n in (1, 2)]
    rest = resumable(tmp_path / "cut", "bsp", 5, resume=True, **settings)
    assert {restorer.step for restorer in rest.restorers.values()} == {2 * epoch}
    for mine, other in zip(rest.loops, whole.loops, strict=True):
        assert [row["step"] for row in mine.progress.history] == [epoch * n for n in range(1, 6)]
        losses, expected = ([row["val_loss"] for row in loop.progress.history] for loop in (mine, other))
        assert losses == pytest.approx(expected, rel=1e-4)
        assert torch.allclose(mine.model.values, other.model.values, atol=1e-5)
        assert mine.strategy.version == 5 * epoch
        assert mine.state()["own"]["callbacks"] == other.state()["own"]["callbacks"]


def test_a_rank_gets_a_model_that_has_its_last_update() -> None:
    details = fit(world=1, epochs=2, conf={"fabric_sync": "async:8"})[0].strategy.details()
    assert details["delays"] == {1: details["updates"]}


def test_goes_on_asynchronously(tmp_path: Path) -> None:
    first = resumable(tmp_path, "async:8", 2)
    begun = first.loops[0].strategy.version
    rest = resumable(tmp_path, "async:8", 4, resume=True)
    assert rest.restorers[0].step == begun
    steps = [row["step"] for row in rest.loops[0].progress.history]
    assert steps[:2] == [row["step"] for row in first.loops[0].progress.history]
    assert len(steps) == 4
    assert all(20 <= after - before <= 21 for before, after in itertools.pairwise(steps))
    details = rest.loops[0].strategy.details()
    assert details["updates"] == steps[-1] - begun
    assert max(details["delays"]) <= 8
    done = resumable(tmp_path, "async:8", 4, resume=True)
    assert torch.equal(done.loops[0].model.values, rest.loops[0].model.values), "no update was left to make"


@pytest.mark.slow
def test_nobody_pushes_while_another_rank_copies_the_servers_state(tmp_path: Path) -> None:
    copying, pushed = threading.Event(), threading.Event()
    early: list[bool] = []

    class Watched(FabricWorker):
        def optimizer_state(self) -> dict[str, Any]:
            copying.set()
            early.append(pushed.wait(0.5))
            copying.clear()
            return super().optimizer_state()

        def update(self, apply: bool = True) -> None:
            super().update(apply)
            if copying.is_set():
                pushed.set()

    resumable(tmp_path, "async:8", 3, strategy=Watched, fabric_momentum=0.5)
    assert early == [False] * 3


def test_a_killed_server_does_not_end_training() -> None:
    """Its process is killed in the fourth epoch; the replica's goes on."""
    killed = []

    class Killing(FabricWorker):
        def before_forward(self) -> None:
            super().before_forward()
            if self.version >= 60 and not killed and self._fabric.service is not None:
                killed.append(self.version)
                self._fabric.processes[0].kill()  # the server's: there are no aggregators

    loops = train(
        lambda: torch.nn.Linear(3, 1),
        line().cut(60, 60),
        strategy=Killing,
        conf={**SETTINGS, "fabric_replica": True, "fabric_replica_aggregators": 0, "fabric_divergence": 0.5},
        batch=12,
        epochs=6,
    )
    assert killed
    losses = mean_losses(loops)
    assert losses[-1] < 0.1 * losses[0]
    assert torch.equal(loops[0].model.values, loops[1].model.values)
    assert torch.allclose(loops[0].model.values[:3], WEIGHTS.flatten(), atol=0.2)


@pytest.mark.parametrize(
    ("conf", "world", "words"),
    [
        ({"fabric_replica": True, "fabric_sync": "bsp"}, 4, "a replica would be of no use"),
        ({"fabric_replica": True}, 1, "with 1 worker"),
        ({"fabric_replica": True, "fabric_aggregators": 0}, 4, "but there are only 0"),
    ],
)
def test_refused_on_the_driver(conf: dict, world: int, words: str) -> None:
    with pytest.raises(ConfError, match=words):
        FabricWorker.check(CommConf.from_mapping({}, strategy="fabric", **conf), world)


def test_what_needs_common_steps_is_refused() -> None:
    from sparkdl_comm.optim.optimizer import Optimization

    def make(**more):
        return Optimization(lambda params: torch.optim.SGD(params, lr=0.1), **more)

    conf = CommConf.from_mapping({}, strategy="fabric")
    with pytest.raises(ConfError, match="precision='fp16' needs steps common to all ranks"):
        check_settings(conf, make(precision="fp16"))
    with pytest.raises(ConfError, match="lrSchedulerInterval='step'"):
        check_settings(conf, make(scheduler_interval="step"))
    with pytest.raises(ConfError, match="data.shuffle=global needs steps common to all ranks"):
        check_settings(CommConf.from_mapping({}, strategy="fabric", data_shuffle="global"), make())
    with pytest.raises(ConfError, match="lr_scheduler steps after each step"):
        fit(lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10**6))
    with pytest.raises(InputError, match="rank 1 got no rows"):
        train(lambda: torch.nn.Linear(3, 1), line(6).cut(6, 0), strategy=FabricWorker, conf=SETTINGS)


def test_no_synchronous_batch_norm() -> None:
    with pytest.raises(ModelError, match="SyncBatchNorm needs steps that are common"):
        train(
            lambda: torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.SyncBatchNorm(1)),
            line().cut(60, 60),
            strategy=FabricWorker,
            conf=SETTINGS,
        )


def test_updates_that_are_never_finite_end_the_fit() -> None:
    """Each is dropped, so the model, and with it the loss, stay finite, and the epoch would not end."""

    def net() -> torch.nn.Module:
        module = torch.nn.Linear(3, 1)
        module.weight.register_hook(lambda gradient: gradient * float("nan"))
        return module

    with pytest.raises(NonFiniteLossError, match="the last 10 updates of rank .* not finite"):
        fit(net=net)


@pytest.mark.slow
def test_updates_that_are_all_larger_than_the_replicas_bound_end_the_fit() -> None:
    conf = {"fabric_replica": True, "fabric_divergence": 1e-6, "fabric_aggregators": 1}
    with pytest.raises(
        ConfError, match=r"fabric.divergence=1e-06: the last 10 updates of rank .*Set fabric.divergence higher"
    ):
        fit(conf=conf)
