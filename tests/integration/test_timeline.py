"""The timeline of a real fit: every batch of every rank is there, in an order that is possible."""

import functools
import json
import time
from pathlib import Path

import pytest
import torch
from lab.settings import applied
from pyspark.sql import SparkSession

from sparkdl_comm import TorchEstimator, TorchModel
from sparkdl_comm.cli import main
from sparkdl_comm.errors import InputError
from sparkdl_comm.report.timeline import Timeline, read_trace
from sparkdl_comm.sim.traced_timings import timings_from_spans

WORLD, STEPS, TRACED, LAYERS = 3, 6, 2, 4


class Deep(torch.nn.Sequential):
    """Four layers, each of which every rank has a stripe of."""

    def __init__(self) -> None:
        super().__init__(*(torch.nn.Linear(300, 300) for _ in range(LAYERS - 1)), torch.nn.Linear(300, 10))


class SlowBackwards(Deep):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self:
            x = layer(x)
            x.register_hook(lambda gradient: time.sleep(0.2))
        return x


def estimator(strategy: str = "ps", model: type[Deep] = Deep, steps: int = STEPS) -> TorchEstimator:
    return TorchEstimator(
        model=model,
        loss="CrossEntropyLoss",
        optimizer=functools.partial(torch.optim.SGD, lr=0.01),
        batchSize=12,
        maxIter=steps,
        num_workers=WORLD,
        strategy=strategy,
    )


@pytest.fixture(scope="module")
def data(spark: SparkSession):
    rows = [([float(i % 5)] * 300, i % 10) for i in range(12)]
    return spark.createDataFrame(rows, "features array<float>, label long").repartition(3).cache()


def traced(data, model: type[Deep], steps: int = STEPS, **batching: str) -> TorchModel:
    spark = data.sparkSession
    settings = {f"ps.{name}": value for name, value in batching.items()}
    with applied(spark, {**settings, "timeline": TRACED}):
        return estimator(model=model, steps=steps).fit(data)


@pytest.fixture(scope="module")
def timeline(data) -> Timeline:
    model = traced(data, Deep, batching="layerwise", pushBatching="fixed:400000")
    assert model.summary["batching"]["push"]["batches"] == [[3, 4], [2, 2], [1, 1]]
    return model.timeline()


def times(timeline: Timeline, name: str) -> dict[tuple[int, int, int], tuple[float, float]]:
    """(iteration, rank, batch) -> begin and end."""
    return {
        (span["iteration"], span["rank"], span["batch"]): (span["begin"], span["end"])
        for span in timeline.spans
        if span["name"] == name
    }


def test_every_batch_of_every_rank_is_there(timeline: Timeline) -> None:
    assert timeline.iterations == [STEPS - 1, STEPS]
    assert timeline.uncertainty == 0
    for names, batches in ((("pull", "forward"), LAYERS), (("push", "backward", "aggregate", "update"), 3)):
        for name in names:
            found = [
                (span["iteration"], span["rank"], span["batch"])
                for span in timeline.spans
                if span["name"] == f"{name} batch"
            ]
            expected = [(i, r, b) for i in timeline.iterations for r in range(WORLD) for b in range(batches)]
            assert sorted(found) == expected, name


def test_a_saved_timeline_tells_what_predictions_need(timeline: Timeline, tmp_path: Path, capsys) -> None:
    path = tmp_path / "trace.json"
    timeline.save(path)
    spans, parameter_bytes = read_trace(path)
    found, saved = (sorted((s["rank"], s["iteration"], s["name"]) for s in each) for each in (spans, timeline.spans))
    assert found == saved
    told = timings_from_spans(spans, parameter_bytes)
    assert (told.pulls, told.pushes) == (((0, 0), (1, 1), (2, 2), (3, 3)), ((0, 0), (1, 1), (2, 3)))
    parameters = sum(parameter.numel() for parameter in Deep().parameters())
    assert sum(layer.nbytes for layer in told.layers) == pytest.approx(4 * parameters)
    assert parameter_bytes == 4 * parameters
    assert main(["predict", "--timeline", str(path), "--rate", "100mbit", "--json"]) == 0
    [predicted] = json.loads(capsys.readouterr().out)["predictions"]
    assert predicted["seconds"] >= predicted["computing"] > 0


