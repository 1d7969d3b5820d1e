"""A run that goes on from a checkpoint ends bit by bit as one that was never interrupted; ranks in threads."""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sparkdl_comm.errors import ConfError, InputError, ModelError, PersistenceError
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.optim import LAMB, LARS
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.storage.files import LocalStorage
from sparkdl_comm.train.callbacks import Callback
from sparkdl_comm.train.checkpoint import Restorer, Saver, check_same, describe
from sparkdl_comm.train.checkpoint_directory import CheckpointDirectory
from sparkdl_comm.train.spec import Checkpoints, Observation, Stopping, TrainSpec
from sparkdl_comm.train.training_loop import TrainingLoop
from tests.slow import crossed, slow
from tests.unit.gang_helpers import SECONDS
from tests.unit.ranks import Gathered, Rows, Sharded, train

PARTS = (11, 0, 13)
BOTH = pytest.mark.parametrize("strategy", [Gathered, Sharded])


class Net(nn.Sequential):
    """A net whose last layer is not trained."""

    def __init__(self, width: int = 9) -> None:
        super().__init__(nn.Linear(6, width), nn.BatchNorm1d(width), nn.Tanh(), nn.Linear(width, 1), nn.Linear(1, 1))
        self[4].requires_grad_(False)
        self.calls = 0

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.calls += self.training
        return super().forward(rows)

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": self.calls}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.calls = state["calls"]


class Memory(Callback):
    """Remembers the epochs that it saw, also over a restart."""

    def __init__(self) -> None:
        self.epochs: list[int] = []

    def on_epoch_end(self, state: Any) -> None:
        self.epochs.append(state.epoch)

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": self.epochs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epochs = state["epochs"]


def table() -> list[Rows]:
    random = torch.Generator().manual_seed(3)
    return Rows(torch.randn(24, 6, generator=random), torch.randn(24, generator=random)).cut(*PARTS)


class Fit:
    """One fit of three ranks, 3 steps an epoch, a checkpoint every 2 steps; attributes of interest after it."""

    def __init__(self, directory: Path, strategy: type[Gathered], epochs: int, **changes: Any) -> None:
        self.checkpoints = Checkpoints(str(directory), 2, None, keep=2, resume=changes.pop("resume", False), run="one")
        self.rows = changes.pop("rows", ["a", "b", "c"])
        self.warnings: list[str] = []
        self.restorers: dict[int, Restorer] = {}
        self._ranks: dict[int, tuple[Gang, Restorer]] = {}  # by thread
        self._savers: list[Saver] = []

        def arrive(spec: TrainSpec, gang: Gang, model: FlatModel) -> None:
            run = describe(self.checkpoints.run, spec, model, self.rows)
            restorer = Restorer(self.checkpoints, run, gang, SECONDS)
            restorer.find(self.warnings.append)
            if restorer.step:
                restorer.load_parameters(model)
            self._ranks[threading.get_ident()] = gang, restorer
            self.restorers[gang.rank] = restorer

        def prepare(loop: TrainingLoop) -> None:
            gang, restorer = self._ranks[threading.get_ident()]
            if restorer.step:
                restorer.load_state(loop)
            loop.after_step = Saver(self.checkpoints, restorer.run, gang, SECONDS, restorer.step)
            self._savers.append(loop.after_step)

        def finish(loop: TrainingLoop) -> None:
            loop.after_step.wait()

        settings: dict[str, Any] = {
            "make": Net,
            "parts": table(),
            "validation": table(),
            "optimizer": lambda params: torch.optim.Adam(params, lr=0.05),
            "lr_scheduler": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5),
            "observation": Observation(callbacks=(Memory(),), stopping=Stopping(patience=100)),
            "batch": 8,
        }
        hooks = {"arrive": arrive, "prepare": prepare, "finish": finish}
        try:
            self.loops = train(**{**settings, **changes}, **hooks, strategy=strategy, epochs=epochs)
        finally:
            for each in self._savers:
                each.close()
            for restorer in self.restorers.values():
                restorer.close()

    def results(self) -> list[Any]:
        """All that must not depend on an interruption, as JSON-able values and bytes."""
        found: list[Any] = []
        for loop in self.loops:
            history = [
                {name: value for name, value in row.items() if name != "seconds"} for row in loop.progress.history
            ]
            state = loop.state()
            found += [history, state["own"]["callbacks"], state["own"]["schedule"], loop.progress.step]
            found += [tensor.tolist() for tensor in [*loop.model.module.parameters(), *loop.model.module.buffers()]]
            found += [loop.model.module.calls, state["common"]["stopping"]["extra"]]
            # In the order of parameters: theirs is that in which they were updated first, which may depend on the network.
            kept = sorted(loop.strategy.optimizer_state()["state"].items())
            found += [[p.tolist() for p in group.values()] for _, group in kept]
            found += [state["common"]["stopping"]["best"], state["common"]["stopping"]["kept"][""].tolist()]
        return found


