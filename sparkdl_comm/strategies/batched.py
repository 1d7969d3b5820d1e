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
from sparkdl_comm.errors import ConfError, PluginError
from sparkdl_comm.strategies.candidates import Candidate
from sparkdl_comm.strategies.chosen import Chosen
from sparkdl_comm.strategies.registry import load_strategy
from sparkdl_comm.topology import Topology


class Batched(Chosen):
    """Strategy that chooses between fixed and planned buckets. The summary's ``auto`` lists predictions and choices."""

    compresses = False
    cuts_tensors = True

    @classmethod
    def full_name(cls, conf: CommConf) -> str:
        return loop_name(conf.strategy, conf.loop, conf.batching)

    @classmethod
    def check(cls, conf: CommConf, world: int) -> None:
        if conf.loop != "decoupled":
            raise ConfError(
                f"{PREFIX}collective.batching={conf.batching} is for collective.loop=decoupled, not {conf.loop}: set one of"
                " the two (strategy ps has ps.batching)"
            )
        conf = replace(conf, batching="fixed")
        load_strategy(conf).check(conf, world)

    def _able(self, topology: Topology, **why_not: str | None) -> tuple[list[Candidate], dict[str, str]]:
        if reason := why_not["planner"]:
            raise PluginError(f"{PREFIX}collective.batching={self.conf.batching}: {reason}")
        fixed, planned = (
            Candidate.decoupled(self.conf.strategy, self.conf, planned=planned) for planned in (False, True)
        )
        reason = "there is one rank" if topology.world == 1 else why_not["unstriped"]
        return ([fixed], {planned.name: reason}) if reason else ([fixed, planned], {})
