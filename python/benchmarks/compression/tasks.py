"""Tasks of the benchmark `compression/convergence`: scikit-learn's digits, and docstrings by their library."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from benchmarks.docstrings import LIBRARIES, WORDS, documents
from torch import nn

from sparkdl_comm.networks import LeNet5, digits

_VOCABULARY = 2000
_SPLIT_SEED = 1998
#: Folds of the digits.
FOLDS = 5


class Task(NamedTuple):
    """Classification task. ``table``: columns features, label and fold, with the Spark types ``types``.

    The rows of one of the first ``folds`` are held out for tests.
    """

    network: Callable[[], nn.Module]
    table: pd.DataFrame
    types: str
    folds: int
    batch: int
    epochs: int
    learning_rate: float


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.GroupNorm(8, channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.GroupNorm(8, channels),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.inner(x))


class SmallResNet(nn.Sequential):
    """Network of three residual blocks, with 46,938 parameters. Input [rows, 784] (28 x 28), output [rows, 10]."""

    def __init__(self) -> None:
        super().__init__(
            nn.Unflatten(1, (1, 28, 28)),
            nn.Conv2d(1, 16, 3, stride=2, padding=1, bias=False),
            nn.GroupNorm(8, 16),
            nn.ReLU(),
            _Residual(16),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            _Residual(32),
            _Residual(32),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(32, 10),
        )


class SmallTransformer(nn.Module):
    """Two encoder layers over words, with 199,108 parameters. Input int64 [rows, 60], 0 for no word; output [rows, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(1 + _VOCABULARY, 64)
        self.places = nn.Parameter(0.02 * torch.randn(WORDS, 64))
        layer = nn.TransformerEncoderLayer(64, 4, dim_feedforward=128, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, len(LIBRARIES))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        missing = text == 0
        encoded = self.encoder(self.words(text) + self.places, src_key_padding_mask=missing)
        there = (~missing).unsqueeze(2).to(encoded.dtype)
        return self.head((encoded * there).sum(1) / there.sum(1).clamp(min=1))


def digits_table(side: int) -> pd.DataFrame:
    """Return digits of side x side pixels, dealt to folds."""
    pixels, labels = digits(side)
    fold = np.random.default_rng(_SPLIT_SEED).permutation(len(labels)) % FOLDS
    return pd.DataFrame({"features": list(pixels.numpy()), "label": labels.numpy(), "fold": fold})


def _docstrings() -> pd.DataFrame:
    """Return docstrings. Those of some files are in fold 0. Only words of the others are known."""
    rows = [(words, label, int(not testing)) for label, words, testing in documents()]
    table = pd.DataFrame(rows, columns=["words", "label", "fold"])
    counts = Counter(word for words in table.words[table.fold > 0] for word in words)
    known = {word: index for index, (word, _) in enumerate(counts.most_common(_VOCABULARY), start=1)}
    numbers = ([known[word] for word in words if word in known] for words in table.words)
    table["features"] = [np.array(found + [0] * (WORDS - len(found)), np.int64) for found in numbers]
    return table[["features", "label", "fold"]]


DIGITS_TYPES = "features array<float>, label long, fold long"
_TEXT = "features array<long>, label long, fold long"

TASKS: dict[str, Callable[[], Task]] = {
    "lenet5": lambda: Task(LeNet5, digits_table(28), DIGITS_TYPES, FOLDS, 32, 8, 0.02),
    "resnet": lambda: Task(SmallResNet, digits_table(28), DIGITS_TYPES, FOLDS, 32, 20, 0.05),
    "transformer": lambda: Task(SmallTransformer, _docstrings(), _TEXT, 1, 64, 10, 0.1),
}

task = functools.cache(lambda name: TASKS[name]())
