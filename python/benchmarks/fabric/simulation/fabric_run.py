"""Simulated training whose transfers are decided by the fabric's scheduler, with its actual core.

Control messages take no time. Transfers follow the decided schedules. They take longer if a link is slower than the
monitor has reported.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from benchmarks.fabric.simulation.run import Floats, Job, Run, path

from sparkdl_comm.fabric.core.messages import (
    BandwidthReported,
    Decision,
    DroppedUpdate,
    Event,
    ModelRequested,
    ModelTransfer,
    NewSchedule,
    NewTurn,
    Piece,
    Push,
    Role,
    Roles,
    SkippedTurn,
    Transfer,
    TransferEnded,
    TransferProgressed,
    Update,
)
from sparkdl_comm.fabric.core.scheduler import Scheduler
from sparkdl_comm.fabric.params import FabricParams
from sparkdl_comm.sim.engine import ROUNDING, Action, Engine, Flow, Links


class Paced:
    """Paced transfer of ``size`` bytes over the links of ``path``. It calls ``done`` when all bytes have arrived.

    Its pieces are sent in order, none before its start time, none above its rate.
    """

    def __init__(
        self,
        engine: Engine,
        links: Links,
        path: tuple[int, ...],
        size: int,
        schedule: Sequence[Piece],
        done: Action,
    ) -> None:
        self._engine, self._links, self._path, self._size, self._done = engine, links, path, size, done
        #: Bytes not yet given to a flow.
        self._rest = float(size)
        self._flow: Flow | None = None
        self._generation = 0
        self.repace(schedule)

    @property
    def sent(self) -> int:
        """Bytes sent so far."""
        under_way = 0.0 if self._flow is None else self._links.left(self._flow)
        return round(self._size - self._rest - under_way)

    def repace(self, schedule: Sequence[Piece]) -> None:
        """Set another schedule for the rest. If the schedule is too short, its last rate is kept until the end."""
        if self._flow is not None:
            self._rest += self._links.stop(self._flow)
            self._flow = None
        self._generation += 1
        self._await(list(schedule), self._generation)

    def _await(self, pieces: list[Piece], generation: int) -> None:
        if pieces and pieces[0].start > self._engine.now:
            self._engine.at(pieces[0].start, lambda: self._send(pieces, generation))
        else:
            self._send(pieces, generation)

    def _send(self, pieces: list[Piece], generation: int) -> None:
        if generation != self._generation:
            return
        size, limit = self._rest, math.inf
        if pieces:
            start, end, limit = pieces.pop(0)
            size = min(size, limit * (end - start)) if pieces else size
        self._rest -= size
        self._flow = self._links.start(self._path, size, lambda: self._sent(pieces, generation), limit)

    def _sent(self, pieces: list[Piece], generation: int) -> None:
        if generation != self._generation:
            return
        self._flow = None
        if self._rest > ROUNDING:
            self._await(pieces, generation)
        else:
            self._done()


#: Seconds between batches of decisions.
INTERVAL_SECONDS = 0.1


@dataclass(frozen=True)
class Control:
    """Settings of the scheduler.

    :param lag: seconds until the monitor reports a changed rate.
    :param divergence: divergence bound that the server's replica keeps. None: there is no replica.
    """

    lag: float = 0.2
    divergence: float | None = None


@dataclass
class _Turns:
    """Pushes that have arrived at a server or its replica, by turn, and the next turn to apply."""

    next: int = 0
    arrived: dict[int, Push] = field(default_factory=dict)
    skipped: set[int] = field(default_factory=set)


class FabricRun(Run):
    """Run with the fabric's scheduler.

    The server is on the first host after those of the workers, its replica on the next one. Each worker's host has an
    aggregator. If there is a replica, a third of the aggregators work for it.
    """

    def __init__(self, job: Job, seed: int, sync: str, control: Control = Control()) -> None:
        super().__init__(job, seed)
        hosts, bound = job.workers, control.divergence
        spared = 0 if bound is None else hosts // 3
        self._control = control
        self._roles = Roles(
            workers=tuple(range(hosts)),
            servers=(hosts,),
            aggregators=tuple(range(hosts - spared)),
            replicas=() if bound is None else (hosts + 1,),
            replica_aggregators=tuple(range(hosts - spared, hosts)),
        )
        params = FabricParams(sync, math.inf if bound is None else bound, step_scale=job.scale)
        self._scheduler = Scheduler(self._roles, params)
        self._updates: list[tuple[int, Floats, int]] = []
        self._transfers: dict[int, Transfer] = {}
        self._waits: dict[int, set[int]] = {}
        self._paced: dict[int, Paced] = {}
        self._turns: dict[Role, _Turns] = {"server": _Turns(), "replica": _Turns()}
        self._models: dict[int, tuple[Floats, int]] = {}
        self._looking = False

    def _begin(self) -> None:
        self._report(self.job.conditions.rates(0))
        for worker in range(self.job.workers):
            self._compute(worker, self.parameters, 0)
        self._decide()

    def _compute(self, worker: int, parameters: Floats, base: int) -> None:
        def ready() -> None:
            update = self.computed(worker, parameters)
            number, norm = len(self._updates), float(np.linalg.norm(update))
            self._updates.append((worker, update, base))
            self._observe(Update(number, worker, (self.job.bytes,), base, norm))

        self.engine.after(self.computing_seconds(worker), ready)

    def _decide(self) -> None:
        self._carry_out(self._scheduler.decide(self.engine.now))
        self.engine.after(INTERVAL_SECONDS, self._decide)

    def _observe(self, event: Event) -> None:
        self._carry_out(self._scheduler.observe(event, self.engine.now))
        if not self._looking:
            self._looking = True
            self.engine.after(0.0, self._decide_if_due)

    def _decide_if_due(self) -> None:
        self._looking = False
        if self._scheduler.is_due(self.engine.now):
            self._carry_out(self._scheduler.decide(self.engine.now))

    def _carry_out(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            match decision:
                case Transfer(id=number, after=after):
                    self._transfers[number] = decision
                    self._waits[number] = {other for other in after if other in self._transfers}
                    if not self._waits[number]:
                        self._start(number)
                case NewSchedule(transfer, schedule):
                    if transfer in self._paced:
                        self._paced[transfer].repace(schedule)
                    elif transfer in self._waits:
                        self._transfers[transfer] = replace(self._transfers[transfer], schedule=schedule)
                case NewTurn(transfer, turn):
                    self._reorder(transfer, turn)
                case SkippedTurn(target, turn):
                    self._turns[target.role].skipped.add(turn)
                    self._apply_due(target.role)
                case DroppedUpdate(worker=worker):
                    self.outcome.dropped += 1
                    self._request_model(worker)

    def _start(self, number: int) -> None:
        transfer = self._transfers[number]
        del self._waits[number]
        if isinstance(transfer, ModelTransfer) and transfer.batch not in self._models:
            self._models[transfer.batch] = self.parameters, self.version
        links = path(self._roles.host(transfer.source), self._roles.host(transfer.target))
        done = partial(self._ended, number)
        self._paced[number] = Paced(self.engine, self.links, links, transfer.bytes, transfer.schedule, done)

    def _ended(self, number: int) -> None:
        transfer = self._transfers[number]
        del self._paced[number]
        if isinstance(transfer, Push) and transfer.turn is not None:
            role = transfer.target.role
            self._turns[role].arrived[transfer.turn] = transfer
            self._apply_due(role)
            return
        self._finish(number)
        if isinstance(transfer, ModelTransfer) and transfer.target.role == "worker":
            self._compute(transfer.target.index, *self._models[transfer.batch])

    def _apply_due(self, role: Role) -> None:
        """Apply all pushes whose turn has come. Applying one may start others."""
        turns = self._turns[role]
        while turns.next in turns.arrived or turns.next in turns.skipped:
            turns.next += 1
            if push := turns.arrived.pop(turns.next - 1, None):
                self._apply(push)

    def _reorder(self, number: int, turn: int) -> None:
        push = self._transfers.get(number)
        if not isinstance(push, Push) or push.turn is None:
            self._turns["server"].skipped.add(turn)  # it is applied already; only pushes to the server are reordered
            return
        moved = replace(push, turn=turn)
        self._transfers[number] = moved
        arrived = self._turns[push.target.role].arrived
        if arrived.pop(push.turn, None):
            arrived[turn] = moved

    def _apply(self, push: Push) -> None:
        if push.target.role == "replica":
            self.outcome.replicated += push.bytes
            self._finish(push.id)
            return
        parts = []
        for number, scale in zip(push.updates, push.scales, strict=True):
            _, update, base = self._updates[number]
            parts.append((update, scale, base))
        self.apply(parts)
        self._finish(push.id)
        for number in push.updates:
            self._request_model(self._updates[number][0])

    def _finish(self, number: int) -> None:
        """Report the end of the transfer to the scheduler, and start the transfers that waited for it."""
        del self._transfers[number]
        self._observe(TransferEnded(number))
        for other, waits in list(self._waits.items()):
            waits.discard(number)
            if not waits:
                self._start(other)

    def _request_model(self, worker: int) -> None:
        """Request the model for a worker whose update was applied or dropped."""
        self._observe(ModelRequested(worker, (self.job.bytes,)))

    def _rates_changed(self, rates: Sequence[tuple[float, float]]) -> None:
        self.engine.after(self._control.lag, partial(self._report, rates))

    def _report(self, rates: Sequence[tuple[float, float]]) -> None:
        for host, (up, down) in enumerate(rates):
            self._observe(BandwidthReported(host, up, down))
        for number, paced in self._paced.items():
            self._observe(TransferProgressed(number, paced.sent))
