"""A text classifier with `torch.nn.EmbeddingBag`, as in torch's tutorial on text classification.

    spark-submit --master 'local[2]' python/examples/text_classifier.py

Which library is a docstring from: numpy, pandas, scikit-learn or torch? The example reads the libraries' files, and drops
their names from the text. Docstrings of a file are either all for training or all for testing.
"""

from __future__ import annotations

import functools
import importlib
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.sql import SparkSession
from torch import nn

import sparkdl_comm
from sparkdl_comm import TorchEstimator

LIBRARIES = ["numpy", "pandas.core", "sklearn", "torch.nn"]
NAMES = {"numpy", "np", "pandas", "pd", "sklearn", "scikit", "learn", "torch", "pytorch"}
VOCABULARY = 4000


def docstrings(library: str) -> Iterator[tuple[str, bool]]:
    """Yield each docstring of a library, and True if it belongs to the test set."""
    for file in sorted(Path(importlib.import_module(library).__path__[0]).rglob("*.py")):
        for text in re.findall(r'"""(.+?)"""', file.read_text(encoding="utf-8"), re.DOTALL):
            yield text, zlib.crc32(file.name.encode()) % 5 == 0


def words_of(text: str) -> list[str]:
    return [word for word in re.findall(r"[a-z]{2,}", text.lower()) if word not in NAMES][:60]


def encode(text: str, numbers: dict[str, int]) -> list[int]:
    return [numbers[word] for word in words_of(text) if word in numbers] or [0]


def network() -> nn.Module:
    return nn.Sequential(nn.EmbeddingBag(1 + VOCABULARY, 64, padding_idx=0), nn.Linear(64, len(LIBRARIES)))


def main() -> None:
    spark = SparkSession.builder.config(map=sparkdl_comm.spark_conf()).getOrCreate()

    rows = [(text, label, testing) for label, library in enumerate(LIBRARIES) for text, testing in docstrings(library)]
    data = spark.createDataFrame(rows, "text string, label long, testing boolean")
    train, test = data.where("not testing"), data.where("testing")

    counts = Counter(word for text, _, testing in rows if not testing for word in words_of(text))
    numbers = {word: number for number, (word, _) in enumerate(counts.most_common(VOCABULARY), start=1)}
    estimator = TorchEstimator(
        model=network,
        loss="CrossEntropyLoss",
        optimizer=functools.partial(torch.optim.Adam, lr=0.005),
        featuresCol="text",
        decode=functools.partial(encode, numbers=numbers),
        collate_fn=functools.partial(nn.utils.rnn.pad_sequence, batch_first=True),
        batchSize=128,
        maxIter=3,
        seed=1,
    )
    model = estimator.fit(train)

    accuracy = MulticlassClassificationEvaluator(metricName="accuracy").evaluate(model.transform(test))
    print(f"{train.count()} docstrings to train on, {test.count()} to test, accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
