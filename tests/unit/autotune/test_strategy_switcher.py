"""A strategy that joins for a measurement leaves nothing behind."""

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sparkdl_comm.autotune import strategy_switcher
from sparkdl_comm.autotune.strategy_switcher import StrategySwitcher
from sparkdl_comm.conf import CommConf
from sparkdl_comm.optim.optimizer import Optimization, OptimizerMaker
from sparkdl_comm.space.flat import FlatModel


class Binder:
    """Strategy that binds the model to memory of its own, as ps does."""

    needs_plugin = False
    memory: list[Any] = []

    def __init__(self, conf: CommConf) -> None:
        self.is_closed = False

    def join(self, gang: Any, model: FlatModel, make_optimizer: OptimizerMaker) -> None:
        values, gradients = (np.zeros(model.count, np.float32) for _ in range(2))
        self.memory += [weakref.ref(values), weakref.ref(gradients)]
        model.bind(torch.from_numpy(values), torch.from_numpy(gradients))

    def finish(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("fails", [False, True])
def test_a_probe_frees_the_memory_of_its_model(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    monkeypatch.setattr(strategy_switcher, "load_strategy", lambda conf: Binder)
    monkeypatch.setattr(Binder, "memory", [])
    conf = CommConf.from_mapping({})

    def flat() -> tuple[FlatModel, OptimizerMaker]:
        model = FlatModel(nn.Linear(2, 3))
        return model, OptimizerMaker(
            model, Optimization(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0))
        )

    def probe(switcher: StrategySwitcher) -> Any:
        with switcher.probe_strategy(conf, *flat()) as strategy:
            if fails:
                raise ValueError("in the measurement")
        return strategy

    switcher = StrategySwitcher("attempt", None, *flat(), None, 10.0)  # type: ignore[arg-type]
    if fails:
        with pytest.raises(ValueError, match="in the measurement"):
            probe(switcher)
    else:
        assert probe(switcher).is_closed
    gc.collect()
    assert [memory() for memory in Binder.memory] == [None, None]
