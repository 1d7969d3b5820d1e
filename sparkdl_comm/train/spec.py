"""What the driver tells every rank: one frozen value, pickled into the function that Spark runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from sparkdl_comm.conf import CommConf
from sparkdl_comm.data.fields import RowFormat
from sparkdl_comm.errors import ModelError
from sparkdl_comm.optim.optimization import ModelLike, Optimization

if TYPE_CHECKING:
    from sparkdl_comm.train.loop.callbacks import Callback
    from sparkdl_comm.train.loop.diagnosis import ClassLabels

#: ``(output, target)`` -> scalar tensor, the mean over the rows; or ``[rows]``, where rows have weights.
Loss: TypeAlias = Callable[[Any, Any], torch.Tensor]

#: A batch's inputs -> others of as many rows: one, or a tuple where there are several.
Augment: TypeAlias = Callable[..., Any]


@dataclass(frozen=True)
class Stopping:
    """When to stop before the last epoch: after ``patience`` epochs (None: never) in which ``monitor``, a column of the
    history, did not improve by more than ``min_delta``. ``mode``: ``min`` or ``max``, what is better. ``restore``: end
    with the parameters and buffers of the best epoch."""

    patience: int | None = None
    monitor: str = "val_loss"
    min_delta: float = 0.0
    mode: str = "min"
    restore: bool = True


@dataclass(frozen=True)
class Observation:
    """What looks at the training: ``metrics`` by name, each a torchmetrics.Metric or a callable ``(output, target)`` ->
    scalar; ``callbacks``; ``stopping``."""

    metrics: Mapping[str, Any] = field(default_factory=dict)
    callbacks: tuple[Callback, ...] = ()
    stopping: Stopping = field(default_factory=Stopping)


@dataclass(frozen=True)
class Checkpoints:
    """Where, and how often, the state of training is written.

    ``directory``: a local path that all executors see, or a URI for Hadoop. ``every_steps``, ``every_seconds``: None: not
    by these. ``keep``: how many complete ones. ``resume``: go on from the newest one, if there is any. ``run``: a random name
    of this fit.
    """

    directory: str
    every_steps: int | None
    every_seconds: float | None
    keep: int
    resume: bool
    run: str


@dataclass(frozen=True)
class RowSet:
    """Rows on executors' disks, a part for each rank, by a name of 16 hexadecimal digits. ``there``: ranks read them from
    there, and get none from Spark; else they leave them there."""

    name: str
    there: bool


@dataclass(frozen=True)
class TrainSpec:
    """One training run.

    ``batch_size``: rows per forward pass over all ranks. ``epochs``: passes over the data. ``seed``: any integer.
    ``device``: ``cpu`` or ``cuda``. ``strategy``: its name, from the Param or ``conf``. ``world``: number of
    ranks. ``classification``: the label is one int64 class per row. ``attempt_id``: of this attempt to run
    the gang, 16 hexadecimal digits; a gang that is started again has another. ``secret``: 32 random bytes that only this
    attempt has. ``driver_address``: host and port of the driver's listener for progress and the trained tensors.
    ``rows``: the columns that ranks get. ``row_set``: None: their rows are of this run alone. ``labels``: what classes the
    loss takes; None: it is not over classes. ``augment``: what becomes of the inputs in training, batch by batch.
    """

    model: ModelLike
    loss: Loss
    optimization: Optimization
    batch_size: int
    epochs: int
    seed: int
    device: str
    strategy: str
    conf: CommConf
    world: int
    classification: bool
    attempt_id: str
    secret: bytes = field(repr=False)
    driver_address: tuple[str, int]
    rows: RowFormat = RowFormat()
    row_set: RowSet | None = None
    augment: Augment | None = None
    labels: ClassLabels | None = None
    observation: Observation = field(default_factory=Observation)
    checkpoints: Checkpoints | None = None

    def build_model(self) -> torch.nn.Module:
        """The module to train: the one given, or what the factory returns. ModelError if that is none."""
        module = self.model if isinstance(self.model, torch.nn.Module) else self.model()
        if not isinstance(module, torch.nn.Module):
            raise ModelError(f"model: the factory returned {type(module).__name__}; it must return a torch.nn.Module")
        return module
