"""Strategy of a fit that names none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from pyspark.sql import SparkSession
from torch.nn.parameter import is_lazy

from sparkdl_comm import plugin
from sparkdl_comm.conf import PREFIX, CommConf
from sparkdl_comm.conf.strategy import RING, SERVER
from sparkdl_comm.errors import ConfError, ModelError
from sparkdl_comm.job import session
from sparkdl_comm.optim import elementwise
from sparkdl_comm.optim.optimizer import Optimization
from sparkdl_comm.space.flat import sparse_embeddings
from sparkdl_comm.strategies.registry import strategy_class

#: Fewer trained elements are a small model. An iteration of ring is shorter than one of ps, whose messages pass the JVM.
#: Milliseconds of ring, ps by one batch and ps by default, trials included, with two executors on one machine: 1.8, 7.0
#: and 7.4 with 20,290 elements; 8.9, 9.8 and 10.2 with 932,362; 20.3, 20.0 and 21.9 with 2,337,310; 55.0, 48.3 and 50.5
#: with 6,395,210. Between hosts the limit was not measured.
_SMALL = 2_000_000


def usual_strategy(
    spark: SparkSession,
    settings: Mapping[str, str],
    conf: CommConf,
    module: torch.nn.Module,
    optimization: Optimization,
) -> str:
    """Return the strategy of a fit that names none: ps if the plugin is loaded, the model is not small (unless a key of
    ps is set), and ps accepts the fit's compression, layers and optimizer. Else ring.
    """
    if not plugin.is_loaded(session.application_conf(spark)) or sparse_embeddings(module):
        return RING
    elements = sum(p.numel() for p in module.parameters() if p.requires_grad and not is_lazy(p))
    if elements < _SMALL and not any(key.startswith(f"{PREFIX}{SERVER}.") for key in settings):
        return RING
    try:
        strategy_class(replace(conf, strategy=SERVER)).check(conf, 1)
        elementwise.check_on_driver(module, optimization)
    except (ConfError, ModelError):
        return RING
    return SERVER