@pytest.mark.parametrize(
    ("shuffle", "strategy"),
    crossed(["local", "global"], [Gathered, Sharded], quick=[("local", Sharded), ("global", Gathered)]),
)
def test_the_same_bits(tmp_path: Path, shuffle: str, strategy: type[Gathered]) -> None:
    """Interrupted at step 4, in the middle of the second epoch."""
    conf = {"data_shuffle": shuffle}
    whole = Fit(tmp_path / "whole", strategy, epochs=4, conf=conf)
    first = Fit(tmp_path / "cut", strategy, epochs=2, conf=conf)
    assert first.loops[0].progress.step == 6
    (tmp_path / "cut" / "step-00000006" / "manifest.json").unlink()  # as if it had been killed before
    second = Fit(tmp_path / "cut", strategy, epochs=4, conf=conf, resume=True)
    assert {restorer.step for restorer in second.restorers.values()} == {4}
    assert second.warnings == [
        f"checkpointDir={tmp_path / 'cut'}: skipped a checkpoint: step-00000006/manifest.json is missing"
    ]
    assert second.results() == whole.results()
    assert sorted(path.name for path in (tmp_path / "cut").iterdir()) == ["step-00000010", "step-00000012"]


@BOTH
@pytest.mark.parametrize(
    "optimizer",
    [
        slow(functools.partial(LARS, lr=0.5, momentum=0.9, weight_decay=0.1, trust_coefficient=0.1)),
        functools.partial(LAMB, lr=0.05),
    ],
    ids=["LARS", "LAMB"],
)
def test_optimizers_that_need_norms(tmp_path: Path, strategy: type[Gathered], optimizer: Any) -> None:
    whole = Fit(tmp_path / "whole", strategy, epochs=3, optimizer=optimizer)
    Fit(tmp_path / "cut", strategy, epochs=1, optimizer=optimizer)
    rest = Fit(tmp_path / "cut", strategy, epochs=3, optimizer=optimizer, resume=True)
    assert rest.restorers[0].step == 2
    assert rest.results() == whole.results()


@BOTH
def test_what_is_written_by_whom(tmp_path: Path, strategy: type[Gathered]) -> None:
    Fit(tmp_path, strategy, epochs=1)
    names = {path.stem for path in (tmp_path / "step-00000002").iterdir()}
    writers = (0, 1, 2) if strategy.is_sharded else (0,)
    each = {f"{part}-{rank}" for part in ("parameters", "optimizer") for rank in writers}
    assert names == {"manifest", "common", "rank-0", "rank-1", "rank-2"} | each


class Begins(Callback):
    """Changes the module in the hooks that run again after a restart, and takes back in hooks that do not."""

    def on_train_begin(self, state: Any) -> None:
        torch.rand(3)
        state.module[0].requires_grad_(False)
        state.module[1].running_mean.fill_(0.5)
        state.module[3].weight.data.fill_(0.1)
        state.module.calls = 100

    def on_epoch_begin(self, state: Any) -> None:
        torch.rand(1)
        state.module[3].bias.requires_grad_(False)
        state.module[1].running_var.mul_(2.0)

    def on_step_end(self, state: Any) -> None:
        state.module[3].bias.requires_grad_(state.step % 3 == 1)

    def on_epoch_end(self, state: Any) -> None:
        state.module[0].requires_grad_(True)


