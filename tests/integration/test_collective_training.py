"""Whole fits on three executors whose gradients travel by this package's own collectives."""

import pytest
from lab.settings import applied

from sparkdl_comm.collectives.algorithms import ALGORITHMS
from sparkdl_comm.errors import ConfError
from sparkdl_comm.topology import Topology
from tests.integration.nets import Large, Small
from tests.integration.test_training import distance, fit, frame, in_one_process, same_bits
from tests.slow import slow, slow_unless

FITTING = [name for name, algorithm in ALGORITHMS.items() if not algorithm.why_ineligible(Topology.parse("star:3"))]
STEPS = 4


@pytest.mark.parametrize("strategy", [*slow_unless({"ring", "lp", "bml"}.__contains__, FITTING), "auto"])
def test_same_result_as_one_process(spark, strategy):
    model = fit(frame(spark), model=Large, epochs=STEPS, strategy=strategy)
    assert distance(model.module.state_dict(), in_one_process(Large, "sgd", STEPS)) < 1e-5
    parameters = sum(parameter.numel() for parameter in Large().parameters())
    if strategy in ("bml", "ring", "be", "p2p-ps"):
        # Of three ranks each gets 2/3 of the gradients, and 2/3 of the sums, in every step.
        for way in ("push", "pull"):
            assert model.summary["bytes"][way] / STEPS == pytest.approx(3 * 4 * parameters * 2 / 3, rel=1e-3)


def test_same_seed_same_bits_also_in_many_buckets(spark):
    with applied(spark, {"collective.bucket": "1KiB"}):
        models = [fit(frame(spark), epochs=2, strategy="lp") for _ in range(2)]
    assert same_bits(*models)
    assert distance(models[0].module.state_dict(), in_one_process(Small, "sgd", 2)) < 1e-5


@pytest.mark.parametrize(
    ("strategy", "settings", "pulled"),
    [
        # In each of 6 steps two ranks get all parameters from the third,
        ("lp", {"collective.loop": "root-overlap"}, 6 * 2),
        slow("mst", {"collective.loop": "root"}, 6 * 2),
        # or, of each bucket, the two that do not own it;
        slow("mst", {"collective.loop": "decoupled", "collective.bucket": "1KiB"}, 6 * 2),
        # or each gets two parts of the parameters;
        ("ring", {"collective.loop": "decoupled", "collective.bucket": "1KiB"}, 6 * 2),
        slow("lp", {"collective.loop": "decoupled", "collective.bucket": "1KiB"}, 6 * 2),
        # or the third gets two parts of the sums; two get a part of the parameters, and then all of them the other parts;
        slow("be", {"collective.loop": "root-overlap", "collective.bucket": "1KiB"}, 6 * (2 / 3 + 2 / 3 + 2)),
        # or two get the sums, and once, after step 5, the parameters;
        slow("lp", {"collective.resync": "5"}, 6 * 2 + 2),
        # or each gets two parts of the sums.
        ("hierarchical", {"topology": "hosts:1x3"}, 6 * 2),
    ],
)
def test_same_result_by_all_loops(spark, strategy, settings, pulled):
    with applied(spark, settings):
        model = fit(frame(spark), epochs=6, strategy=strategy)
    assert distance(model.module.state_dict(), in_one_process(Small, "sgd", 6)) < 1e-5
    nbytes = 4 * sum(parameter.numel() for parameter in Small().parameters())
    assert model.summary["bytes"]["pull"] == pytest.approx(pulled * nbytes, rel=0.02)


@pytest.mark.parametrize("strategy", ["ring", "hitopk"])
@pytest.mark.slow
def test_the_largest_gradients_alone_travel(spark, strategy):
    """All elements give what dense gradients do; few of them need few bytes. fit itself checks that ranks end alike."""
    whole = fit(frame(spark), epochs=STEPS, strategy=strategy, compression="topk:1")
    assert distance(whole.module.state_dict(), in_one_process(Small, "sgd", STEPS)) < 1e-5
    few = fit(frame(spark), epochs=STEPS, strategy=strategy, compression="mstopk:0.01")
    assert sum(few.summary["bytes"].values()) < sum(whole.summary["bytes"].values()) / 50


@pytest.fixture(params=["whole", "layerwise"])
def batching(spark, request):
    with applied(spark, {"ps.batching": request.param}):
        yield request.param


@pytest.mark.usefixtures("batching")
@pytest.mark.slow
def test_the_largest_gradients_alone_are_pushed(spark, tmp_path):
    """Parameters are pulled whole. What was left out is in checkpoints."""
    settings = {"strategy": "ps", "compression": "mstopk:0.01"}
    whole = fit(frame(spark), epochs=STEPS, **settings | {"compression": "topk:1"})
    assert distance(whole.module.state_dict(), in_one_process(Small, "sgd", STEPS)) < 1e-5
    few = fit(frame(spark), epochs=STEPS, **settings)
    assert few.summary["bytes"]["pull"] == whole.summary["bytes"]["pull"]
    assert few.summary["bytes"]["push"] < whole.summary["bytes"]["push"] / 30
    ring = fit(frame(spark), epochs=STEPS, **settings | {"strategy": "ring"})
    assert few.history[-1]["loss"] == pytest.approx(ring.history[-1]["loss"], rel=0.2)
    begun = {**settings, "checkpointDir": str(tmp_path), "checkpointInterval": STEPS // 2}
    fit(frame(spark), epochs=STEPS // 2, **begun)
    assert same_bits(fit(frame(spark), epochs=STEPS, resume=True, **begun), few)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"strategy": "hierarchical"}, "strategy hierarchical cannot run on star:3"),
        slow({"strategy": "bml", "rails": "lo,eth77"}, "spark.sparkdl.comm.rails=eth77"),
        (
            {"strategy": "bml", "rails": "lo,lo", "topology": "star:3"},
            "star:3 has 1 rails, but spark.sparkdl.comm.rails",
        ),
    ],
)
def test_networks_that_do_not_fit(spark, settings, complaint):
    strategy = settings.pop("strategy")
    with applied(spark, settings), pytest.raises(ConfError) as error:
        fit(frame(spark), strategy=strategy)
    assert complaint in str(error.value)
