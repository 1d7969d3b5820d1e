"""What transform knows of a model's output, which in eval mode may be another one than in training."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pandas as pd
import pytest
import torch

from sparkdl_comm.data.fields import Field
from sparkdl_comm.data.ragged import call
from sparkdl_comm.ml.prediction import Predictor
from sparkdl_comm.ml.scoring import PREDICTION, Scoring, kind_of, members_of
from sparkdl_comm.train.diagnosis import shape_in_eval, shape_of
from sparkdl_comm.train.objective import _zero_loss
from sparkdl_comm.train.training_loop import TrainingLoop
from tests.unit.loop_helpers import PARTS, Net, table
from tests.unit.ranks import train
from tests.unit.strategies.test_used_parameters import ALL, of


class Auxiliary(Net):
    """Two heads in training, as Inception-V3 has, and one afterwards."""

    def forward(self, rows: torch.Tensor) -> Any:
        output = super().forward(rows)
        return (output, output * 2) if self.training else output


class Recurrent(torch.nn.GRU):
    """Rows, a state [layers, rows, 3], a loss, and None."""

    def __init__(self) -> None:
        super().__init__(1, 3, num_layers=2, batch_first=True)

    def forward(self, rows: torch.Tensor) -> Any:  # type: ignore[override]
        output, state = super().forward(rows.unsqueeze(2))
        return output[:, -1], state, output.sum(), None


def of_first(output: Any, target: torch.Tensor) -> torch.Tensor:
    values = output[0] if isinstance(output, tuple) else output
    return ((values.sum(1) - target) ** 2).mean()


@ALL
def test_the_output_in_eval_mode(way: Any) -> None:
    loops = train(
        Auxiliary,
        table().cut(*PARTS),
        **of(way),
        loss=of_first,
        epochs=1,
        finish=TrainingLoop.record_eval_output_shape,
    )
    assert [loop.progress.output_shape for loop in loops] == [[], None, []], "rank 1 has no rows"


def test_what_has_no_rows_is_left_out() -> None:
    module = Recurrent()
    rows = torch.randn(5, 4)
    assert shape_of(module(rows), 5) == {"output0": [3]}
    assert shape_of(module(rows[:2]), 2) == {"output0": [3], "output1": [2, 3]}, "as many layers as rows"
    shape = shape_in_eval(lambda count: module(rows[:count]), module)
    assert shape == {"output0": [3]}
    scoring = Scoring(kind_of(False, None, shape), None, (PREDICTION,), members_of(shape))
    predictor = Predictor(module, [Field("featuresCol", "x")], 2, scoring, "cpu")
    (scored,) = predictor.predict(iter([(pd.Series(list(rows.numpy())),)]))
    assert torch.allclose(torch.tensor([list(row) for row in scored[0]]), module(rows)[0], atol=1e-6)


def test_a_model_that_fails_in_eval_mode(capsys: pytest.CaptureFixture[str]) -> None:
    assert shape_in_eval(lambda count: {}["nothing"], torch.nn.Identity()) is None
    assert "unknown: KeyError" in capsys.readouterr().out


class ModelOutput(OrderedDict):
    """As Hugging Face's: a mapping whose values are attributes, too."""

    @property
    def logits(self) -> torch.Tensor:
        return self["logits"]


def test_logits_are_the_output() -> None:
    output = call(lambda rows: ModelOutput(logits=rows * 2, hidden=rows), [torch.ones(2, 3)])
    assert output.tolist() == [[2.0] * 3] * 2
    plain = {"logits": torch.ones(1)}
    assert call(lambda: plain, []) is plain, "a dict is what the user's loss takes"


def test_nothing_of_an_output_without_rows() -> None:
    assert _zero_loss((torch.ones(0, 3), None, {"loss": torch.zeros(())})).item() == 0.0
