"""Entry point: :class:`Scheduler` collects events and, when asked, decides on everything waiting as one batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count

from sparkdl_comm.errors import InputError
from sparkdl_comm.fabric.core.batch import overtake, send_models, send_updates
from sparkdl_comm.fabric.core.losses import plan_copies, record_copy, remove_node
from sparkdl_comm.fabric.core.messages import (
    BandwidthReported,
    Decision,
    Event,
    ModelRequested,
    Node,
    NodeLost,
    Push,
    Roles,
    StateCopy,
    TransferEnded,
    TransferProgressed,
    Update,
)
from sparkdl_comm.fabric.core.network import ResidualNetwork, get_reserved_until
from sparkdl_comm.fabric.core.replication import catch_up, record_catch_up
from sparkdl_comm.fabric.core.state import SchedulerState
from sparkdl_comm.fabric.params import FabricParams

#: Seconds for which more than half of a server's link may be taken before updates and requests wait. Waiting lets later
#: ones join their groups, and avoids decisions long before a transfer can begin.
_LEAD_SECONDS = 0.1


class Scheduler:
    """Scheduler of one job: events in, decisions out::

        scheduler = Scheduler(roles, params)
        scheduler.observe(BandwidthReported(...), now)    # of every host, before the first decide
        scheduler.observe(Update(...), now)               # at any time; carry out the returned decisions at once
        decisions = scheduler.decide(now)                 # every batch interval, 100 ms in the paper, and if is_due

    Times are seconds and never go back. It is not thread-safe.

    :raises InputError: ``lead_seconds`` is negative.
    """

    def __init__(self, roles: Roles, params: FabricParams, lead_seconds: float = _LEAD_SECONDS) -> None:
        if not lead_seconds >= 0:
            raise InputError(f"lead_seconds={lead_seconds}: must be at least 0")
        self._state, self._lead_seconds = SchedulerState(roles, params), lead_seconds
        self._batches = count()
        self._now = -math.inf

    @property
    def version(self) -> int:
        """The servers' version, in updates, once all decisions are applied."""
        return self._state.version

    def observe(self, event: Event, now: float) -> list[Decision]:
        """Take an event that happened at ``now``.

        Return the decisions that cannot wait for the next batch: consequences of a lost node, a refused update, or an
        update that has reached every node that needs it.

        :raises InputError: an unknown worker or host, a known update id, wrong sizes, or a clock that goes back.
        :raises RankLostError: a server without replica is lost.
        """
        self._advance(now)
        state = self._state
        match event:
            case Update(number, worker, sizes, _, norm):
                self._check_request(worker, sizes)
                state.sizes = sizes
                if number in state.updates.by_id:
                    raise InputError(f"update {number} of worker {worker} was already announced")
                state.updates.add(event)
                if not 0 <= norm < math.inf:
                    return [state.updates.drop(number, "norm")]
            case ModelRequested(worker, sizes):
                self._check_request(worker, sizes)
                state.add_request(event)
            case BandwidthReported(host, up, down):
                state.record_bandwidth(host, up, down)
            case TransferProgressed(transfer, sent):
                if transfer in state.transfers:
                    state.transfers.record_progress(transfer, sent, now)
            case TransferEnded(transfer):
                if transfer in state.transfers:
                    ended = state.transfers.remove(transfer)
                    if isinstance(ended, Push) and ended.turn is not None:
                        record_catch_up(state, ended)
                        return list(state.updates.record_arrival(transfer, ended.updates))
                    if isinstance(ended, StateCopy):
                        return record_copy(state, ended)
            case NodeLost(node, versions):
                return remove_node(state, node, versions)
        return []

    def decide(self, now: float) -> list[Decision]:
        """Decide on everything that is waiting, as one batch.

        :raises InputError: the bandwidth of a host was never reported, or the clock goes back.
        """
        self._advance(now)
        state = self._state
        rates = state.rates()
        decisions: list[Decision] = list(state.transfers.repace(rates, now))
        network = state.transfers.compute_residual(rates, now)
        if state.has_diverged and state.replicas:
            decisions += plan_copies(state, network, now)
        if self._can_serve(network, now, self._lead_seconds):
            made, network = send_updates(state, network, now)
            decisions += made
        elif not state.replicas:
            decisions += overtake(state)
        if state.replicas:
            decisions += catch_up(state, network, now)
        if self._can_answer(network, now + self._lead_seconds):
            decisions += send_models(state, network, self._next_batch_number(), now)
        return decisions

    def is_due(self, now: float) -> bool:
        """Return whether waiting for the next batch gains nothing.

        That is so if something waiting could start on an idle link of the servers now. It is also so if the link gets
        idle by the time the pending updates could be summed.

        :raises InputError: the bandwidth of a host was never reported.
        """
        state = self._state
        if not state.updates.pending and not state.answerable_workers:
            return False
        network = state.transfers.compute_residual(state.rates(), now)
        return self._can_serve(network, now, 0.0) or self._can_answer(network, now)

    def _can_serve(self, network: ResidualNetwork, now: float, lead_seconds: float) -> bool:
        """Return whether updates are pending, and the downlinks of all servers are free soon enough to schedule them.

        That is within ``lead_seconds`` seconds, or in half of the time in which an aggregator can receive the updates.
        """
        state = self._state
        if not state.updates.pending or not state.can_serve:
            return False
        latest = now + max(lead_seconds, state.gathering_seconds / 2)
        return all(get_reserved_until(network.links[2 * server + 1]) <= latest for server in state.servers)

    def _can_answer(self, network: ResidualNetwork, soon: float) -> bool:
        """Return whether workers wait for the model, and the uplinks of all servers are free at the time ``soon``."""
        state = self._state
        return bool(state.answerable_workers) and all(
            get_reserved_until(network.links[2 * server]) <= soon for server in state.servers
        )

    def _next_batch_number(self) -> int:
        """Return the batch number of the models sent now.

        With ``bsp`` it is the iteration's number. A worker that asks late then gets the same version as the others,
        which may have gone on.
        """
        return self._state.updates.count_slowest() if self._state.params.sync == "bsp" else next(self._batches)

    def _advance(self, now: float) -> None:
        if now < self._now:
            raise InputError(f"the scheduler's clock went back from {self._now} to {now} seconds")
        self._now = now

    def _check_request(self, worker: int, sizes: Sequence[int]) -> None:
        roles = self._state.roles
        if not 0 <= worker < len(roles.workers) or Node("worker", worker) in self._state.lost_nodes:
            raise InputError(f"worker {worker} is unknown or lost. The job began with {len(roles.workers)} workers.")
        if len(sizes) != len(roles.servers) or min(sizes) < 0:
            raise InputError(
                f"worker {worker}: sizes {tuple(sizes)} must be {len(roles.servers)}, one per server, each at least 0"
            )