def test_the_order_is_possible(timeline: Timeline) -> None:
    pulls, forwards, backwards, pushes, sums, updates = (
        times(timeline, f"{name} batch") for name in ("pull", "forward", "backward", "push", "aggregate", "update")
    )
    for key, (begin, _) in forwards.items():
        assert begin >= pulls[key][1], "a layer is computed when its parameters are there"
    for iteration, rank, batch in pushes:
        last_gradient = min(backwards[iteration, other, batch][1] for other in range(WORLD) if other != rank)
        assert pushes[iteration, rank, batch][0] >= last_gradient, "a gradient travels when it is computed"
        begin, end = sums[iteration, rank, batch]
        assert begin >= pushes[iteration, rank, batch][1]
        assert updates[iteration, rank, batch][0] >= end
    first, second = timeline.iterations
    for (iteration, _, batch), (begin, _) in pulls.items():
        if iteration == second:
            pushed = 2 - batch if batch < 2 else 0  # the batch of gradients with this layer
            assert begin >= min(updates[first, rank, pushed][1] for rank in range(WORLD)), "it is the next version"


@pytest.mark.slow
def test_the_last_layer_is_pulled_while_backward_is_at_the_first_one(data) -> None:
    timeline = traced(data, SlowBackwards, TRACED + 1, batching="layerwise").timeline()
    pulls, backwards = times(timeline, "pull batch"), times(timeline, "backward batch")
    first, second = timeline.iterations
    for rank in range(WORLD):
        assert pulls[second, rank, LAYERS - 1][1] < backwards[first, rank, LAYERS - 1][1]


def test_what_a_rank_does_is_nested(timeline: Timeline, tmp_path: Path) -> None:
    """As a viewer of traces needs it: spans of a row end before the next one begins, or within the one around them."""
    timeline.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    events = [event for event in events if event["ph"] == "X"]
    for lane in {(event["pid"], event["tid"]) for event in events}:
        ends: list[float] = []
        for event in events:
            if (event["pid"], event["tid"]) == lane:
                while ends and ends[-1] <= event["ts"] + 1e-3:
                    ends.pop()
                assert not ends or event["ts"] + event["dur"] <= ends[-1] + 1e-3
                ends.append(event["ts"] + event["dur"])
    inside = [event["name"] for event in events if event["pid"] == 0]
    assert {"forward", "backward", "update", "wait for pull", "wait for push", "update 3-4"} <= set(inside)


def test_it_is_saved_with_all_its_spans(timeline: Timeline, tmp_path: Path) -> None:
    timeline.save(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    events = trace["traceEvents"]
    assert sum(event["ph"] in ("X", "b") for event in events) == len(timeline.spans)
    assert {event["ph"] for event in events} == {"M", "X", "b", "e"}
    assert all(event["ts"] >= 0 for event in events if event["ph"] != "M")
    assert {event["pid"] for event in events} == set(range(WORLD))
    timeline.plot(ranks=range(WORLD)).savefig(tmp_path / "plot.svg")
    assert "<svg" in (tmp_path / "plot.svg").read_text()


@pytest.mark.slow
def test_other_strategies_have_one_too(spark: SparkSession, data) -> None:
    with applied(spark, {"timeline": 1}):
        model = estimator("gloo").fit(data)
    names = {span["name"] for span in model.timeline().spans}
    assert {"forward", "backward", "wait for push", "update"} <= names


@pytest.mark.slow
def test_nothing_is_traced_unless_asked_for(data) -> None:
    model = estimator().fit(data)
    assert "timeline" not in model.summary
    with pytest.raises(InputError, match="spark.sparkdl.comm.timeline"):
        model.timeline()
