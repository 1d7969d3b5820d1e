"""Topics of documents, as something that workers learn together: the model is the counts of words by topics."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from topics.gibbs import Sampler
from topics.perplexity import perplexity


class TopicLearner:
    """A worker's documents. The model is the sum of what all workers have told of their counts."""

    def __init__(self, sampler: Sampler, told: np.ndarray) -> None:
        self._sampler, self._told, self._now = sampler, told, told

    def update(self, model: np.ndarray) -> np.ndarray:
        """Samples each of its documents' words once; by how much the counts now differ from what the model knows of them."""
        others = (model - self._told).reshape(-1, self._sampler.count)
        self._now = self._sampler.sweep(others).ravel()
        return self._now - self._told

    def settle(self, applied: bool) -> None:
        """What was dropped is told with the next update."""
        if applied:
            self._told = self._now


@dataclass(frozen=True)
class Topics:
    """``training`` and ``held_out``: as ``gibbs.py`` has documents; ``words`` of them are known. Documents are dealt out to
    workers in turn. Scores are perplexities."""

    training: np.ndarray
    held_out: np.ndarray
    words: int
    topics: int
    seed: int

    @property
    def elements(self) -> int:
        return self.words * self.topics

    def start(self) -> np.ndarray:
        """Nobody has told anything."""
        return np.zeros(self.elements, np.float32)

    def learner(self, worker: int, workers: int) -> TopicLearner:
        draw = np.random.default_rng((self.seed, worker))
        sampler = Sampler(self.training[worker::workers], self.words, self.topics, draw)
        return TopicLearner(sampler, self.start())

    def score(self, model: np.ndarray) -> float:
        return perplexity(model.reshape(self.words, self.topics), self.held_out)
