"""Latent Dirichlet allocation by collapsed Gibbs sampling of some of the documents. Pure.

Documents are int32 ``[documents, places]``: a word's number at each place, -1 for none. Counts are float32
``[words, topics]``: how many places with this word have this topic.

David Newman et al., "Distributed Algorithms for Topic Models", JMLR 2009: the topics of a worker's documents are sampled by
counts of all words, of which those of other workers are as old as the last exchange. Here the places of one number are
sampled at once, in all documents: counts of a document are exact, and those of words as they were before these places.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Priors:
    """Parameters of symmetric Dirichlet priors: of a document's topics, and of a topic's words."""

    document: float = 0.1
    word: float = 0.05


USUAL = Priors()


class Sampler:
    """The topics of ``documents``, drawn at random at first; ``count`` of them.

    :param words: how many there are.
    :param draw: of all that is drawn.
    """

    def __init__(
        self, documents: np.ndarray, words: int, topics: int, draw: np.random.Generator, priors: Priors = USUAL
    ) -> None:
        self._documents, self._draw, self._priors = documents, draw, priors
        self._words, self.count = words, topics
        there = documents >= 0
        self._rows = [np.flatnonzero(column) for column in there.T]
        self.topics = np.where(there, draw.integers(topics, size=documents.shape), -1)
        """int64 ``[documents, places]``: the topic of each word, -1 where there is none."""
        self._of_documents = np.zeros((len(documents), topics))
        rows, places = np.nonzero(there)
        np.add.at(self._of_documents, (rows, self.topics[rows, places]), 1)

    def counts(self) -> np.ndarray:
        """Those of these documents."""
        there = self._documents >= 0
        found = np.zeros((self._words, self.count), np.float32)
        np.add.at(found, (self._documents[there], self.topics[there]), 1)
        return found

    def sweep(self, others: np.ndarray) -> np.ndarray:
        """Samples the topic of each word once.

        :param others: counts of other documents.
        :return: those of these documents, after it.
        """
        counts = others + self.counts()
        totals = counts.sum(0, dtype=np.float64)
        for place, rows in enumerate(self._rows):
            if len(rows):
                self._sample(place, rows, counts, totals)
        return self.counts()

    def _sample(self, place: int, rows: np.ndarray, counts: np.ndarray, totals: np.ndarray) -> None:
        """Of the words at one place of the documents ``rows``. Keeps ``counts`` and their ``totals`` [topics] up to date."""
        words, old, each = self._documents[rows, place], self.topics[rows, place], np.arange(len(rows))
        self._of_documents[rows, old] -= 1
        of_words, of_topics = counts[words], np.tile(totals, (len(rows), 1))
        of_words[each, old] -= 1
        of_topics[each, old] -= 1
        likely = (self._of_documents[rows] + self._priors.document) * (of_words + self._priors.word)
        likely /= of_topics + self._words * self._priors.word
        reached = likely.cumsum(1)
        drawn = self._draw.random(len(rows)) * reached[:, -1]
        new = (reached < drawn[:, None]).sum(1)
        self.topics[rows, place] = new
        self._of_documents[rows, new] += 1
        np.add.at(counts, (words, old), -1)
        np.add.at(counts, (words, new), 1)
        totals += np.bincount(new, minlength=self.count) - np.bincount(old, minlength=self.count)
