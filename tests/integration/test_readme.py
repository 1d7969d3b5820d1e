"""The README's examples are run as they stand."""

import functools
import re
from pathlib import Path

import pytest
import torch
from lab.settings import applied

from sparkdl_comm import TorchEstimator, TorchModel
from tests.unit.disk_helpers import left

README = Path(__file__).parents[2] / "README.md"


def run(number, **names):
    """What the example of this number, given ``names`` of those before it, has defined in the end."""
    examples = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    exec(compile(examples[number], str(README), "exec"), names)  # noqa: S102 - our own text
    return names


def test_the_example_trains_and_saves(spark, capsys):
    names = run(0)
    assert names["scored"].count() == 300
    losses = [row["loss"] for row in names["model"].summary["history"]]
    assert losses[-1] < losses[0]
    # A relative path belongs to the JVM, which keeps the directory that it was started in.
    assert isinstance(TorchModel.load("build/readme-model"), TorchModel)
    assert "pull" in capsys.readouterr().out


def test_the_example_of_a_cache_for_each_fold(spark, tmp_path):
    data = spark.createDataFrame([([float(n), 1.0], n % 2) for n in range(60)], "features array<float>, label long")
    estimator = TorchEstimator(
        model=functools.partial(torch.nn.Linear, 2, 2), loss="CrossEntropyLoss", maxIter=1, num_workers=2
    )
    with applied(spark, {"data.cacheName": "", "data.cacheDir": str(tmp_path)}):
        assert len(run(1, spark=spark, estimator=estimator, train=data)["tuned"].avgMetrics) == 2
        assert {name[:7] for name in left(tmp_path)} == {"digits-"}
        assert len(left(tmp_path)) == 2 * 3, "of two folds and of all rows, by two ranks"
        assert estimator.fit(data).summary["data"]["reused"]


@pytest.mark.usefixtures("spark")
def test_the_example_of_ddp_hooks():
    assert run(2, torch=torch)["gradient"].tolist() == [[4.0, 4.0]]
