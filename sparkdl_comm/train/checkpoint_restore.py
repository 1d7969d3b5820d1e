"""Resuming from a checkpoint: find the newest intact one, check that it fits this run, and load each rank's part.

1. Rank 0 lists the checkpoints. From the newest on, every rank checks the files that it needs. The first checkpoint
   that is intact for all ranks is used.
2. Before the strategy joins, each rank loads all parameters into its module. All ranks start from these values.
3. When optimizer, scheduler and loop exist, each loads its state.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from sparkdl_comm.conf import as_text
from sparkdl_comm.errors import ConfError, InputError, ModelError, PersistenceError
from sparkdl_comm.gang.exchange import gather_json
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.gang.tensors import unpack_value
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.storage.files import open_storage
from sparkdl_comm.train.checkpoint_directory import CheckpointDirectory, check_unused, writers_of
from sparkdl_comm.train.spec import Checkpoints, TrainSpec
from sparkdl_comm.train.training_loop import TrainingLoop

#: Settings that a resumed run must share with the checkpoint: name in the manifest -> the Param or conf key to set.
_SETTINGS = {
    "world": "num_workers",
    "strategy": "strategy",
    "loop": "spark.sparkdl.comm.collective.loop",
    "compression": "compression",
    "device": "device",
    "rows_per_step": "batchSize x accumulationSteps",
    "seed": "seed",
    "shuffle": "spark.sparkdl.comm.data.shuffle",
    "optimizer": "optimizer",
    "lr_scheduler": "lr_scheduler",
}


class Restorer:
    """Loader of one rank's part of the checkpoint from which training resumes.

    All ranks call the methods in the order of their definition. They call :meth:`load_parameters` and
    :meth:`load_state` only if there is a checkpoint.
    """

    def __init__(self, checkpoints: Checkpoints, run: dict[str, Any], gang: Gang, timeout: float) -> None:
        """Open the storage. ``run``: see :func:`describe`."""
        self._checkpoints, self._gang, self._timeout = checkpoints, gang, timeout
        self._storage = open_storage(checkpoints.directory, timeout, "checkpointDir")
        self._directory = CheckpointDirectory(self._storage, checkpoints.directory, gang.attempt)
        self._writers = [0]
        self._own_part = f"rank-{gang.rank}"
        #: Step of the checkpoint to resume from. 0: start from the beginning.
        self.step = 0
        #: Run description for new checkpoints. A resumed run keeps the name of the original run.
        self.run = run

    def find(self, warn: Callable[[str], object]) -> None:
        """Set :attr:`step`, and delete what is no longer needed.

        :param warn: called on rank 0 for each skipped checkpoint.
        :raises ConfError: there are checkpoints, and ``resume`` is not set; or the settings differ.
        :raises InputError, ModelError: the rows or the model differ.
        :raises PersistenceError: no checkpoint is intact; or the directory cannot be read or written, or is not shared
            by all ranks.
        """
        rank, directory = self._gang.rank, self._checkpoints.directory
        steps = self._gather(self._directory.steps() if rank == 0 else None)[0]
        check_unused(directory, steps, self._checkpoints.resume)
        for step in steps:
            manifest, fault = self._inspect(step)
            faults = [fault for fault in self._gather(fault) if fault]
            if not faults:
                self._writers = writers_of(manifest)
                self.step, self.run = step, {**self.run, "name": manifest["run"]["name"]}
                break
            if rank == 0:
                warn(f"checkpointDir={directory}: skipped a checkpoint: {faults[0]}")
        if steps and not self.step:
            raise PersistenceError(
                f"checkpointDir={directory}: none of the checkpoints of steps {steps} is intact. Delete them to start over."
            )
        if rank == 0:
            self._directory.clean(self.step)
        self._try_writing()

    def load_parameters(self, model: FlatModel) -> None:
        """Load the values into the module, before it is bound."""
        for part in _parameter_parts(self._writers):
            for start, values in self._directory.read(self.step, part).items():
                model.load(int(start), values)

    def load_state(self, loop: TrainingLoop) -> None:
        """Load the state of optimizer and loop, before the loop runs."""
        loop.strategy.load_optimizer_state(
            unpack_value(self._directory.read(self.step, self._optimizer_part(self._writers)))
        )
        own, common = (unpack_value(self._directory.read(self.step, part)) for part in (self._own_part, "common"))
        loop.load_state({"own": own, "common": common})

    def close(self) -> None:
        self._storage.close()

    def _optimizer_part(self, writers: list[int]) -> str:
        return f"optimizer-{self._gang.rank if len(writers) > 1 else writers[0]}"

    def _try_writing(self) -> None:
        """Let each rank write a file, and check that rank 0 sees all of them.

        A directory that cannot be written or is not shared raises PersistenceError now, not at the first checkpoint.
        """
        probe_name = self._directory.probe(self._gang.rank)
        try:
            names = self._gather(probe_name)
            if self._gang.rank == 0:
                self._directory.check_shared(names)
            self._gather(None)  # rank 0 has seen them
        finally:
            self._directory.delete(probe_name)

    def _gather(self, value: Any) -> list[Any]:
        return gather_json(self._gang, value, self._timeout)

    def _inspect(self, step: int) -> tuple[dict[str, Any], str | None]:
        """Return the manifest, and what is wrong with the files that this rank needs, or None."""
        manifest, fault = self._directory.manifest(step)
        if fault is None:
            check_same(self.run, manifest["run"], step)
            writers = writers_of(manifest)
            parts = [*_parameter_parts(writers), self._optimizer_part(writers), self._own_part, "common"]
            fault = self._directory.find_damage(step, manifest, parts)
        return manifest, fault


def _parameter_parts(writers: list[int]) -> list[str]:
    return [f"parameters-{rank}" for rank in writers]


def describe(name: str, spec: TrainSpec, model: FlatModel, rows: list[str]) -> dict[str, Any]:
    """Return a JSON-able description of a run. To resume, everything but ``name`` must equal the checkpoint's
    description.

    :param rows: a digest of each rank's rows.
    """
    module = model.module
    named = [*module.named_parameters(), *module.named_buffers()]
    return {
        "name": name,
        "world": spec.world,
        "strategy": spec.strategy,
        "loop": spec.conf.collective.loop,
        "compression": as_text(spec.conf.compression.method),
        "device": spec.device,
        "rows_per_step": spec.batch_size * spec.optimization.accumulation_steps,
        "seed": spec.seed,
        "shuffle": spec.conf.data.shuffle,
        "optimizer": _name(spec.optimization.optimizer),
        "lr_scheduler": _name(spec.optimization.lr_scheduler),
        "model": {name: f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}" for name, tensor in named},
        "rows": rows,
    }


def _name(factory: Any) -> str | None:
    """Return the class name, also for ``functools.partial(Adam, …)``: the state fits with any arguments."""
    while isinstance(factory, functools.partial):
        factory = factory.func
    return None if factory is None else getattr(factory, "__qualname__", type(factory).__qualname__)


def check_same(current: Mapping[str, Any], saved: Mapping[str, Any], step: int) -> None:
    """Check that the run ``current`` can resume from a checkpoint of the run ``saved``.

    :raises ConfError, ModelError, InputError: the settings, the model or the rows differ.
    """
    checkpoint = f"the checkpoint of step {step}"
    for name, param in _SETTINGS.items():
        if current[name] != saved.get(name):
            raise ConfError(
                f"{param}={current[name]!r}: {checkpoint} was made with {saved.get(name)!r}. Resume with that"
                " value, or use another checkpointDir."
            )
    current_model, saved_model = current["model"], saved["model"]
    differences = [
        f"{name} is {current_model[name]}, was {saved_model[name]}"
        for name in current_model
        if saved_model.get(name, current_model[name]) != current_model[name]
    ]
    missing, unexpected = sorted(set(saved_model) - set(current_model)), sorted(set(current_model) - set(saved_model))
    if differences or missing or unexpected:
        parts = (
            ("different shape or type", differences),
            ("not in this model", missing),
            ("only in this model", unexpected),
        )
        raise ModelError(
            f"{checkpoint} is of another model: "
            + "; ".join(f"{label}: {', '.join(items)}" for label, items in parts if items)
        )
    changed_ranks = [rank for rank, rows in enumerate(current["rows"]) if rows != saved["rows"][rank]]
    if changed_ranks:
        raise InputError(
            f"ranks {changed_ranks} of {len(current['rows'])} have other rows than when {checkpoint} was made: the"
            " DataFrame does not give the same rows each time. Columns may be random (rand(), uuid()) or depend on the order"
            " or partitions of rows (monotonically_increasing_id(), first(), sums of floats). Write the DataFrame to a table"
            " once, and call fit on that table; df.checkpoint() is enough if only ranks restart, not the application. To"
            " start over, use another checkpointDir."
        )
