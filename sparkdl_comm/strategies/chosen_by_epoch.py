"""Strategy auto where the user allows asynchrony: the fabric is one of the candidates, for whole epochs.

Between two epochs nothing is under way, and all ranks have the same parameters. So that is where the fabric takes over from
another strategy, and where another takes over from it.
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

#: Ranks for which the fabric can be predicted in about a second, while all of them wait.
_MOST = 64


class ChosenByEpoch(Chosen, Asynchronous):
    """One rank's part. Beside the calls of :class:`Asynchronous`, ``begin_epoch`` comes before each epoch."""

    @classmethod
    def check(cls, conf: CommConf, world: int) -> None:
        super().check(conf, world)
        STRATEGIES[FABRIC](conf).check(conf, world)
        another = (
            f"{PREFIX}auto.candidates has {FABRIC}, whose training would be another one than that of the others with"
        )
        if world > _MOST:
            raise ConfError(
                f"{PREFIX}auto.candidates has {FABRIC}, which is predicted for {_MOST} ranks at most, not {world}: remove it"
            )
        if conf.compression is not None:
            raise ConfError(
                f"{another} {PREFIX}compression={conf.compression}: it sends whole updates; remove one of them"
            )
        for key, value in (("momentum", conf.fabric_momentum), ("stepScale", conf.fabric_step_scale)):
            if value:
                raise ConfError(
                    f"{another} {PREFIX}fabric.{key}={value:g}: set it to 0, and the optimizer as you want it"
                )

    @property
    def runs_apart(self) -> bool:
        """Whether the ranks have no steps in common in this epoch."""
        return isinstance(self._all.current, Asynchronous)

    def begin_epoch(self, step: int, seconds: float | None) -> None:
        """All ranks call it before each epoch, whose first step is number ``step``. ``seconds``: that rank 0's last epoch took
        for as many rows as a step has; None: there was none."""

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
            self.before_forward()  # the processes that this starts are no part of the epoch

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
