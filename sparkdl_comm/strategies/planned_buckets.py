"""Decoupled collectives with buckets cut by iBatch's planner (``collective.batching=ibatch``).

The planner needs each layer's compute time. A fit therefore begins with buckets cut by ``collective.bucket``. It then
chooses between these and the planned buckets in the way in which ``auto`` chooses between strategies: it predicts both, tries
the planned buckets if they should be faster, and keeps them if they are. It repeats this when step times drift. Planned
buckets are not cut again while they are in use.
"""

from __future__ import annotations

from dataclasses import replace

from sparkdl_comm.conf import PREFIX, CommConf
from sparkdl_comm.conf.strategy import loop_name
from sparkdl_comm.errors import ConfError
from sparkdl_comm.strategies.auto_strategy import AutoStrategy
from sparkdl_comm.strategies.registry import load_strategy


class PlannedBuckets(AutoStrategy):
    """Strategy that chooses between fixed and planned buckets. The summary's ``auto`` lists predictions and choices."""

    can_compress = False
    has_stripes = True

    @classmethod
    def full_name(cls, conf: CommConf) -> str:
        return loop_name(conf.strategy, conf.collective.loop, conf.collective.batching)

    @classmethod
    def check(cls, conf: CommConf, world: int) -> None:
        if conf.collective.loop != "decoupled":
            raise ConfError(
                f"{PREFIX}collective.batching={conf.collective.batching} is for collective.loop=decoupled, not"
                f" {conf.collective.loop}: set one of the two (strategy ps has ps.batching)"
            )
        conf = replace(conf, collective=replace(conf.collective, batching="fixed"))
        load_strategy(conf).check(conf, world)
