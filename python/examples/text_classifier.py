"""A text classifier with `torch.nn.EmbeddingBag`, as in torch's tutorial on text classification.

    spark-submit --jars sparkdl-comm-….jar --conf spark.plugins=sparkdl.comm.CommPlugin python/examples/text_classifier.py

Which library is a docstring from: numpy, pandas, scikit-learn or torch? The text is what is installed here, parsed, not
imported; the names of the libraries are taken out of it. Docstrings of a file are either all for training or all for
testing. The tutorial's model gets one flat tensor of words and offsets; here a row is a fixed number of words, filled up
with a padding index, which EmbeddingBag leaves out.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pandas as pd
import torch
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.sql import SparkSession
from torch import nn

import sparkdl_comm
from sparkdl_comm import TorchEstimator

LIBRARIES = {"numpy": "", "pandas": "core", "sklearn": "", "torch": "nn"}  # and the part of it to read
NAMES = {"numpy", "np", "pandas", "pd", "sklearn", "scikit", "learn", "torch", "pytorch"}
PER_LIBRARY = 800
WORDS, VOCABULARY = 60, 4000


# --8<-- [start:model]
class TextClassificationModel(nn.Module):
    def __init__(self, vocab_size: int, embed_dim: int, num_class: int) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(vocab_size, embed_dim, padding_idx=0)
        self.fc = nn.Linear(embed_dim, num_class)
        self.init_weights()

    def init_weights(self) -> None:
        initrange = 0.5
        self.embedding.weight.data.uniform_(-initrange, initrange)
        self.fc.weight.data.uniform_(-initrange, initrange)
        self.fc.bias.data.zero_()

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        return self.fc(self.embedding(text))


# --8<-- [end:model]
def docstrings(library: str, part: str) -> Iterator[tuple[list[str], bool]]:
    """Words of each docstring of 20 words or more, and whether it is for testing."""
    spec = importlib.util.find_spec(library)
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent
    seen = set()
    for file in sorted((root / part).rglob("*.py")):
        if "tests" in file.parts:
            continue
        testing = zlib.crc32(str(file.relative_to(root)).encode()) % 5 == 0
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and (text := ast.get_docstring(node)):
                words = [word for word in re.findall(r"[a-z]{2,}", text.lower()) if word not in NAMES]
                if len(words) >= 20 and text not in seen:
                    seen.add(text)
                    yield words[:WORDS], testing


def main() -> None:
    spark = SparkSession.builder.config(map=sparkdl_comm.spark_conf()).getOrCreate()

    rows = []
    for label, (library, part) in enumerate(LIBRARIES.items()):
        rows += [(words, label, testing) for words, testing in islice(docstrings(library, part), PER_LIBRARY)]
    table = pd.DataFrame(rows, columns=["words", "label", "testing"])

    # --8<-- [start:fit]
    counts = Counter(word for words in table.words[~table.testing] for word in words)
    vocab = {word: index for index, (word, _) in enumerate(counts.most_common(VOCABULARY), start=1)}
    known = [[vocab[word] for word in words if word in vocab] for words in table.words]
    table["text"] = [ids + [0] * (WORDS - len(ids)) for ids in known]
    data = spark.createDataFrame(table[["text", "label", "testing"]], "text array<long>, label long, testing boolean")
    train, test = data.filter("not testing"), data.filter("testing").drop("testing")

    estimator = TorchEstimator(
        model=functools.partial(TextClassificationModel, 1 + VOCABULARY, 64, len(LIBRARIES)),
        loss="CrossEntropyLoss",
        optimizer=functools.partial(torch.optim.Adam, lr=0.005),
        featuresCol="text",
        batchSize=64,
        maxIter=5,
        seed=1,
    )
    model = estimator.fit(train)

    accuracy = MulticlassClassificationEvaluator(metricName="accuracy").evaluate(model.transform(test))
    print(f"{train.count()} docstrings to train on, {test.count()} to test, accuracy {accuracy:.3f}")
    # --8<-- [end:fit]


if __name__ == "__main__":
    main()
