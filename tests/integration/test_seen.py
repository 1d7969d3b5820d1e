"""What one sees of a run on the driver: what rank 0 prints, the bar, the last lines of a rank that fails, loggers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from lab.settings import applied
from pyspark import TaskContext
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from sparkdl_comm import TensorBoardLogger, TorchEstimator
from sparkdl_comm.errors import RankFailedError


class Talks(torch.nn.Linear):
    """Prints in each forward pass; fails in the third of rank 1 if ``fails``."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__(2, 1)
        self.fails = fails
        self.calls = 0

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        rank = TaskContext.get().partitionId()
        print(f"rank {rank}, call {self.calls}")
        if self.fails and rank == 1 and self.calls == 3:
            raise LookupError("the user's mistake")
        return super().forward(rows)


@pytest.fixture(scope="module")
def data(spark: Any) -> Any:
    return spark.createDataFrame([([n / 40, 1.0], n / 20) for n in range(40)], "features array<float>, label float")


@pytest.fixture
def shown(spark: Any) -> Iterator[None]:
    with applied(spark, {"progress": "true"}):
        yield


def estimator(**more: Any) -> TorchEstimator:
    return TorchEstimator(**{"model": Talks(), "loss": "MSELoss", "num_workers": 2, "batchSize": 10, **more})


@pytest.mark.usefixtures("shown")
def test_prints_and_bar(data: Any, capsys: Any) -> None:
    estimator(maxIter=2).fit(data)
    seen = capsys.readouterr()
    assert re.findall("rank 0, call [0-9]+", seen.out) == [f"rank 0, call {call}" for call in range(1, 9)]
    assert "rank 1" not in seen.out
    bar = seen.err.splitlines()[-1].split("\r")[-1]
    assert re.search(r"epoch 2/2: 100%.* 8/8 .*samples/s=\d+, loss=\d", bar), bar


@pytest.mark.slow
def test_last_lines_of_a_rank_that_fails(data: Any) -> None:
    with pytest.raises(RankFailedError, match="the user's mistake") as caught:
        estimator(model=Talks(fails=True)).fit(data)
    assert caught.value.rank == 1
    lines = str(caught.value).splitlines()
    assert lines[0] == "rank 1 failed in forward at step 3: LookupError: the user's mistake"
    assert [line for line in lines if line.startswith("  File ")] == [line for line in lines if "test_seen.py" in line]
    assert caught.value.__suppress_context__, "no page of Java stacks before it"
    assert caught.value.log_tail.splitlines()[-3:] == [f"rank 1, call {call}" for call in (1, 2, 3)]


@pytest.mark.slow
def test_tensorboard(data: Any, tmp_path: Any) -> None:
    model = estimator(maxIter=2, loggers=[TensorBoardLogger(tmp_path)]).fit(data)
    (run,) = tmp_path.iterdir()
    assert run.name.endswith(model.uid)
    events = EventAccumulator(str(run)).Reload()
    assert [(event.step, pytest.approx(event.value)) for event in events.Scalars("epoch/loss")] == [
        (row["step"], row["loss"]) for row in model.history
    ]
    assert events.Scalars("train/samples_per_second")[-1].step == 8
    assert b"maxIter: 2" in events.Tensors("params/text_summary")[0].tensor_proto.string_val[0]


@pytest.mark.slow
def test_the_spark_ui_describes_the_jobs(spark: Any, data: Any) -> None:
    """The newest ones train, which need two if the plan is adaptive, and the one before them measures rows."""
    context = spark.sparkContext
    context.setJobDescription("nightly")
    try:
        estimator(strategy="gloo", maxIter=2).fit(data)
        assert context.getLocalProperty("spark.job.description") == "nightly", "as the user has set it"
        assert context.getLocalProperty("spark.jobGroup.id") is None
    finally:
        context.setLocalProperty("spark.job.description", None)
    jobs = context._jsc.sc().statusStore().jobsList(None)
    found = [(jobs.apply(n).description().get(), jobs.apply(n).jobGroup().get()) for n in range(3)]
    assert list(dict.fromkeys(found))[:2] == [
        ("nightly: sparkdl_comm fit: gloo, 2 epochs on 2 ranks", "sparkdl_comm"),
        ("nightly: sparkdl_comm: measure the first rows of features", "sparkdl_comm"),
    ]
