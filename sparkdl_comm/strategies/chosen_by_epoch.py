"""Strategy auto with the fabric among its candidates, if the user allows asynchronous training.

The fabric runs for whole epochs. Between two epochs nothing is in flight and all ranks have the same parameters, so switches
to and from the fabric happen there.
"""

from __future__ import annotations

from sparkdl_comm.conf import PREFIX, CommConf
from sparkdl_comm.errors import ConfError
from sparkdl_comm.gang.exchange import decide_json
from sparkdl_comm.strategies.asynchronous import Asynchronous
from sparkdl_comm.strategies.base import STRATEGIES
from sparkdl_comm.strategies.candidates import FABRIC
from sparkdl_comm.strategies.choice import Turn
from sparkdl_comm.strategies.chosen import Chosen

#: Largest number of ranks. All ranks wait while the fabric is predicted, which takes about a second for this many.
_MOST = 64


class ChosenByEpoch(Chosen, Asynchronous):
    """Strategy auto that may run the fabric. The loop also calls ``begin_epoch`` before each epoch."""

    @classmethod
    def check(cls, conf: CommConf, world: int) -> None:
        super().check(conf, world)
        STRATEGIES[FABRIC](conf).check(conf, world)
        another = f"{PREFIX}auto.candidates has {FABRIC}, which would not train like the other candidates with"
        if world > _MOST:
            raise ConfError(
                f"{PREFIX}auto.candidates has {FABRIC}, which is predicted for at most {_MOST} ranks, not {world}. Remove it."
            )
        if conf.compression is not None:
            raise ConfError(
                f"{another} {PREFIX}compression={conf.compression}: it sends whole updates. Remove one of them."
            )
        for key, value in (("momentum", conf.fabric_momentum), ("stepScale", conf.fabric_step_scale)):
            if value:
                raise ConfError(
                    f"{another} {PREFIX}fabric.{key}={value:g}. Set it to 0, and set momentum or step size in the optimizer."
                )

    @property
    def runs_apart(self) -> bool:
        """True if the ranks do not share their steps in this epoch."""
        return isinstance(self._all.current, Asynchronous)

    def begin_epoch(self, step: int, seconds: float | None) -> None:
        """Switch to or from the fabric if rank 0 decides so. All ranks call it before each epoch.

        :param step: number of the epoch's first step.
        :param seconds: seconds of rank 0's last epoch per step's worth of rows; None if there was none.
        """

        def decided(_: list[None]) -> Turn:
            if seconds is None:
                return self._turn
            before = self._choice.turn.candidate
            self._choice.epoch(seconds, step)
            self._tell()
            return self._turn if self._choice.turn.candidate == before else self._choice.turn

        turn = Turn(*decide_json(self._gang, None, decided, self.conf.timeout))
        if turn.candidate != self._turn.candidate:
            self._take(turn)
        if self.runs_apart:
            self.before_forward()  # start the fabric's processes before the epoch is timed

    def before_forward(self) -> None:
        super().before_forward()
        current = self._all.current
        if isinstance(current, Asynchronous):
            self.version = current.version

    def settle(self) -> None:
        current = self._all.current
        if isinstance(current, Asynchronous):
            current.settle()

    def _take(self, turn: Turn) -> None:
        super()._take(turn)
        current = self._all.current
        if isinstance(current, Asynchronous):
            self.free_running = current.free_running
