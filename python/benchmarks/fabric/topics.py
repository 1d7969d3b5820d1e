"""Topics of documents: docstrings of the installed libraries, collapsed Gibbs sampling of a worker's share, and perplexity.

Documents are int32 ``[documents, places]``: a word's number at each place, -1 for none. Counts are float32
``[words, topics]``: how many places with this word have this topic.

David Newman et al., "Distributed Algorithms for Topic Models", JMLR 2009: a worker samples the topics of its own documents. It
uses counts of all words, and those of other workers are as old as the last exchange. Here the places of one number are sampled
at once, in all documents: counts of a document are exact, and those of words as they were before these places.

Hanna M. Wallach et al., "Evaluation Methods for Topic Models", ICML 2009, section 5.3, document completion: the words at even
places tell how much of each topic is in a document, and those at odd places are foretold.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
from examples.text_classifier import LIBRARIES, PER_LIBRARY, WORDS, docstrings

#: Words that are in more than this share of the documents say nothing about what one is about.
_EVERYWHERE = 0.2


class Corpus(NamedTuple):
    """``words``: by their number. ``training``, ``held_out``: int32 ``[documents, places]``, the number of the word at a
    place, -1 for none."""

    words: list[str]
    training: np.ndarray
    held_out: np.ndarray

    @classmethod
    def of(cls, training: Sequence[list[str]], held_out: Sequence[list[str]], most: int) -> Corpus:
        """Of documents as lists of words. ``most``: how many words are known, the most frequent ones of ``training``."""
        documents = Counter(word for text in training for word in set(text))
        counts = Counter(word for text in training for word in text)
        telling = (word for word, _ in counts.most_common() if documents[word] <= _EVERYWHERE * len(training))
        words = list(islice(telling, most))
        numbers = {word: number for number, word in enumerate(words)}
        return cls(words, _numbered(training, numbers), _numbered(held_out, numbers))

    @classmethod
    def of_docstrings(cls, most: int, per_library: int = PER_LIBRARY) -> Corpus:
        """Of libraries that are installed here; those of some files are held out."""
        texts: dict[bool, list[list[str]]] = {False: [], True: []}
        for library, part in LIBRARIES.items():
            for words, testing in islice(docstrings(library, part), per_library):
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


_ROUNDS = 20


def perplexity(counts: np.ndarray, documents: np.ndarray, priors: Priors = USUAL) -> float:
    """e to the minus mean log-likelihood of a word that is foretold; at most about the number of words.

    :param counts: float32 ``[words, topics]``.
    :param documents: int32 ``[documents, places]``, -1 for no word; none that the counts are of.
    """
    likely = counts.astype(np.float64) + priors.word
    likely /= likely.sum(0)
    shares = _shares(likely, documents[:, ::2], priors)
    foretold = documents[:, 1::2]
    rows, places = np.nonzero(foretold >= 0)
    chances = (shares[rows] * likely[foretold[rows, places]]).sum(1)
    return math.exp(-np.log(chances).mean())


def _shares(likely: np.ndarray, documents: np.ndarray, priors: Priors) -> np.ndarray:
    """``[documents, topics]``: how much of a topic is in a document, by expectation maximisation. ``likely``:
    ``[words, topics]``, of a word in a topic."""
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
