"""Tasks of races, and the first of them: handwritten digits of scikit-learn, by a perceptron and plain SGD."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters


class Learner(Protocol):
    """Worker that learns a task."""

    def update(self, model: np.ndarray) -> np.ndarray:
        """Return an update that is computed from this model and can be added to it, float32 ``[n]``."""

    def settle(self, applied: bool) -> None:
        """Record the fate of the last update: added to the model, or dropped."""


class Task(Protocol):
    """Task whose model is a flat vector of ``elements`` numbers."""

    elements: int

    def start(self) -> np.ndarray:
        """Return the initial model, float32 ``[n]``, the same each time."""

    def learner(self, worker: int, workers: int) -> Learner:
        """Return the learner of one of the workers."""

    def score(self, model: np.ndarray) -> float:
        """Return the accuracy, or the perplexity, of a model on held-out data."""


_TEST_ROWS = 360
_SPLIT_SEED = 1998
_HIDDEN = 300


def perceptron() -> nn.Sequential:
    """Return a network of 238,510 parameters. Input [rows, 784], output [rows, 10]."""
    return nn.Sequential(nn.Linear(784, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, 10))


@dataclass
class Rows:
    """Rows of a worker: float32 ``features`` [rows, 784] and ``labels`` [rows], in random batches of ``size``."""

    features: torch.Tensor
    labels: torch.Tensor
    size: int
    draw: torch.Generator

    def loss(self, module: nn.Module) -> torch.Tensor:
        """Return the mean cross-entropy of the next batch."""
        chosen = torch.randint(len(self.labels), (self.size,), generator=self.draw)
        return nn.functional.cross_entropy(module(self.features[chosen]), self.labels[chosen])


class DigitsLearner:
    """Learner by plain SGD. It keeps nothing of its own."""

    def __init__(self, module: nn.Module, rows: Rows, rate: float) -> None:
        self._module, self._rows, self._rate = module, rows, rate

    def update(self, model: np.ndarray) -> np.ndarray:
        vector_to_parameters(torch.from_numpy(model.copy()), self._module.parameters())
        parameters = list(self._module.parameters())
        gradients = torch.autograd.grad(self._rows.loss(self._module), parameters)
        return (-self._rate * parameters_to_vector(gradients)).numpy()

    def settle(self, applied: bool) -> None:
        """Do nothing."""


@dataclass
class Digits:
    """Classification of digits: ``pixels`` [rows, 784] in [0, 1] and ``labels`` [rows]. Scores are accuracies.

    Each worker has a share of the rows, and takes batches of ``batch`` rows with the learning rate ``rate``.
    """

    pixels: torch.Tensor
    labels: torch.Tensor
    seed: int
    batch: int = 64
    rate: float = 0.04
    elements: int = field(init=False)

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
        """Return the initial network."""
        made = perceptron()
        vector_to_parameters(self._start.clone(), made.parameters())
        return made

    def start(self) -> np.ndarray:
        return self._start.numpy().copy()

    def rows(self, worker: int, workers: int) -> Rows:
        """Return a worker's share of the rows."""
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
