"""Sequences of different lengths, on three executors: trained on, scored, saved and loaded."""

import functools

import numpy as np
import pandas as pd
import torch
from torch.nn.utils.rnn import pad_sequence

from sparkdl_comm import TorchEstimator, TorchModel
from tests.integration.nets import Sequences
from tests.integration.test_training import OPTIMIZERS, distance

PAD = functools.partial(pad_sequence, batch_first=True)
ROWS, EPOCHS = 60, 5
SCHEMA = "words array<int>, vectors array<array<float>>, label long, w double, held boolean"


def table() -> pd.DataFrame:
    random = np.random.default_rng(7)
    words = [random.integers(1, 12, random.integers(1, 9)).tolist() for _ in range(ROWS)]
    vectors = [random.standard_normal((random.integers(0, 5), 2)).tolist() for _ in range(ROWS)]
    weights = random.random(ROWS) + 0.1
    held = [index % 4 == 0 for index in range(ROWS)]
    return pd.DataFrame(
        {"words": words, "vectors": vectors, "label": [sum(row) % 3 for row in words], "w": weights, "held": held}
    )


def inputs(rows: pd.DataFrame) -> list[torch.Tensor]:
    vectors = [
        torch.tensor([list(vector) for vector in row], dtype=torch.float32).reshape(-1, 2) for row in rows.vectors
    ]
    return [PAD([torch.tensor(row) for row in rows.words]), PAD(vectors)]


def in_one_process() -> tuple[torch.nn.Module, float]:
    """The trained module, and its loss on the rows held out."""
    torch.manual_seed(5)
    module = Sequences()
    optimizer = OPTIMIZERS["adam"](module.parameters())
    rows = table()

    def loss(part: pd.DataFrame) -> torch.Tensor:
        weights = torch.tensor(part.w.to_numpy(), dtype=torch.float32)
        losses = torch.nn.functional.cross_entropy(
            module(*inputs(part)), torch.tensor(part.label.to_numpy()), reduction="none"
        )
        return (losses * weights).sum() / weights.sum()

    for _ in range(EPOCHS):
        optimizer.zero_grad()
        loss(rows[~rows.held]).backward()
        optimizer.step()
    return module, loss(rows[rows.held]).item()


def test_as_in_one_process(spark, tmp_path):
    data = spark.createDataFrame(table(), SCHEMA)
    estimator = TorchEstimator(
        model=Sequences,
        loss="CrossEntropyLoss",
        optimizer=OPTIMIZERS["adam"],
        collate_fn=PAD,
        featuresCols=["words", "vectors"],
        weightCol="w",
        validationIndicatorCol="held",
        batchSize=45,
        maxIter=EPOCHS,
        num_workers=3,
        seed=5,
    )
    model = estimator.fit(data)
    module, val_loss = in_one_process()
    assert distance(model.module.state_dict(), module.state_dict()) < 1e-5
    assert abs(model.history[-1]["val_loss"] - val_loss) < 1e-5

    model.setPredictBatchSize(7)
    scored = model.transform(data.coalesce(1)).toPandas()
    with torch.inference_mode():
        expected = module(*inputs(scored))
    assert np.allclose([row.toArray() for row in scored.rawPrediction], expected, atol=1e-4)

    path = tmp_path / "model"
    model.save(str(path))
    again = TorchModel.load(str(path)).transform(data.coalesce(1)).toPandas()
    assert list(again.rawPrediction) == list(scored.rawPrediction)
