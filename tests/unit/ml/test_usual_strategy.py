"""Strategy of a fit that names none."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from sparkdl_comm.conf import CommConf
from sparkdl_comm.job import session
from sparkdl_comm.ml.usual_strategy import usual_strategy
from sparkdl_comm.optim.optimizer import Optimization
from sparkdl_comm.plugin import CLASS

PLUGIN = {"spark.plugins": CLASS}


def large() -> nn.Module:
    return nn.Linear(2048, 1024)


def with_sparse_embedding() -> nn.Module:
    return nn.Sequential(nn.Embedding(1024, 1024, sparse=True), nn.Linear(1024, 2048))


def clipped(parameters: Any) -> torch.optim.Optimizer:
    class Clipped(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 0.1)
            super().step()

    return Clipped(parameters, lr=0.1)


@pytest.mark.parametrize(
    ("application", "settings", "make_module", "optimizer", "expected"),
    [
        (PLUGIN, {}, large, torch.optim.Adam, "ps"),
        ({}, {}, large, torch.optim.Adam, "ring"),
        ({"spark.plugins": "org.example.Other"}, {}, large, torch.optim.Adam, "ring"),
        (PLUGIN, {}, lambda: nn.Linear(10, 10), torch.optim.Adam, "ring"),
        (PLUGIN, {"ps.batching": "whole"}, lambda: nn.Linear(10, 10), torch.optim.Adam, "ps"),
        (PLUGIN, {}, with_sparse_embedding, torch.optim.SparseAdam, "ring"),
        (PLUGIN, {}, large, clipped, "ring"),
        (PLUGIN, {"compression": "dgc:0.01"}, large, torch.optim.Adam, "ps"),
        (PLUGIN, {"compression": "dgc:0.01", "compression.values": "fp16"}, large, torch.optim.Adam, "ring"),
    ],
)
def test_a_fit_that_names_no_strategy(
    monkeypatch: pytest.MonkeyPatch,
    application: dict[str, str],
    settings: dict[str, str],
    make_module: Callable[[], nn.Module],
    optimizer: Any,
    expected: str,
) -> None:
    monkeypatch.setattr(session, "application_conf", lambda spark: application)
    settings = {f"spark.sparkdl.comm.{name}": value for name, value in settings.items()}
    conf = CommConf.from_mapping(settings)
    spark: Any = None
    assert usual_strategy(spark, settings, conf, make_module(), Optimization(optimizer)) == expected
