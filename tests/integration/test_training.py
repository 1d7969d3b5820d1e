"""Whole fits on three executors, each a JVM of its own."""

import functools

import numpy as np
import pandas as pd
import pytest
import torch
from lab.settings import applied
from pyspark.sql import DataFrame, SparkSession

from sparkdl_comm import Callback, TorchEstimator, TorchModel
from sparkdl_comm.errors import CallbackError, ConfError, ModelError
from sparkdl_comm.optim import LAMB, LARS
from tests.integration.nets import Large, Line, Odd, SeesMemory, Small, different_everywhere, named_everywhere
from tests.nets import Counting, Fresh, LateSparse
from tests.slow import crossed, slow

ROWS = 90
OPTIMIZERS = {
    "sgd": functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adam": functools.partial(torch.optim.Adam, lr=0.003),
    "lars": functools.partial(LARS, lr=0.2, momentum=0.9, weight_decay=0.01, trust_coefficient=0.02),
    "lamb": functools.partial(LAMB, lr=0.01),
}


def table(rows: int = ROWS) -> pd.DataFrame:
    random = np.random.default_rng(11)
    features = random.standard_normal((rows, 28), np.float32)
    return pd.DataFrame({"features": list(features), "label": np.abs(features[:, :10]).argmax(1)})


def frame(spark: SparkSession, rows: int = ROWS) -> DataFrame:
    return spark.createDataFrame(table(rows), "features array<float>, label long")


def fit(data: DataFrame, *, batch: int = ROWS, epochs: int = 20, **settings: object) -> TorchModel:
    chosen = {"model": Small, "loss": "CrossEntropyLoss", "optimizer": OPTIMIZERS["sgd"], "num_workers": 3, "seed": 5}
    return TorchEstimator(batchSize=batch, maxIter=epochs, **{**chosen, **settings}).fit(data)


