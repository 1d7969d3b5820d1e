"""Every rank updates its own part of the parameters, with the bits of an all-reduce; in threads over real sockets."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sparkdl_comm.collectives.work import Work
from sparkdl_comm.conf import CommConf
from sparkdl_comm.errors import ConfError, ModelError
from sparkdl_comm.optim import LAMB
from sparkdl_comm.strategies.overlapped import DecoupledAllReduce
from sparkdl_comm.strategies.registry import strategy_class
from sparkdl_comm.train.callbacks import Callback
from sparkdl_comm.train.spec import Observation
from tests.optimizers import Mine
from tests.slow import slow
from tests.unit.compression_helpers import Sometimes, net, table, trained, values, with_skipped_steps
from tests.unit.ranks import Rows, train
from tests.unit.train.test_resume import Fit

#: Each parameter has a bucket of its own.
DECOUPLED: dict[str, Any] = {"loop": "decoupled", "bucket": 4}
BCUBE: dict[str, Any] = {"strategy": "bml", "topology": "bcube:2,2", "rails": ("lo", "lo")}
UNEVEN: dict[str, Any] = {**BCUBE, "topology": "bcube:2,2,2gbit/1gbit", "block": 16}

#: With buckets of one parameter, of some, and of all.
BUCKETS = pytest.mark.parametrize("bucket", [4, slow(16), slow(10**6)])
SCATTERING = pytest.mark.parametrize(
    "settings",
    [
        {"strategy": "ring"},
        {"strategy": "bml"},
        slow(BCUBE),
        UNEVEN,
        slow({"strategy": "be"}),
        {"strategy": "p2p-ps", "block": 16},
        {"strategy": "torus2d", "topology": "hosts:2x2"},
        {"strategy": "hierarchical", "topology": "hosts:2x2"},
    ],
    ids=lambda settings: "-".join(str(value) for value in settings.values()),
)
ALL = pytest.mark.parametrize("strategy", ["ring", slow("lp"), "mst"])


def adam(params: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=0.05, weight_decay=0.5)


@SCATTERING
@BUCKETS
def test_the_bits_of_an_all_reduce(settings: dict[str, Any], bucket: int) -> None:
    whole = values(trained(Sometimes, {**settings, "bucket": bucket}, optimizer=adam))
    loops = trained(Sometimes, {**settings, **DECOUPLED, "bucket": bucket}, optimizer=adam)
    assert torch.equal(values(loops), whole)
    ahead = {loop.strategy.details()["decoupled"]["gathered_in_backward"] for loop in loops}
    assert (ahead == {0}) == (bucket == 10**6)


@pytest.mark.parametrize(
    "optimizer",
    [adam, functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9), functools.partial(torch.optim.RMSprop, lr=0.01)],
)
@pytest.mark.parametrize("accumulation", [slow(1), 3])
def test_the_bits_of_an_all_reduce_with_other_optimizers_and_accumulation(optimizer: Any, accumulation: int) -> None:
    how = {"optimizer": optimizer, "accumulation_steps": accumulation, "batch": 24 // accumulation}
    whole = values(trained(net, {"strategy": "ring", "bucket": 4}, **how))
    assert torch.equal(values(trained(net, {"strategy": "ring", **DECOUPLED}, **how)), whole)


@BUCKETS
def test_pipelines_to_all_ranks_add_in_another_order_than_an_all_reduce(bucket: int) -> None:
    settings = {"strategy": "lp", "block": 8}
    whole = values(trained(Sometimes, settings, optimizer=adam))
    loops = trained(Sometimes, {**settings, **DECOUPLED, "bucket": bucket}, optimizer=adam)
    torch.testing.assert_close(values(loops), whole, rtol=1e-5, atol=1e-6)
    counts = [sum(len(own) for _, own in loop.strategy.owned()) for loop in loops]
    assert sum(counts) == loops[0].model.count
    buckets = loops[0].strategy.details()["decoupled"]["buckets"]
    assert max(counts) - min(counts) <= buckets, "in each bucket ranks own as much as others, to an element"


@pytest.mark.parametrize("strategy", ["mst", "tree"])
@BUCKETS
def test_buckets_that_ranks_own_whole(strategy: str, bucket: int) -> None:
    whole = values(trained(Sometimes, {"strategy": strategy}, optimizer=adam))
    loops = trained(Sometimes, {"strategy": strategy, **DECOUPLED, "bucket": bucket}, optimizer=adam)
    torch.testing.assert_close(values(loops), whole, rtol=1e-5, atol=1e-6)
    counts = [sum(len(own) for _, own in loop.strategy.owned()) for loop in loops]
    assert sum(counts) == loops[0].model.count
    assert sum(count > 0 for count in counts) == (1 if bucket == 10**6 else len(loops))


@ALL
def test_gradients_are_clipped_by_the_norm_of_all(strategy: str) -> None:
    how = {"optimizer": adam, "max_grad_norm": 0.1}
    whole = values(trained(net, {"strategy": "ring"}, **how))
    loops = trained(net, {"strategy": strategy, **DECOUPLED}, **how)
    torch.testing.assert_close(values(loops), whole, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(whole, values(trained(net, {"strategy": "ring"}, optimizer=adam)), rtol=1e-2)
    assert loops[0].strategy.details()["decoupled"]["gathered_in_backward"] == 0


@ALL
def test_steps_that_fp16_skips(strategy: str) -> None:
    with_skipped_steps({"strategy": strategy, **DECOUPLED})


@ALL
@pytest.mark.parametrize("optimizer", [functools.partial(LAMB, lr=0.05), functools.partial(Mine, lr=0.05)])
def test_optimizers_that_see_all_gradients_at_once(strategy: str, optimizer: Any) -> None:
    loops = trained(net, {"strategy": strategy, **DECOUPLED}, optimizer=optimizer)
    torch.testing.assert_close(
        values(loops), values(trained(net, {"strategy": "ring"}, optimizer=optimizer)), rtol=1e-5, atol=1e-6
    )
    assert loops[0].strategy.details()["decoupled"]["gathered_in_backward"] == 0


class Sees(Callback):
    """The parameters at the ends of epochs."""

    seen: list[list[list[float]]]

    def on_train_begin(self, state: Any) -> None:
        self.seen = []

    def on_epoch_end(self, state: Any) -> None:
        self.seen.append([parameter.tolist() for parameter in state.module.parameters()])

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}


@pytest.mark.parametrize("bucket", [4, 10**6])
def test_validation_and_callbacks_have_all_parameters(bucket: int) -> None:
    def watched(settings: dict[str, Any]) -> list[Any]:
        return trained(
            net, settings, batch=8, validation=table().cut(4, 10, 0, 10), observation=Observation(callbacks=(Sees(),))
        )

    def told(loops: list[Any]) -> list[Any]:
        losses = [[row["val_loss"] for row in loop.progress.history] for loop in loops]
        return [losses, [loop.state()["own"]["callbacks"] for loop in loops]]

    whole = told(watched({"strategy": "ring", "bucket": bucket}))
    assert told(watched({"strategy": "ring", **DECOUPLED, "bucket": bucket})) == whole
    assert len({str(callbacks) for callbacks in whole[1]}) == 1


def test_gathers_of_the_last_layers_begin_in_backward_and_all_are_in_the_order_of_forward() -> None:
    begun: dict[int, list[tuple[int, bool]]] = {}

    class Recorded(DecoupledAllReduce):
        """Backward waits for the network after each bucket, so that it shows what may begin then."""

        algorithm = "ring"
        inside = False

        @contextlib.contextmanager
        def backward(self, last: bool) -> Any:
            self.inside = True
            with super().backward(last):
                yield
            self.inside = False

        def _send(self, start: int, stop: int) -> None:
            super()._send(start, stop)
            if self.inside:
                for reduced in self._pending:
                    reduced.wait()

        def _gather(self, start: int, stop: int) -> None:
            begun.setdefault(self._gang.rank, []).append((start, self.inside))
            super()._gather(start, stop)

    rows = table().cut(7, 5, 6, 6)
    train(net, rows, strategy=Recorded, conf={"strategy": "ring", **DECOUPLED}, epochs=2)
    # Parameters begin at 0, 48, 56, 80, 83, 86 of 87 elements.
    assert set(begun) == {0, 1, 2, 3}
    for gathers in begun.values():
        assert [start for start, _ in gathers] == [80, 83, 86, 0, 48, 56] * 2
        assert not any(inside for _, inside in gathers[:6]), (
            "the first backward pass shows in what order gradients come"
        )
        assert [inside for _, inside in gathers[6:]] == [True] * 3 + [False] * 3


def test_forward_waits_for_what_it_uses() -> None:
    """Parameters are NaN until forward waits for them."""
    done: list[str] = []

    class Late(DecoupledAllReduce):
        algorithm = "ring"

        def _add_in_flight(self, start: int, work: Work[Any]) -> None:
            memory = work.wait()
            came = memory.clone()
            memory.fill_(torch.nan)

            def put_back(_: Any) -> None:
                memory.copy_(came)
                done.append(f"wait {start}")

            super()._add_in_flight(start, work.map(put_back))

    class Told(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            done.append("used")
            return super().forward(x)

    def make() -> nn.Module:
        return nn.Sequential(Told(6, 8), nn.Tanh(), nn.Linear(8, 1))

    [loop] = train(make, table().cut(24), strategy=Late, conf={"strategy": "ring", **DECOUPLED}, epochs=2)
    assert bool(loop.model.values.isfinite().all())
    # The first layer has elements 0 to 56, the second one 56 to 65.
    first, second = ["wait 48", "wait 0"], ["wait 56", "wait 64"]
    assert done == ["used", *first, "used", *second, "wait 48", *second, "wait 0"]


@pytest.mark.parametrize("settings", [{"strategy": "ring"}, {"strategy": "mst"}, {"strategy": "p2p-ps", "block": 16}])
@pytest.mark.parametrize("bucket", [4, 10**6])
@pytest.mark.slow
def test_it_goes_on_from_a_checkpoint(tmp_path: Path, settings: dict[str, Any], bucket: int) -> None:
    conf = {**settings, **DECOUPLED, "bucket": bucket}
    strategy: Any = strategy_class(CommConf.from_mapping({}, **conf))
    whole = Fit(tmp_path / "whole", strategy, epochs=4, conf=conf)
    Fit(tmp_path / "cut", strategy, epochs=2, conf=conf)
    (tmp_path / "cut" / "step-00000006" / "manifest.json").unlink()  # as if it had been killed before
    rest = Fit(tmp_path / "cut", strategy, epochs=4, conf=conf, resume=True)
    assert {restorer.step for restorer in rest.restorers.values()} == {4}
    assert rest.results() == whole.results()
    other = {**conf, "bucket": 16}
    with pytest.raises(ConfError, match="other parts of the parameters .* Set .*collective.bucket"):
        Fit(tmp_path / "cut", strategy, epochs=5, conf=other, resume=True)


@ALL
def test_a_rank_that_fails_ends_all(strategy: str) -> None:
    class Fails(nn.Sequential):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            if self.calls == 3 and len(x) == 5:
                raise ValueError("on the second rank")
            return super().forward(x)

    with pytest.raises(ValueError, match="on the second rank"):
        trained(lambda: Fails(*net()), {"strategy": strategy, **DECOUPLED})


@pytest.mark.skipif(not hasattr(torch.optim, "Adafactor"), reason="torch 2.4 has no Adafactor")
def test_optimizers_that_need_whole_tensors_are_refused() -> None:
    with pytest.raises(ModelError, match="Adafactor is not elementwise.*collective.loop=decoupled"):
        trained(net, {"strategy": "ring", **DECOUPLED}, optimizer=torch.optim.Adafactor)


def test_row_updates_of_sparse_embeddings_are_refused() -> None:
    def words() -> nn.Module:
        return nn.Sequential(nn.Embedding(5, 1, sparse=True), nn.Flatten())

    conf = {"strategy": "ring", **DECOUPLED}
    strategy = strategy_class(CommConf.from_mapping({}, **conf))
    rows = Rows(torch.randint(0, 5, (8, 4)), torch.randn(8, 4)).cut(4, 4)
    with pytest.raises(ModelError, match="SparseAdam takes sparse gradients only.*collective.loop=decoupled"):
        train(
            words, rows, strategy=strategy, conf=conf, optimizer=lambda params: torch.optim.SparseAdam(params, lr=0.1)
        )
