"""How well counts of words by topics foretell words of other documents. Pure; see ``gibbs.py`` for what counts are.

Hanna M. Wallach et al., "Evaluation Methods for Topic Models", ICML 2009, section 5.3, document completion: the words at even
places tell how much of each topic is in a document, and those at odd places are foretold.
"""

from __future__ import annotations

import math

import numpy as np
from topics.gibbs import USUAL, Priors

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
