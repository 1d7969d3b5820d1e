"""Simulated collective: runs a plan over a network.

A step begins when all steps that it waits for are complete. A sender does not check whether the receiver is ready: the
receiver holds an early message until its step begins. Combining takes the receiver the cost's gamma per byte.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from sparkdl_comm.collectives.plan import Step, StepKind
from sparkdl_comm.sim.network import Network, Path
from sparkdl_comm.sim.script import RankProgram, Script


class PlanRun:
    """Run of a script.

    :param ranks: ``ranks[rank]`` is the network rank of the plan's ``rank``.
    :param itemsize: bytes per element.
    :param number: number of the collective. Messages of lower numbers are sent first.
    :param on_done: called with the number of a part when all of its steps are complete.
    :param lane: lane of its messages; see :meth:`Network.send`.
    """

    def __init__(
        self,
        network: Network,
        script: Script,
        ranks: Sequence[int],
        itemsize: int,
        number: int,
        on_done: Callable[[int], None],
        lane: int = 0,
    ) -> None:
        self._network, self._number, self._itemsize, self._lane = network, number, itemsize, lane
        self._parts = [_ProgramState(part, ranks[part.rank]) for part in script.parts]
        self._ranks, self._part_of = ranks, script.part_of
        self._paths: dict[tuple[int, int, int], Path] = {}
        self._on_done = on_done

    def begin(self, part: int) -> None:
        """Start the steps of script part ``part`` that wait for no other step."""
        progress = self._parts[part]
        for index, waits in enumerate(progress.part.waits):
            if not waits:
                self._start_step(part, index)
        if not progress.part.steps:
            self._network.engine.after(0.0, partial(self._on_done, part))

    def _start_step(self, number: int, index: int) -> None:
        """Start step ``index`` of part ``number``. All steps that it waits for must be complete."""
        progress = self._parts[number]
        step = progress.part.steps[index]
        if step.kind is not StepKind.SEND:
            progress.startable.add(index)
            if index in progress.arrived:
                self._receive(number, index)
            return
        to, peer_step = progress.part.mates[index]
        nbytes = (step.stop - step.start) * self._itemsize
        sent, arrived = partial(self._complete, number, index), partial(self._on_arrival, to, peer_step)
        path = self._path(number, step)
        self._network.send(progress.rank, step.rail, path, nbytes, (self._number, index), sent, arrived, self._lane)

    def _path(self, number: int, step: Step) -> Path:
        """Return the path of a step's messages, into the NIC of the rank that is run in place of the peer."""
        key = number, step.peer, step.rail
        if key not in self._paths:
            path = self._network.path(self._parts[number].rank, self._ranks[step.peer], step.rail)
            other = self._parts[self._part_of[step.peer]].rank
            if other != self._ranks[step.peer]:
                path = (*path[:-1], self._network.nic(self._network.topology.host_of(other).index, step.rail) + 1)
            self._paths[key] = path
        return self._paths[key]

    def _on_arrival(self, number: int, index: int) -> None:
        progress = self._parts[number]
        progress.arrived.add(index)
        if index in progress.startable:
            self._receive(number, index)

    def _receive(self, number: int, index: int) -> None:
        step = self._parts[number].part.steps[index]
        if step.kind is StepKind.COMBINE:
            seconds = self._network.cost.gamma * (step.stop - step.start) * self._itemsize
            self._network.engine.after(seconds, partial(self._complete, number, index))
        else:
            self._complete(number, index)

    def _complete(self, number: int, index: int) -> None:
        progress = self._parts[number]
        progress.left -= 1
        for follower in progress.part.followers[index]:
            progress.waits[follower] -= 1
            if not progress.waits[follower]:
                self._start_step(number, follower)
        if not progress.left:
            self._on_done(number)


class _ProgramState:
    """Progress of a part.

    ``startable``: receive steps that may begin. ``arrived``: receive steps whose messages have arrived.
    """

    def __init__(self, part: RankProgram, rank: int) -> None:
        self.part, self.rank = part, rank
        self.waits = list(part.waits)
        self.left = len(part.steps)
        self.startable: set[int] = set()
        self.arrived: set[int] = set()
