"""Strategy ``fabric``, and its API, on three executors, each a JVM of its own."""

import pytest
from lab.settings import applied

from sparkdl_comm import CommDistributor
from sparkdl_comm.errors import ConfError
from tests.integration import training_functions as functions
from tests.integration.test_training import fit, frame, same_bits, table
from tests.slow import slow


@pytest.fixture
def quick(spark):
    """A scheduler that decides often, as the rows are few."""
    with applied(spark, {"fabric.batchInterval": "20ms"}):
        yield spark


def test_trains(quick):
    data = frame(quick, 300)
    model = fit(data, strategy="fabric", batch=30, epochs=6, validationFraction=0.2)
    losses = [row["loss"] for row in model.history]
    assert len(losses) == 6
    assert losses[-1] < 0.9 * losses[0]
    assert all("val_loss" in row for row in model.history)
    summary = model.summary
    assert summary["strategy"] == "fabric"
    assert summary["updates"] == model.history[-1]["step"] >= 6 * 24
    assert sum(summary["delays"].values()) == summary["updates"]
    assert max(map(int, summary["delays"])) <= 30
    right = model.transform(data).toPandas()
    assert (right["prediction"].to_numpy() == table(300)["label"].to_numpy()).mean() > 0.25


@pytest.mark.slow
def test_goes_on_from_a_checkpoint(quick, tmp_path):
    settings = {"strategy": "fabric", "batch": 30, "checkpointDir": str(tmp_path), "checkpointInterval": 1}
    first = fit(frame(quick, 300), epochs=2, **settings)
    second = fit(frame(quick, 300), epochs=4, resume=True, **settings)
    assert [row["loss"] for row in second.history[:2]] == [row["loss"] for row in first.history]
    steps = [row["step"] for row in second.history]
    assert sorted(steps) == steps
    assert second.summary["updates"] == steps[3] - steps[1]
    assert second.summary["restarts"] == 0
    again = fit(frame(quick, 300), epochs=4, resume=True, **settings)
    assert same_bits(again, second), "no update was left to make"


@pytest.mark.parametrize("serving", [0, slow(1)])
def test_own_function(quick, serving):
    """Rank 0 waits for the others, and a server for all workers, of which rank 0 may be one."""
    with applied(quick, {"timeout": "1h"}):  # who waits in vain does so until the test's deadline
        version, mean = CommDistributor(num_workers=3).run(functions.over_the_fabric, 5, serving)
    assert version == mean
    assert 1 <= version <= 10


@pytest.mark.parametrize(
    ("settings", "params", "words"),
    [
        ({"fabric.sync": "async:0"}, {}, "async:TAU with TAU at least 1"),
        ({"fabric.replica": "true", "fabric.sync": "bsp"}, {}, "a replica would be of no use"),
        ({"fabric.replica": "true", "fabric.aggregators": "0"}, {}, "but there are only 0"),
    ],
)
def test_refused_before_any_executor_is_touched(spark, settings, params, words):
    with applied(spark, settings), pytest.raises(ConfError, match=words):
        fit(frame(spark), strategy="fabric", **params)
