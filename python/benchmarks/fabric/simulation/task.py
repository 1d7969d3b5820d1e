"""Learning task for the simulated runs: classification of random points by a numpy network with one hidden layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Task:
    """Training and test rows of a classification task.

    :param features: training rows ``[rows, columns]``.
    :param labels: class numbers of the training rows.
    :param hidden: units of the hidden layer.
    :param batch: rows per update.
    """

    features: Floats
    labels: NDArray[np.int64]
    test_features: Floats
    test_labels: NDArray[np.int64]
    hidden: int = 32
    batch: int = 32

    @classmethod
    def points(cls, seed: int, rows: int = 6000, columns: int = 40, classes: int = 10, spread: float = 1.8) -> Task:
        """Return a task of point clouds, two per class. They overlap more the larger ``spread`` is."""
        draw = np.random.default_rng((seed, 3))
        centres = draw.normal(size=(2 * classes, columns))
        cloud = draw.integers(2 * classes, size=rows + rows // 4)
        features = centres[cloud] + spread * draw.normal(size=(len(cloud), columns))
        labels = cloud % classes
        return cls(features[:rows], labels[:rows], features[rows:], labels[rows:])

    @property
    def classes(self) -> int:
        return int(self.labels.max()) + 1

    def start(self, seed: int) -> Floats:
        """Return initial parameters, flat."""
        draw = np.random.default_rng((seed, 4))
        columns = self.features.shape[1]
        first = draw.normal(scale=columns**-0.5, size=(columns, self.hidden))
        second = draw.normal(scale=self.hidden**-0.5, size=(self.hidden, self.classes))
        return np.concatenate([first.ravel(), np.zeros(self.hidden), second.ravel(), np.zeros(self.classes)])

    def update(self, parameters: Floats, draw: np.random.Generator) -> Floats:
        """Return minus the gradient of the mean cross-entropy of a batch drawn by ``draw``, flat."""
        rows = draw.integers(len(self.labels), size=self.batch)
        inputs, labels = self.features[rows], self.labels[rows]
        first, bias, second, other = self._parts(parameters)
        between = np.maximum(inputs @ first + bias, 0.0)
        error = _softmax(between @ second + other)
        error[np.arange(self.batch), labels] -= 1.0
        error /= self.batch
        back = (error @ second.T) * (between > 0)
        gradients = (inputs.T @ back, back.sum(axis=0), between.T @ error, error.sum(axis=0))
        gradient: Floats = np.concatenate([part.ravel() for part in gradients])
        return -gradient

    def accuracy(self, parameters: Floats) -> float:
        """Return the share of test rows whose class is predicted correctly."""
        first, bias, second, other = self._parts(parameters)
        scores = np.maximum(self.test_features @ first + bias, 0.0) @ second + other
        return float((scores.argmax(axis=1) == self.test_labels).mean())

    def _parts(self, parameters: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        columns, hidden, classes = self.features.shape[1], self.hidden, self.classes
        cuts = np.cumsum([columns * hidden, hidden, hidden * classes])
        first, bias, second, other = np.split(parameters, cuts)
        return first.reshape(columns, hidden), bias, second.reshape(hidden, classes), other


def _softmax(scores: Floats) -> Floats:
    raised: Floats = np.exp(scores - scores.max(axis=1, keepdims=True))
    total: Floats = raised.sum(axis=1, keepdims=True)
    return raised / total
