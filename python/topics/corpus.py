"""Documents to find topics in: docstrings of the libraries that are installed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
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