def in_one_process(net: type[torch.nn.Module], optimizer: str, steps: int) -> dict[str, torch.Tensor]:
    """The reference: every step on all rows."""
    rows = table()
    features, labels = torch.tensor(np.stack(rows["features"])), torch.tensor(rows["label"].to_numpy())
    torch.manual_seed(5)
    module = net()
    made = OPTIMIZERS[optimizer](module.parameters())
    for _ in range(steps):
        made.zero_grad()
        torch.nn.functional.cross_entropy(module(features), labels).backward()
        made.step()
    return module.state_dict()


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Relative difference of all weights, as one vector, in the Euclidean norm."""
    assert one.keys() == other.keys()
    mine, theirs = (torch.cat([tensor.flatten().double() for tensor in state.values()]) for state in (one, other))
    return ((mine - theirs).norm() / theirs.norm()).item()


def same_bits(one: TorchModel, other: TorchModel) -> bool:
    mine, theirs = one.module.state_dict(), other.module.state_dict()
    return all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize(
    ("net", "optimizer", "strategy"),
    crossed(
        [Small, Large], ["sgd", "adam"], ["ps", "gloo"],
        quick=[(Small, "sgd", "gloo"), (Large, "adam", "ps")],
    ),
)  # fmt: skip
def test_same_mathematics_as_one_process(spark, net, optimizer, strategy):
    """20 steps; `fit` itself refuses ranks that end with different bits."""
    model = fit(frame(spark), model=net, optimizer=OPTIMIZERS[optimizer], strategy=strategy)
    reference = in_one_process(net, optimizer, 20)
    off = distance(model.module.state_dict(), reference)
    print(f"{strategy} {optimizer} {net.__name__}: {off:.1e}")
    assert off <= 1e-5
    torch.manual_seed(5)
    assert distance(net().state_dict(), reference) > 1e-2, "training changed nothing, so the comparison shows nothing"
    assert model.summary["iterations"] == 20


@pytest.mark.parametrize(("optimizer", "batching"), [("lars", "layerwise"), slow("lamb", "whole")])
def test_norms_of_layers_that_lie_in_stripes(spark, optimizer, batching):
    with applied(spark, {"ps.batching": batching}):
        model = fit(frame(spark), optimizer=OPTIMIZERS[optimizer], strategy="ps")
    reference = in_one_process(Small, optimizer, 20)
    assert distance(model.module.state_dict(), reference) <= 1e-5
    torch.manual_seed(5)
    assert distance(Small().state_dict(), reference) > 1e-2


def test_a_fit_that_names_no_strategy(spark):
    with applied(spark, {"strategy": None}):
        small = fit(frame(spark), epochs=1)
    with applied(spark, {"strategy": None, "ps.batching": "whole"}):
        batched = fit(frame(spark), epochs=1)
    assert (small.summary["strategy"], batched.summary["strategy"]) == ("ring", "ps")


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(spark):
    data = frame(spark).repartition(7)
    first, second, other = (fit(data, batch=16, epochs=3, seed=seed) for seed in (1, 1, 2))
    assert same_bits(first, second)
    assert not same_bits(first, other)
    assert [row["loss"] for row in first.history] == [row["loss"] for row in second.history]


@pytest.mark.parametrize(("rows", "strategy"), crossed([1, 2, 50], ["ps", "gloo"], quick=[(1, "ps")]))
def test_fewer_rows_than_workers_and_unequal_partitions(spark, rows, strategy):
    data = frame(spark).limit(rows)
    model = fit(data, batch=4, epochs=2, strategy=strategy)
    assert model.summary["iterations"] == 2 * -(-rows // 4)
    assert same_bits(model, fit(data, batch=4, epochs=2, strategy=strategy))


def test_bytes_over_the_network_are_those_that_must_travel(spark):
    summary = fit(frame(spark), model=Large, epochs=4).summary
    parameters = sum(p.numel() for p in Large().parameters())
    # Each step, each of 3 ranks needs the 2 shards it does not own, and the gradients of 2 others for its own.
    assert summary["bytes"] == {"pull": 4 * 2 * parameters * 4, "push": 4 * 2 * parameters * 4}
    assert all(summary["phases"][name] > 0 for name in ("pull", "forward", "backward", "push", "aggregate", "update"))


@pytest.mark.parametrize("shared", ["true", slow("false")])
def test_executors_of_one_host_map_each_others_memory_unless_told_not_to(spark, shared):
    with applied(spark, {"ps.sharedMemory": shared}):
        model = fit(frame(spark), model=SeesMemory, epochs=2)
    assert model.summary["world"] == 3
    assert model.module.mapped.item() == (3 if shared == "true" else 1)


@pytest.mark.parametrize(("wire", "shared", "tolerance"), [("bf16", "true", 3e-2), slow("fp16", "false", 4e-3)])
def test_sixteen_bits_on_the_wire(spark, wire, shared, tolerance):
    with applied(spark, {"ps.wire": wire, "ps.sharedMemory": shared}):
        model = fit(frame(spark), model=Large, epochs=10)
    reference = in_one_process(Large, "sgd", 10)
    off = distance(model.module.state_dict(), reference)
    assert 1e-6 < off < tolerance
    parameters = sum(p.numel() for p in Large().parameters())
    assert model.summary["bytes"]["push"] == 10 * 2 * parameters * 2
    weights = torch.cat([tensor.flatten() for tensor in model.module.state_dict().values()])
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}[wire]
    assert torch.equal(weights, weights.to(half).float()), "all ranks compute with what the wire carried"


@pytest.mark.parametrize(
    ("strategy", "setting"),
    [("ps", None), slow("ps", "batching=layerwise"), slow("ps", "wire=fp16"), slow("gloo", None)],
)
def test_frozen_shared_unused_and_empty_parameters(spark, strategy, setting):
    decaying = functools.partial(torch.optim.AdamW, lr=0.01, weight_decay=0.5)
    key, value = (setting or "wire=fp32").split("=")
    with applied(spark, {f"ps.{key}": value}):
        model = fit(frame(spark), model=Odd, strategy=strategy, epochs=5, optimizer=decaying)
    torch.manual_seed(5)
    before, after = Odd().state_dict(), model.module.state_dict()
    for name in ("frozen.weight", "frozen.bias", "unused.weight", "unused.bias"):
        kept = before[name].half().float() if setting == "wire=fp16" and name.startswith("unused") else before[name]
        assert torch.equal(kept, after[name]), name
    assert not torch.equal(before["encoder.weight"], after["encoder.weight"])
    assert model.module.decoder.weight is model.module.encoder.weight
    assert after["norm.num_batches_tracked"] == 5


@pytest.mark.slow
def test_regression_does_not_broadcast(spark):
    table_ = table()
    table_["label"] = np.stack(table_["features"]) @ np.linspace(-1, 1, 28, dtype=np.float32)
    data = spark.createDataFrame(table_, "features array<float>, label double")
    model = fit(data, model=Line, loss="MSELoss", epochs=200, optimizer=functools.partial(torch.optim.Adam, lr=0.05))
    assert model.summary["history"][-1]["loss"] < 1e-3
    prediction = model.transform(data).toPandas()
    assert np.abs(prediction["prediction"] - prediction["label"]).max() < 0.2


def test_a_trained_module_continues_and_is_not_changed(spark):
    torch.manual_seed(0)
    given = Small()
    before = {name: tensor.clone() for name, tensor in given.state_dict().items()}
    model = fit(frame(spark), model=given, epochs=2)
    assert all(torch.equal(before[name], tensor) for name, tensor in given.state_dict().items())
    assert not same_bits(model, TorchModel(given, True))


@pytest.mark.slow
def test_ranks_begin_with_rank_0s_model(spark):
    """`fit` refuses ranks that end with other weights."""
    assert fit(frame(spark), model=different_everywhere).summary["world"] == 3


def test_a_model_that_is_another_one_on_each_rank_is_refused(spark):
    with pytest.raises(ModelError, match="differs from rank 0's"):
        fit(frame(spark), model=named_everywhere)


class Clip(Callback):
    def on_step_end(self, state):
        for parameter in state.module.parameters():
            parameter.data.clamp_(-0.1, 0.1)


@pytest.mark.slow
def test_weights_that_a_callback_clips(spark):
    """Under ps the servers have the exact ones."""
    with pytest.raises(
        CallbackError, match=r"callback Clip\.on_step_end on rank \d at step 1 changes trained parameters"
    ):
        fit(frame(spark), callbacks=[Clip()], strategy="ps")
    model = fit(frame(spark), callbacks=[Clip()], strategy="ring", epochs=2)
    assert max(parameter.abs().max().item() for parameter in model.module.parameters()) == pytest.approx(0.1)


@pytest.mark.slow
def test_state_beyond_parameters_and_buffers_comes_back(spark, tmp_path):
    model = fit(frame(spark), model=Counting, loss="MSELoss", epochs=2, batch=45)
    assert (model.module.seen["calls"], len(model.module.seen["rows"]), model.module.seen["raw"]) == (4, 4, b"\xff")
    model.save(str(tmp_path / "model"))
    assert TorchModel.load(str(tmp_path / "model")).module.seen == model.module.seen
    again = fit(frame(spark), model=model, loss="MSELoss", epochs=1, batch=45)
    assert again.module.seen["calls"] == 6
    assert fit(frame(spark), model=Fresh, loss="MSELoss", epochs=2, batch=45).module.steps == 4


@pytest.mark.slow
def test_a_late_tensor_that_cannot_be_sent(spark, caplog):
    """In the first step it ends the fit; later it costs itself alone."""
    with pytest.raises(ModelError, match="mix in the module's state_dict is a tensor that cannot be sent") as refused:
        fit(frame(spark), model=functools.partial(LateSparse, 28), loss="MSELoss")
    assert refused.value.step == 1
    model = fit(frame(spark), model=functools.partial(LateSparse, 28, call=3), loss="MSELoss", epochs=4)
    assert "the trained model lacks a tensor: tensor 'mix' cannot be sent" in caplog.text
    assert sorted(model.module.state_dict()) == ["layer.bias", "layer.weight", "seen"]


@pytest.mark.skipif(not hasattr(torch.optim, "Adafactor"), reason="torch 2.4 has no Adafactor")
def test_an_optimizer_that_needs_whole_tensors_is_refused(spark):
    with pytest.raises(ModelError, match="Adafactor is not elementwise.*Set ring without that loop"):
        fit(frame(spark), optimizer=torch.optim.Adafactor, strategy="ps")


@pytest.mark.slow
def test_nic_and_ports_can_be_given(spark):
    with applied(spark, {"nic": "lo", "ports": "42100-42160"}):
        assert fit(frame(spark), epochs=1).summary["iterations"] == 1
    with applied(spark, {"nic": "eth77"}), pytest.raises(ConfError, match="spark.sparkdl.comm.nic"):
        fit(frame(spark), epochs=1)


def test_trained_saved_loaded_and_scored(spark, tmp_path):
    data = frame(spark)
    model = fit(data, epochs=60)
    model.save(str(tmp_path / "model"))
    loaded = TorchModel.load(str(tmp_path / "model"))
    scored = loaded.transform(data).toPandas()
    assert (scored["prediction"] == scored["label"]).mean() > 0.9
    assert same_bits(model, loaded)
    assert loaded.uid == model.uid


@pytest.mark.parametrize("strategy", ["ps", "gloo"])
@pytest.mark.slow
def test_a_trained_model_is_trained_further(spark, strategy):
    """Without momentum, 10 steps and 10 more are 20."""
    plain = functools.partial(torch.optim.SGD, lr=0.05)
    first = fit(frame(spark), epochs=10, optimizer=plain, strategy=strategy)
    before = {name: tensor.clone() for name, tensor in first.module.state_dict().items()}
    further = fit(frame(spark), epochs=10, optimizer=plain, strategy=strategy, model=first).module.state_dict()
    whole = fit(frame(spark), epochs=20, optimizer=plain, strategy=strategy).module.state_dict()
    assert distance(further, whole) <= 1e-5
    assert distance(before, whole) > 1e-3
    assert distance(first.module.state_dict(), before) == 0, "the model given stays as it was"
