"""What ranks do with buckets of gradients, in threads over real sockets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from sparkdl_comm.collectives.group import CollectiveGroup
from sparkdl_comm.collectives.plan import Operation
from sparkdl_comm.collectives.work import Work
from sparkdl_comm.conf import CommConf
from sparkdl_comm.strategies.base import Stopwatch
from sparkdl_comm.strategies.collective import CollectiveAllReduce
from sparkdl_comm.strategies.exchange import BucketExchange, CollectiveExchange
from sparkdl_comm.strategies.overlapped import RootUpdate
from tests.unit.collective_helpers import conf, on_all
from tests.unit.gang_helpers import SECONDS, gang_of
from tests.unit.ranks import Rows, train


def test_buckets_are_waited_for_in_any_order_and_their_bytes_are_counted():
    def work(gang: Any) -> Any:
        group, watch = CollectiveGroup(gang, "ring", conf()), Stopwatch()
        vector = torch.arange(12.0) * (gang.rank + 1)
        exchange = CollectiveExchange(group, "all_reduce", vector, watch)
        exchange.prepare([(3, 12)])
        begun = [exchange.start(3, 12), exchange.start(0, 3)]
        for pending in reversed(begun):
            pending.wait()
            assert pending.is_over
        gang.all_gather(b"", SECONDS)
        group.close()
        return vector.tolist(), watch.bytes, exchange.state()

    with gang_of(3) as gangs:
        results = on_all(gangs, work)
    # Of each third of a bucket, two ranks' come to be added, and two sums come back.
    nbytes = 4 * 2 * (9 + 3) // 3
    wanted = (torch.arange(12.0) * 6).tolist(), {"push": nbytes, "pull": nbytes}, {}
    assert results == [wanted] * 3


class Rounded(CollectiveExchange):
    """Gradients travel as multiples of 1/8; what that leaves out is added to those of the next step."""

    def __init__(self, vector: torch.Tensor, *more: Any) -> None:
        super().__init__(*more[:2], vector, more[2])
        self._left_out = torch.zeros_like(vector)

    def start(self, start: int, stop: int) -> Work[Any]:
        part, left_out = self._vector[start:stop], self._left_out[start:stop]
        used = (part != 0) | ~part.signbit()
        wanted = (part + left_out)[used]
        part[used] = (wanted * 8).round() / 8 + 0.0  # not -0.0
        left_out[used] = (wanted - part[used]).nan_to_num()  # infinite in a step that fp16 skips
        return super().start(start, stop)

    def state(self) -> dict[str, Any]:
        return {"left out": self._left_out}

    def load_state(self, state: dict[str, Any]) -> None:
        self._left_out.copy_(state["left out"])


class Feedback:
    """Before a strategy: rounds what it reduces."""

    def _make_exchange(self: Any, vector: torch.Tensor, operation: Operation) -> BucketExchange:
        if operation == "broadcast":
            return super()._make_exchange(vector, operation)  # type: ignore[misc]
        return Rounded(vector, self._group, operation, self.watch)


class AllReduced(Feedback, CollectiveAllReduce):
    algorithm = "be"


class AtRoot(Feedback, RootUpdate):
    algorithm = "be"


def parts(counts: Sequence[int]) -> list[Rows]:
    torch.manual_seed(3)
    return Rows(torch.randn(sum(counts), 3), torch.randn(sum(counts), 1)).cut(*counts)


@pytest.mark.parametrize(("strategy", "loop"), [(AllReduced, "all-reduce"), (AtRoot, "root")])
def test_what_an_exchange_left_out_is_in_checkpoints(strategy: Any, loop: str) -> None:
    settings = {"strategy": "be", "loop": loop, "bucket": 8}
    rows = parts([5, 0, 4])
    assert CommConf.from_mapping({}, **settings).collective.bucket == 8

    def trained(epochs: int, **hooks: Any) -> Any:
        made = train(lambda: nn.Linear(3, 1), rows, strategy=strategy, conf=settings, batch=2, epochs=epochs, **hooks)
        return made[0].model.values.clone()

    kept: dict[int, Any] = {}
    whole = trained(4)
    half = trained(2, finish=lambda at: kept.update({at.strategy._gang.rank: at.state()}))
    assert any(state["own"]["strategy"]["left out"].any() for state in kept.values())

    def goes_on(at: Any) -> None:
        at.load_state(kept[at.strategy._gang.rank])

    begins = {"arrive": lambda spec, gang, model: model.load(0, half), "prepare": goes_on}
    assert torch.equal(trained(4, **begins), whole)
    for state in kept.values():
        state["own"]["strategy"]["left out"].zero_()
    assert not torch.equal(trained(4, **begins), whole)


@pytest.mark.parametrize(("strategy", "loop"), [(AllReduced, "all-reduce"), (AtRoot, "root")])
def test_what_no_rank_used_stays_though_gradients_are_rounded(strategy: Any, loop: str) -> None:
    class Idle(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 1)
            self.idle = nn.Parameter(torch.ones(5))

    made = train(
        Idle, parts([5, 0, 4]), strategy=strategy, conf={"strategy": "be", "loop": loop, "bucket": 8},
        optimizer=lambda params: torch.optim.AdamW(params, lr=0.1, weight_decay=0.5),
    )  # fmt: skip
    assert all(torch.equal(loop.model.module.idle, torch.ones(5)) for loop in made)
