"""Strategy auto on executors: it chooses, strategies take over from each other, and the weights are right."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from lab.settings import applied
from pyspark.sql import SparkSession

from sparkdl_comm import TorchModel
from sparkdl_comm.errors import ConfError
from sparkdl_comm.train.callbacks import Callback
from tests.integration.nets import Large, TakesTurns
from tests.integration.test_training import distance, fit, frame, in_one_process, same_bits

ADAM = functools.partial(torch.optim.AdamW, lr=0.01)
STEPS = 21


def in_turn(spark: SparkSession, optimizer: Any) -> TorchModel:
    how = {"optimizer": optimizer, "callbacks": [PutsBack()]}
    try:
        return fit(frame(spark), model=TakesTurns, epochs=STEPS, strategy="auto", **how)
    finally:
        TakesTurns.untouched()  # the driver makes a model as well


class PutsBack(Callback):
    def on_train_end(self, state: Any) -> None:
        TakesTurns.untouched()


@pytest.mark.slow
def test_the_parameter_server_and_collectives_take_over_from_each_other(spark):
    with applied(spark, {"collective.bucket": "64KiB"}):
        model = in_turn(spark, ADAM)
    alone = fit(frame(spark), model=Large, epochs=STEPS, strategy="ps", optimizer=ADAM)
    assert distance(model.module.state_dict(), alone.module.state_dict()) < 1e-5
    assert model.summary["auto"]["chosen"] == "ring"


@pytest.mark.slow
def test_what_the_wire_rounds_is_not_handed_over(spark):
    """A learning rate of 0: all that could change a parameter is its way from rank to rank."""
    with applied(spark, {"ps.wire": "bf16"}):
        model = in_turn(spark, functools.partial(torch.optim.SGD, lr=0.0))
    torch.manual_seed(5)
    begun = Large().state_dict()
    assert all(torch.equal(tensor, begun[name]) for name, tensor in model.module.state_dict().items())


def test_it_chooses(spark):
    model = fit(frame(spark), model=Large, epochs=40, strategy="auto")
    assert distance(model.module.state_dict(), in_one_process(Large, "sgd", 40)) < 1e-4
    told = model.summary["auto"]
    first = told["decisions"][0]
    assert {"ring", "bml+decoupled", "ps+whole", "ps+layerwise", "ps+ibatch"} <= first["predicted"].keys()
    assert first["chosen"] in first["measured"]
    assert told["chosen"] in first["predicted"]
    assert told["server"]["startup"] > 0, "the way through the JVMs was measured"


@pytest.mark.slow
def test_buckets_of_a_collective_are_planned(spark):
    settings = {"collective.loop": "decoupled", "collective.batching": "ibatch", "collective.bucket": "16MiB"}
    with applied(spark, settings):
        model = fit(frame(spark), model=Large, epochs=12, strategy="ring")
    assert distance(model.module.state_dict(), in_one_process(Large, "sgd", 12)) < 1e-5
    told = model.summary["auto"]
    names = {"ring+decoupled", "ring+decoupled+ibatch"}
    assert told["decisions"][0]["predicted"].keys() == names
    assert told["chosen"] in names
    assert told["left_out"] == {}
    assert model.summary["decoupled"]["buckets"] >= 1


@pytest.mark.slow
def test_a_fit_with_one_candidate_is_that_strategy(spark):
    with applied(spark, {"auto.candidates": "ps+whole"}):
        model = fit(frame(spark), model=Large, epochs=4, strategy="auto")
    assert same_bits(model, fit(frame(spark), model=Large, epochs=4, strategy="ps"))
    assert model.summary["auto"]["decisions"] == []


def test_asynchronous_candidates_are_refused(spark):
    with (
        applied(spark, {"auto.candidates": "ring,fabric"}),
        pytest.raises(ConfError, match="'fabric' is no candidate"),
    ):
        fit(frame(spark), strategy="auto")
