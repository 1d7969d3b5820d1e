"""The order of a strategy's calls is the one in its docstring, whatever is asked of the training loop."""

import contextlib
import re
import threading
from typing import Any

import pytest
import torch
from torch import nn

from sparkdl_comm import Callback
from sparkdl_comm.train.checkpoint import snapshot
from sparkdl_comm.train.spec import Observation
from tests.unit.gang_helpers import SECONDS
from tests.unit.ranks import Gathered, Rows, Sharded, train

#: A letter per call, and the tree of the docstring over these letters.
LETTERS = {
    "join": "j", "load_optimizer_state": "O", "load_state": "L", "begin_step": "s", "forward": "(", "forward's end": ")",
    "backward": "[", "last backward": "{", "backward's end": "]", "after_backward": "a", "gradients": "g", "update": "u",
    "owned": "c", "optimizer_state": "c", "state": "c", "before_forward": "p", "finish": "f", "close": "x",
}  # fmt: skip
STEP = r"s(p|(\(\)\[\])*\(\)\{\])ag?uc*"
CALLS = re.compile(rf"j(OL)?({STEP}p*)+fx")


def recording(kind: type[Gathered]) -> tuple[type[Gathered], dict[int, list[str]]]:
    """The strategy, and what it is called with, by the number of its rank."""
    calls: dict[int, list[str]] = {}
    inside = threading.local()  # calls that the strategy makes of itself are none of the loop's

    class Recording(kind):  # type: ignore[misc, valid-type]
        def __getattribute__(self, name: str) -> Any:
            found = super().__getattribute__(name)
            if name not in LETTERS or getattr(inside, "busy", False):
                return found

            def call(*args: Any, **kwargs: Any) -> Any:
                inside.busy = True
                try:
                    result = found(*args, **kwargs)
                finally:
                    inside.busy = False
                mine = calls.setdefault(self._gang.rank, [])
                if name in ("forward", "backward"):
                    return entered(mine, "last backward" if name == "backward" and args[0] else name, result)
                mine.append(LETTERS[name])
                return result

            return call

    @contextlib.contextmanager
    def entered(mine: list[str], name: str, context: Any) -> Any:
        mine.append(LETTERS[name])
        with context:
            yield
        mine.append(LETTERS[f"{name.split()[-1]}'s end"])

    return Recording, calls


class Watches(Callback):
    def on_epoch_end(self, state: Any) -> None:
        pass


def rows(count: int) -> Rows:
    return Rows(torch.randn(count, 3), torch.randn(count))


@pytest.mark.parametrize("kind", [Gathered, Sharded])
@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("clip", [None, 0.1])
def test_order(kind: type[Gathered], accumulation: int, watched: bool, clip: float | None) -> None:
    strategy, calls = recording(kind)

    def checkpoints(loop: Any) -> None:
        loop.after_step = lambda at: snapshot(at, at.strategy._gang, SECONDS)

    train(
        lambda: nn.Linear(3, 1), [rows(9), rows(0), rows(4)], strategy=strategy, batch=2, epochs=2,
        accumulation_steps=accumulation, max_grad_norm=clip, prepare=checkpoints if watched else lambda loop: None,
        observation=Observation(callbacks=(Watches(),)) if watched else None,
    )  # fmt: skip
    assert set(calls) == {0, 1, 2}
    for rank, letters in calls.items():
        text = "".join(letters)
        assert CALLS.fullmatch(text), text
        assert ("(" in text) == (rank != 1), "a rank without rows computes nothing"
        assert ("g" in text) == (clip is not None)
        assert ("c" in text) == watched
        assert rank != 1 or text.count("sp") == text.count("u")
    assert len({"".join(letters).count("u") for letters in calls.values()}) == 1


def test_a_rank_without_rows_leaves_its_gradients_alone_until_the_parameters_are_here() -> None:
    """Others may still read those of the step before."""

    class Checks(Sharded):
        def after_backward(self) -> None:
            super().after_backward()
            self._pushed = self._model.gradients.clone()

        def before_forward(self) -> None:
            if self._stale:
                assert torch.equal(self._model.gradients, self._pushed)
            super().before_forward()

        def begin_step(self) -> None:
            """Forward is to wait for what it uses, as in strategy ps."""

        @contextlib.contextmanager
        def forward(self) -> Any:
            self.before_forward()
            yield

    parts = [rows(8), rows(4)]
    train(lambda: nn.Linear(3, 1), parts, strategy=Checks, batch=2, epochs=2)


def test_state_of_its_own_is_in_checkpoints() -> None:
    class Counts(Gathered):
        steps = 0

        def update(self, apply: bool = True) -> None:
            super().update(apply)
            self.steps += 1

        def state(self) -> dict[str, Any]:
            return {"steps": self.steps}

        def load_state(self, state: dict[str, Any]) -> None:
            self.steps = state["steps"]

    kept: dict[int, Any] = {}
    parts = [rows(4), rows(2)]
    train(
        lambda: nn.Linear(3, 1), parts, strategy=Counts, epochs=3,
        finish=lambda loop: kept.update({loop.strategy._gang.rank: (loop.strategy.optimizer_state(), loop.state())}),
    )  # fmt: skip

    def go_on(loop: Any) -> None:
        optimizer, state = kept[loop.strategy._gang.rank]
        loop.strategy.load_optimizer_state(optimizer)
        loop.load_state(state)

    loops = train(lambda: nn.Linear(3, 1), parts, strategy=Counts, epochs=5, prepare=go_on)
    assert [loop.strategy.steps for loop in loops] == [5, 5]
