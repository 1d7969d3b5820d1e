"""What is trained in races: a task has a model, as flat numbers, and says how good one is; learners compute updates of it.

Here: handwritten digits of scikit-learn, by a perceptron with one hidden layer, and plain SGD.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from sparkdl_comm.networks import digits_28x28


class Learner(Protocol):
    """One worker's part. What it knows of its own is no part of the model."""

    def update(self, model: np.ndarray) -> np.ndarray:
        """What is to be added to the model, float32 ``[n]``, computed from this one."""

    def settle(self, applied: bool) -> None:
        """Whether the last update was added to the model; otherwise it was dropped."""


class Task(Protocol):
    """``elements``: of the model."""

    elements: int

    def start(self) -> np.ndarray:
        """The model to begin with, float32 ``[n]``, the same each time."""

    def learner(self, worker: int, workers: int) -> Learner:
        """That of one of the workers."""

    def score(self, model: np.ndarray) -> float:
        """How good a model is, on data that it does not learn from: the accuracy, or the perplexity."""


_TEST_ROWS = 360
_SPLIT_SEED = 1998
_HIDDEN = 300


def perceptron() -> nn.Sequential:
    """238,510 parameters. Input [rows, 784], output [rows, 10]."""
    return nn.Sequential(nn.Linear(784, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, 10))


@dataclass
class Rows:
    """Float32 ``features`` [rows, 784], and ``labels`` [rows]. ``draw`` chooses batches of ``size`` rows."""

    features: torch.Tensor
    labels: torch.Tensor
    size: int
    draw: torch.Generator

    def loss(self, module: nn.Module) -> torch.Tensor:
        """The mean cross-entropy of the next batch."""
        chosen = torch.randint(len(self.labels), (self.size,), generator=self.draw)
        return nn.functional.cross_entropy(module(self.features[chosen]), self.labels[chosen])


class DigitsLearner:
    """Computes steps of SGD."""

    def __init__(self, module: nn.Module, rows: Rows, rate: float) -> None:
        self._module, self._rows, self._rate = module, rows, rate

    def update(self, model: np.ndarray) -> np.ndarray:
        vector_to_parameters(torch.from_numpy(model.copy()), self._module.parameters())
        parameters = list(self._module.parameters())
        gradients = torch.autograd.grad(self._rows.loss(self._module), parameters)
        return (-self._rate * parameters_to_vector(gradients)).numpy()

    def settle(self, applied: bool) -> None:
        """Nothing is kept."""


@dataclass
class Digits:
    """``pixels`` [rows, 784] in [0, 1], and ``labels`` [rows]. ``rate``: by which each gradient is multiplied, of ``batch``
    rows. Each worker has its share of the rows. Scores are accuracies."""

    pixels: torch.Tensor
    labels: torch.Tensor
    seed: int
    batch: int = 64
    rate: float = 0.04
    elements: int = field(init=False)

    @classmethod
    def of_sklearn(cls, seed: int) -> Digits:
        pixels, labels = digits_28x28()
        return cls(pixels, labels, seed)

    def __post_init__(self) -> None:
        order = torch.from_numpy(np.random.default_rng(_SPLIT_SEED).permutation(len(self.labels)))
        testing, training = order[:_TEST_ROWS], order[_TEST_ROWS:]
        self._training = self.pixels[training], self.labels[training]
        self._testing = self.pixels[testing], self.labels[testing]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self._start = parameters_to_vector(perceptron().parameters()).detach()
        self.elements = len(self._start)

    def module(self) -> nn.Sequential:
        """As training begins."""
        made = perceptron()
        vector_to_parameters(self._start.clone(), made.parameters())
        return made

    def start(self) -> np.ndarray:
        return self._start.numpy().copy()

    def rows(self, worker: int, workers: int) -> Rows:
        """A worker's share."""
        features, labels = (part[worker::workers] for part in self._training)
        return Rows(features, labels, self.batch, torch.Generator().manual_seed(1000 * self.seed + worker))

    def learner(self, worker: int, workers: int) -> DigitsLearner:
        return DigitsLearner(self.module(), self.rows(worker, workers), self.rate)

    def score(self, model: np.ndarray) -> float:
        module = self.module()
        vector_to_parameters(torch.from_numpy(model.copy()), module.parameters())
        features, labels = self._testing
        with torch.inference_mode():
            return (module(features).argmax(1) == labels).float().mean().item()
