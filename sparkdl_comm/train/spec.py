"""Training specification: one frozen value that the driver pickles into the function that Spark runs on every rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from sparkdl_comm.conf import CommConf
from sparkdl_comm.data.fields import RowFormat
from sparkdl_comm.data.named_cache import NamedCache
from sparkdl_comm.optim.optimizer import ModelLike, Optimization

if TYPE_CHECKING:
    from sparkdl_comm.train.callbacks import Callback
    from sparkdl_comm.train.diagnosis import ClassLabels

#: ``(output, target)`` -> a scalar tensor, the mean over the rows. Where rows have weights: one loss per row, ``[rows]``.
Loss: TypeAlias = Callable[[Any, Any], torch.Tensor]

#: A batch's inputs -> the new inputs, with as many rows: a tensor, or a tuple if there are several feature columns.
Augment: TypeAlias = Callable[..., Any]


@dataclass(frozen=True)
class Stopping:
    """Early-stopping rule: when to stop before the last epoch.

    :param patience: epochs without improvement after which training stops. None: never stop early.
    :param monitor: column of the history to watch.
    :param min_delta: minimum change that counts as an improvement.
    :param mode: ``min`` or ``max``: which direction is better.
    :param restore: end with the parameters and buffers of the best epoch.
    """

    patience: int | None = None
    monitor: str = "val_loss"
    min_delta: float = 0.0
    mode: str = "min"
    restore: bool = True


@dataclass(frozen=True)
class Observation:
    """Metrics, callbacks and early stopping of a training run.

    :param metrics: by name, each a torchmetrics.Metric or a callable ``(output, target)`` -> scalar.
    """

    metrics: Mapping[str, Any] = field(default_factory=dict)
    callbacks: tuple[Callback, ...] = ()
    stopping: Stopping = field(default_factory=Stopping)


@dataclass(frozen=True)
class Checkpoints:
    """Settings of the checkpoints: where and how often to write them.

    :param directory: a local path that all executors see, or a Hadoop URI.
    :param every_steps: optimizer steps between checkpoints. None: not by steps.
    :param every_seconds: seconds between checkpoints. None: not by time.
    :param keep: number of complete checkpoints to keep.
    :param resume: continue from the newest checkpoint, if there is one.
    :param run: random name of this fit.
    """

    directory: str
    every_steps: int | None
    every_seconds: float | None
    keep: int
    resume: bool
    run: str


@dataclass(frozen=True)
class TrainSpec:
    """Specification of one training run.

    :param batch_size: rows per forward pass, over all ranks.
    :param epochs: passes over the data.
    :param seed: any integer.
    :param device: ``cpu`` or ``cuda``.
    :param strategy: name of the strategy, from the Param or ``conf``.
    :param world: number of ranks.
    :param classification: the label is one int64 class per row.
    :param attempt_id: 16 hexadecimal digits that identify this attempt to run the gang. A restarted gang has a new one.
    :param secret: 32 random bytes, new for each attempt.
    :param driver_address: host and port of the driver's listener, which takes progress and the trained tensors.
    :param rows: the columns that ranks get.
    :param cache: the cache of the rows that the user has named. None: the rows are not kept for other runs.
    :param labels: the classes that the loss takes. None: the loss is not over classes.
    :param augment: changes the inputs of each training batch.
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
    cache: NamedCache | None = None
    augment: Augment | None = None
    labels: ClassLabels | None = None
    observation: Observation = field(default_factory=Observation)
    checkpoints: Checkpoints | None = None
