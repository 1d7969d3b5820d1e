"""Topics of documents: docstrings of the installed libraries, collapsed Gibbs sampling of a worker's share, and perplexity.

Documents are int32 ``[documents, places]``: a word's number at each place, -1 for none. Counts are float32
``[words, topics]``: number of places with this word and this topic.

David Newman et al., "Distributed Algorithms for Topic Models", JMLR 2009: a worker samples the topics of its own documents,
from counts of all words. Counts of other workers are as old as the last exchange. Here all documents' words at one place
are sampled at once. Counts of a document are exact, and counts of words lag by these words.

Hanna M. Wallach et al., "Evaluation Methods for Topic Models", ICML 2009, section 5.3, document completion: words at even
places give a document's topics, and words at odd places are predicted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
from benchmarks.docstrings import PER_LIBRARY, WORDS, documents

#: Words in more than this share of the documents are left out.
_EVERYWHERE = 0.2


class Corpus(NamedTuple):
    """Training and held-out documents. ``words``: the known words, by number."""

    words: list[str]
    training: np.ndarray
    held_out: np.ndarray

    @classmethod
    def of(cls, training: Sequence[list[str]], held_out: Sequence[list[str]], most: int) -> Corpus:
        """Return the corpus of documents as lists of words, with the ``most`` frequent words of ``training``."""
        documents = Counter(word for text in training for word in set(text))
        counts = Counter(word for text in training for word in text)
        telling = (word for word, _ in counts.most_common() if documents[word] <= _EVERYWHERE * len(training))
        words = list(islice(telling, most))
        numbers = {word: number for number, word in enumerate(words)}
        return cls(words, _numbered(training, numbers), _numbered(held_out, numbers))

    @classmethod
    def of_docstrings(cls, most: int, per_library: int = PER_LIBRARY) -> Corpus:
        """Return the docstrings of installed libraries. Those of some files are held out."""
        texts: dict[bool, list[list[str]]] = {False: [], True: []}
        for _, words, testing in documents(per_library):
            texts[testing].append(words)
        return cls.of(texts[False], texts[True], most)


def _numbered(texts: Sequence[list[str]], numbers: dict[str, int]) -> np.ndarray:
    found = np.full((len(texts), WORDS), -1, np.int32)
    for row, text in enumerate(texts):
        known = [numbers[word] for word in text if word in numbers]
        found[row, : len(known)] = known
    return found


@dataclass(frozen=True)
class Priors:
    """Parameters of the symmetric Dirichlet priors of a document's topics and of a topic's words."""

    document: float = 0.1
    word: float = 0.05


USUAL = Priors()


class Sampler:
    """Sampler of the topics of ``documents``. Topics are random at first.

    :param words: number of words.
    :param topics: number of topics.
    """

    def __init__(
        self, documents: np.ndarray, words: int, topics: int, draw: np.random.Generator, priors: Priors = USUAL
    ) -> None:
        self._documents, self._draw, self._priors = documents, draw, priors
        self._words, self.count = words, topics
        there = documents >= 0
        self._rows = [np.flatnonzero(column) for column in there.T]
        self.topics = np.where(there, draw.integers(topics, size=documents.shape), -1)
        """int64 ``[documents, places]``: the topic of each word, -1 for no word."""
        self._of_documents = np.zeros((len(documents), topics))
        rows, places = np.nonzero(there)
        np.add.at(self._of_documents, (rows, self.topics[rows, places]), 1)

    def counts(self) -> np.ndarray:
        """Return the counts of these documents."""
        there = self._documents >= 0
        found = np.zeros((self._words, self.count), np.float32)
        np.add.at(found, (self._documents[there], self.topics[there]), 1)
        return found

    def sweep(self, others: np.ndarray) -> np.ndarray:
        """Sample the topic of each word once. Return the new counts of these documents.

        :param others: counts of other documents.
        """
        counts = others + self.counts()
        totals = counts.sum(0, dtype=np.float64)
        for place, rows in enumerate(self._rows):
            if len(rows):
                self._sample(place, rows, counts, totals)
        return self.counts()

    def _sample(self, place: int, rows: np.ndarray, counts: np.ndarray, totals: np.ndarray) -> None:
        """Sample the words at one place of the documents ``rows``. Update ``counts`` and their ``totals`` [topics]."""
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


_ROUNDS = 20


def perplexity(counts: np.ndarray, documents: np.ndarray, priors: Priors = USUAL) -> float:
    """Return e to the minus mean log-likelihood of a predicted word; at most about the number of words.

    :param documents: held-out documents.
    """
    likely = counts.astype(np.float64) + priors.word
    likely /= likely.sum(0)
    shares = _shares(likely, documents[:, ::2], priors)
    predicted = documents[:, 1::2]
    rows, places = np.nonzero(predicted >= 0)
    chances = (shares[rows] * likely[predicted[rows, places]]).sum(1)
    return math.exp(-np.log(chances).mean())


def _shares(likely: np.ndarray, documents: np.ndarray, priors: Priors) -> np.ndarray:
    """Return the share of each topic in each document, ``[documents, topics]``, by expectation maximization.

    :param likely: probability of a word in a topic, ``[words, topics]``.
    """
    there = (documents >= 0)[:, :, None]
    of_words = likely[np.maximum(documents, 0)] * there
    shares = np.full((len(documents), likely.shape[1]), 1 / likely.shape[1])
    for _ in range(_ROUNDS):
        parts = shares[:, None, :] * of_words
        parts /= np.where(there, parts.sum(2, keepdims=True), 1.0)
        shares = parts.sum(1) + priors.document
        shares /= shares.sum(1, keepdims=True)
    return shares


class TopicLearner:
    """Learner with a worker's documents. The model is the sum of all workers' counts as last reported."""

    def __init__(self, sampler: Sampler, reported: np.ndarray) -> None:
        self._sampler, self._reported, self._now = sampler, reported, reported

    def update(self, model: np.ndarray) -> np.ndarray:
        """Sample each word once. Return the difference between the counts and those in the model."""
        others = (model - self._reported).reshape(-1, self._sampler.count)
        self._now = self._sampler.sweep(others).ravel()
        return self._now - self._reported

    def settle(self, applied: bool) -> None:
        """Keep a dropped difference for the next update."""
        if applied:
            self._reported = self._now


@dataclass(frozen=True)
class Topics:
    """Topics of documents that use ``words`` known words. Workers take documents in turn. Scores are perplexities."""

    training: np.ndarray
    held_out: np.ndarray
    words: int
    topics: int
    seed: int

    @property
    def elements(self) -> int:
        return self.words * self.topics

    def start(self) -> np.ndarray:
        """Return counts of 0."""
        return np.zeros(self.elements, np.float32)

    def learner(self, worker: int, workers: int) -> TopicLearner:
        draw = np.random.default_rng((self.seed, worker))
        sampler = Sampler(self.training[worker::workers], self.words, self.topics, draw)
        return TopicLearner(sampler, self.start())

    def score(self, model: np.ndarray) -> float:
        return perplexity(model.reshape(self.words, self.topics), self.held_out)
