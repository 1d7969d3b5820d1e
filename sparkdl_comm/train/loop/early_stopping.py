"""Early stopping: end training when a value no longer improves, and restore the best epoch."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch

from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.space.untrained_state import UntrainedState
from sparkdl_comm.train.spec import Stopping


class EarlyStopping:
    """Decision whether an epoch was the last. All ranks see the same values, so all decide the same.

    If asked to restore, it keeps a copy of the best epoch's parameters and ``untrained`` state on the CPU, as large as
    the model.
    """

    def __init__(self, stopping: Stopping, model: FlatModel, untrained: UntrainedState) -> None:
        self._stopping, self._model, self._untrained = stopping, model, untrained
        self._best_value: float | None = None
        self._epochs_waited = 0
        self._best_tensors: dict[str, torch.Tensor] | None = None
        self._best_extra: dict[str, Any] = {}

    @property
    def is_active(self) -> bool:
        return self._stopping.patience is not None

    def should_stop(self, value: float) -> bool:
        """Return whether training should stop.

        :param value: monitored value of the epoch that has ended. The model has this epoch's parameters.
        """
        assert self._stopping.patience is not None
        if self._has_improved(value):
            self._best_value, self._epochs_waited = value, 0
            if self._stopping.restore:
                # The key "" is free: all other tensors have names that are not empty.
                self._best_tensors = {"": self._model.values.detach().cpu().clone()}
                for name, tensor in self._untrained.tensors().items():
                    self._best_tensors[name] = tensor.detach().cpu().clone()
                self._best_extra = copy.deepcopy(self._untrained.extra())
            return False
        self._epochs_waited += 1
        return self._epochs_waited >= self._stopping.patience

    def restore(self) -> None:
        """Load the best epoch's parameters and untrained state into the model, if they were kept."""
        if self._best_tensors is None:
            return
        with torch.no_grad():
            self._model.values.copy_(self._best_tensors[""])
        self._untrained.load({name: tensor for name, tensor in self._best_tensors.items() if name})
        self._untrained.load_extra(self._best_extra)

    def state(self) -> dict[str, Any]:
        return {
            "best": self._best_value,
            "waited": self._epochs_waited,
            "kept": self._best_tensors,
            "extra": self._best_extra,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self._best_value, self._epochs_waited = state["best"], state["waited"]
        self._best_tensors, self._best_extra = state["kept"], state["extra"]

    def _has_improved(self, value: float) -> bool:
        if math.isnan(value):
            return False
        if self._best_value is None:
            return True
        gain = value - self._best_value if self._stopping.mode == "max" else self._best_value - value
        return gain > self._stopping.min_delta
