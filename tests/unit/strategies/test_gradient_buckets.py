"""Parts of the gradient: in which order they are sent, and when."""

import gc
import weakref

import pytest
import torch
from torch import nn

from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.strategies.collective import GradientBuckets


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8, bias=False)  # 32 elements
        self.unused = nn.Linear(2, 2, bias=False)  # 4
        self.last = nn.Linear(8, 2)  # 16 + 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(x)))


@pytest.fixture
def model() -> FlatModel:
    made = FlatModel(Net())
    made.bind(torch.empty(made.count), torch.zeros(made.count))
    return made


def backward(model: FlatModel, buckets: GradientBuckets, *, last: bool) -> None:
    with buckets.backward(last):
        model.module(torch.ones(3, 4)).sum().backward()


def test_parts_cover_the_vector_from_its_end(model):
    assert GradientBuckets(model, model.buckets(2), lambda start, stop: None).ranges == [
        (52, 54),
        (36, 52),
        (32, 36),
        (0, 32),
    ]
    assert GradientBuckets(model, model.buckets(18), lambda start, stop: None).ranges == [(36, 54), (0, 36)]
    assert GradientBuckets(model, model.buckets(10**6), lambda start, stop: None).ranges == [(0, 54)]


def test_a_part_is_sent_when_it_is_complete_and_all_before_it(model):
    sent = []
    buckets = GradientBuckets(model, model.buckets(2), lambda start, stop: sent.append((start, stop)))
    for seen in (False, True, True):
        sent.clear()
        model.clear_gradients()
        backward(model, buckets, last=True)
        # `unused` gets no gradient, so what comes after it has to wait until that is known.
        assert sent == ([(52, 54), (36, 52)] if seen else [])
        model.complete_gradients()
        buckets.flush()
        assert sent == buckets.ranges


def test_only_the_last_backward_of_a_step_sends(model):
    sent = []
    buckets = GradientBuckets(
        model, model.buckets(18), lambda start, stop: sent.append(model.gradients[start:stop].clone())
    )
    backward(model, buckets, last=True)
    buckets.flush()
    sent.clear()
    model.clear_gradients()
    backward(model, buckets, last=False)
    once = model.gradients.clone()
    assert not sent
    backward(model, buckets, last=True)
    assert torch.equal(sent[0], 2 * once[36:])
    model.complete_gradients()
    buckets.flush()
    assert torch.equal(torch.cat([sent[1], sent[0]]), model.gradients)


def test_a_rank_without_rows_sends_all_at_the_end(model):
    sent = []
    buckets = GradientBuckets(model, model.buckets(2), lambda start, stop: sent.append((start, stop)))
    model.complete_gradients()
    buckets.flush()
    assert sent == buckets.ranges


def test_what_is_closed_goes_with_whoever_sends():
    class Sender:
        def __init__(self) -> None:
            self.model = FlatModel(Net())
            self.model.bind(torch.empty(self.model.count), torch.zeros(self.model.count))
            self.buckets = GradientBuckets(self.model, self.model.buckets(2), self.send)

        def send(self, start: int, stop: int) -> None:
            pass

    sender = Sender()
    gone = weakref.ref(sender)
    backward(sender.model, sender.buckets, last=True)
    sender.model.release()
    del sender
    gc.collect()
    assert gone() is None
