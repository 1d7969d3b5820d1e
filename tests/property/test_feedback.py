"""Nothing is lost: what was sent and what is left add up to all gradients, whichever steps are skipped."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparkdl_comm.compress.feedback import Feedback
from sparkdl_comm.errors import PersistenceError

COUNT = 12
STEPS = st.lists(
    st.tuples(
        st.integers(0, 999),
        st.integers(0, COUNT),
        st.sampled_from([1.0, 0.5, 1024.0]),
        st.booleans(),
        st.sampled_from(["sparse", "sparse", "dense"]),
        st.booleans(),
    ),
    max_size=12,
)


@given(STEPS)
def test_all_gradients_arrive_in_the_end(steps):
    feedback = Feedback()
    total, arrived = torch.zeros(COUNT), torch.zeros(COUNT)
    for seed, entries, scale, applied, kind, is_unused in steps:
        random = torch.Generator().manual_seed(seed)
        gradient = torch.randint(-8, 9, (COUNT,), generator=random) * scale
        unused = [slice(0, 4)] if is_unused else []
        gradient[:4] = -0.0 if is_unused else gradient[:4]
        if kind == "sparse":
            gathered = feedback.add_residual(7, gradient, scale, unused)
            if is_unused:
                assert (gathered[:4] == 0).all()
                assert gathered[:4].signbit().all()
            chosen = torch.randperm(COUNT, generator=random)[:entries].sort().values
            values = gathered[chosen] * scale
            feedback.record_sent(7, chosen, values, scale, unused)
            sent = torch.zeros(COUNT).index_add_(0, chosen, values)
        else:
            sent = gradient.clone()
            had_nothing = feedback.is_clear(7)
            feedback.flush_into(7, sent, scale, unused)
            assert not had_nothing or torch.equal(sent, gradient)
        feedback.settle(applied)
        if applied:
            if kind == "dense" and not is_unused:
                assert feedback.is_clear(7)
            total += gradient / scale
            arrived += sent / scale
    left = feedback.state()["left"].get("7", torch.zeros(COUNT))
    assert torch.equal(arrived + left, total)  # small integers


@given(st.lists(st.integers(0, 999), min_size=1, max_size=8), st.sampled_from([0.5, 0.9]))
def test_momentum_of_what_is_left_is_that_of_an_optimizer(seeds, momentum):
    """Until an element travels, what is left of it is what SGD with momentum would have gone by."""
    feedback, parameter = Feedback(momentum), torch.nn.Parameter(torch.zeros(COUNT))
    optimizer = torch.optim.SGD([parameter], lr=1.0, momentum=momentum)
    for seed in seeds:
        gradient = torch.randn(COUNT, generator=torch.Generator().manual_seed(seed))
        parameter.grad = gradient
        optimizer.step()
        gathered = feedback.add_residual(0, gradient, 1.0)
        torch.testing.assert_close(gathered, -parameter.detach())
        feedback.record_sent(0, torch.empty(0, dtype=torch.int64), torch.empty(0), 1.0)
        feedback.settle(True)
    gathered = feedback.add_residual(0, gradient, 2.0).clone()
    sent = (2 * gathered[3:4]).bfloat16().float()
    feedback.record_sent(0, torch.tensor([3]), sent, 2.0)
    feedback.settle(True)
    state = feedback.state()
    assert state["left"]["0"][3] == gathered[3] - sent[0] / 2, "what rounding took"
    assert state["velocity"]["0"][3] == 0.0
    assert state["velocity"]["0"][4] != 0.0


@given(st.integers(0, 999), st.lists(st.booleans(), min_size=2, max_size=4), st.sampled_from([1.0, 64.0]))
def test_velocities_after_a_dense_step_are_in_sum_those_of_the_ranks(seed, uses, scale):
    """Of ranks that had no gradient of a parameter, they are what they were."""
    random = torch.Generator().manual_seed(seed)
    ranks = [Feedback(0.9) for _ in uses]
    for feedback in ranks:  # leaves something out, and has a velocity of it
        feedback.add_residual(0, torch.randn(COUNT, generator=random), 1.0)
        feedback.record_sent(0, torch.tensor([1]), torch.tensor([0.0]), 1.0)
        feedback.settle(True)
    before = [{name: kept["0"].clone() for name, kept in feedback.state().items()} for feedback in ranks]
    gradients = [torch.randn(COUNT, generator=random) if used else torch.full((COUNT,), -0.0) for used in uses]
    sent = [gradient * scale for gradient in gradients]
    unused = [[] if used else [slice(0, COUNT)] for used in uses]
    for feedback, each, stretches in zip(ranks, sent, unused, strict=True):
        feedback.flush_into(0, each, scale, stretches)
    nobody = [] if any(uses) else [slice(0, COUNT)]
    for feedback in ranks:
        feedback.update_velocity(0, torch.stack(sent).sum(0), scale, len(ranks), nobody)
        feedback.settle(True)
    wanted = [
        0.9 * was["velocity"] + gradient if used else was["velocity"]
        for was, gradient, used in zip(before, gradients, uses, strict=True)
    ]
    found = [feedback.state() for feedback in ranks]
    torch.testing.assert_close(sum(kept["velocity"]["0"] for kept in found), sum(wanted), rtol=1e-4, atol=1e-5)
    for kept, was, used in zip(found, before, uses, strict=True):
        assert torch.equal(kept["left"]["0"], torch.zeros(COUNT) if used else was["left"])


def test_a_range_is_forgotten():
    feedback = Feedback()
    for start in (0, 10, 20):
        feedback.add_residual(start, torch.ones(3), 1.0)
        feedback.record_sent(start, torch.tensor([0]), torch.tensor([1.0]), 1.0)
    feedback.settle(True)
    feedback.forget(10, 20)
    assert {start: left.tolist() for start, left in feedback.state()["left"].items()} == {
        "0": [0.0, 1.0, 1.0],
        "20": [0.0, 1.0, 1.0],
    }


def test_a_checkpoint_with_momentum_is_none_without():
    feedback = Feedback(0.9)
    feedback.add_residual(0, torch.ones(3), 1.0)
    with pytest.raises(PersistenceError, match=r"compression\.momentum"):
        Feedback().load_state(feedback.state())
