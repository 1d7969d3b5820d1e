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
        self._best: float | None = None
        self._waited = 0
        self._kept: dict[str, torch.Tensor] | None = None
        self._extra: dict[str, Any] = {}

    @property
    def active(self) -> bool:
        return self._stopping.patience is not None

    def over(self, value: float) -> bool:
        """Return whether training should stop.

        :param value: monitored value of the epoch that has ended. The model has this epoch's parameters.
        """
        assert self._stopping.patience is not None
        if self._improved(value):
            self._best, self._waited = value, 0
            if self._stopping.restore:
                # The key "" is free: all other tensors have names that are not empty.
                self._kept = {"": self._model.values.detach().cpu().clone()}
                for name, tensor in self._untrained.tensors().items():
                    self._kept[name] = tensor.detach().cpu().clone()
                self._extra = copy.deepcopy(self._untrained.extra())
            return False
        self._waited += 1
        return self._waited >= self._stopping.patience

    def restore(self) -> None:
        """Load the best epoch's parameters and untrained state into the model, if they were kept."""
        if self._kept is None:
            return
        with torch.no_grad():
            self._model.values.copy_(self._kept[""])
        self._untrained.load({name: tensor for name, tensor in self._kept.items() if name})
        self._untrained.load_extra(self._extra)

    def state(self) -> dict[str, Any]:
        return {"best": self._best, "waited": self._waited, "kept": self._kept, "extra": self._extra}

    def load_state(self, state: dict[str, Any]) -> None:
        self._best, self._waited = state["best"], state["waited"]
        self._kept, self._extra = state["kept"], state["extra"]

    def _improved(self, value: float) -> bool:
        if math.isnan(value):
            return False
        if self._best is None:
            return True
        gain = value - self._best if self._stopping.mode == "max" else self._best - value
        return gain > self._stopping.min_delta