class Dropping(Net):
    """Draws random numbers in every step."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return super().forward(nn.functional.dropout(rows, 0.2, self.training))


@pytest.mark.parametrize("step", [4, 6])
def test_callbacks_that_begin_again(tmp_path: Path, step: int) -> None:
    """Step 4 is in the middle of the second epoch, step 6 the last one of it. One rank: threads share a generator."""
    settings: dict[str, Any] = {
        "make": Dropping, "parts": [Rows(torch.cat([part.features for part in table()]), torch.arange(24.0) / 24)],
        "validation": None, "rows": ["a"],
        "observation": Observation(callbacks=(Begins(),), stopping=Stopping(patience=100, monitor="loss")),
    }  # fmt: skip
    whole = Fit(tmp_path / "whole", Gathered, epochs=4, **settings)
    Fit(tmp_path / "cut", Gathered, epochs=2, **settings)
    if step == 4:
        (tmp_path / "cut" / "step-00000006" / "manifest.json").unlink()
    rest = Fit(tmp_path / "cut", Gathered, epochs=4, resume=True, **settings)
    assert rest.restorers[0].step == step
    assert rest.results() == whole.results()


def test_going_on_with_nothing_there_begins(tmp_path: Path) -> None:
    fit = Fit(tmp_path, Gathered, epochs=1, resume=True)
    assert fit.restorers[0].step == 0
    assert fit.loops[0].progress.step == 3


def test_checkpoints_are_not_overwritten(tmp_path: Path) -> None:
    Fit(tmp_path, Gathered, epochs=1)
    with pytest.raises(ConfError, match="newest of step 2. Set resume=True"):
        Fit(tmp_path, Gathered, epochs=1)


def test_none_is_whole(tmp_path: Path) -> None:
    Fit(tmp_path, Gathered, epochs=1)
    (tmp_path / "step-00000002" / "rank-2.safetensors").write_bytes(b"x")
    with pytest.raises(PersistenceError, match=r"none of the checkpoints of steps \[2\]"):
        Fit(tmp_path, Gathered, epochs=1, resume=True)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"make": lambda: Net(8)}, ModelError, r"0\.weight is float32 \[8, 6\], was float32 \[9, 6\]"),
        ({"rows": ["a", "b", "other"]}, InputError, r"ranks \[2\] of 3 have other rows .*rand\(\).* Write the"),
        ({"optimizer": torch.optim.SGD}, ConfError, "optimizer='SGD': .* was made with '.*lambda>'"),
        ({"lr_scheduler": None}, ConfError, "lr_scheduler=None: "),
        ({"conf": {"data_shuffle": "global"}}, ConfError, r"data\.shuffle='global': .* was made with 'local'"),
        ({"conf": {"loop": "root"}}, ConfError, r"collective\.loop='root': .* was made with 'all-reduce'"),
        ({"batch": 6}, ConfError, "batchSize x accumulationSteps=6: .* was made with 8"),
        ({"parts": table()[::2], "validation": None, "observation": None}, ConfError, "num_workers=2: .* with 3"),
    ],
)
def test_another_run_is_refused(tmp_path: Path, changes: dict[str, Any], error: type[Exception], message: str) -> None:
    Fit(tmp_path, Gathered, epochs=1)
    with pytest.raises(error, match=message):
        Fit(tmp_path, Gathered, epochs=1, resume=True, **changes)


def test_tensors_that_differ_are_named() -> None:
    settings = (
        "world",
        "strategy",
        "loop",
        "compression",
        "device",
        "rows_per_step",
        "seed",
        "shuffle",
        "optimizer",
        "lr_scheduler",
    )
    run: dict[str, Any] = dict.fromkeys(settings)
    run["rows"] = []
    here, there = {"both": "float32 [2]", "new": "int64 []"}, {"both": "float32 [3]", "old": "float32 []"}
    with pytest.raises(ModelError) as error:
        check_same({**run, "model": here}, {**run, "model": there}, 7)
    for part in ("step 7", "both is float32 [2], was float32 [3]", "not in this model: old", "only in this model: new"):
        assert part in error.value.message


def test_a_state_that_cannot_be_stored(tmp_path: Path) -> None:
    with pytest.raises(PersistenceError, match="'lr_lambdas'.*set"):
        Fit(tmp_path, Gathered, epochs=2, lr_scheduler=Unstorable)


class Unstorable(torch.optim.lr_scheduler.ConstantLR):
    def state_dict(self) -> dict[str, Any]:
        return {"lr_lambdas": {1}}


def test_an_error_of_the_writer_ends_the_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of the thread that writes comes out of the fit."""
    create = LocalStorage.create

    def full(self: LocalStorage, name: str, write: Any) -> Any:
        if "/step-" in name:
            raise PersistenceError("no space left (checkpointDir)")
        return create(self, name, write)

    monkeypatch.setattr(LocalStorage, "create", full)
    with pytest.raises(PersistenceError, match="no space left"):
        Fit(tmp_path, Gathered, epochs=2)


def test_a_directory_that_cannot_be_written_is_told_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(TrainingLoop, "run", lambda self, tell: pytest.fail("a step was done"))
    with pytest.raises(PersistenceError, match=r"cannot write .*file.*checkpointDir"):
        Fit(tmp_path / "file", Gathered, epochs=2)


def test_a_directory_that_is_not_shared_is_told_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrainingLoop, "run", lambda self, tell: pytest.fail("a step was done"))
    monkeypatch.setattr(
        "sparkdl_comm.train.checkpoint.CheckpointDirectory",
        lambda storage, directory, attempt: CheckpointDirectory(
            storage, f"{directory}/{threading.current_thread().name}", attempt
        ),
    )
    with pytest.raises(PersistenceError, match=r"rank 0 does not see .*a directory that all executors share"):
        Fit(tmp_path, Gathered, epochs=2)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
