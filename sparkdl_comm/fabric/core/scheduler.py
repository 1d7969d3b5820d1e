"""Entry point: :class:`Scheduler` collects events and, when asked, decides on everything waiting as one batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count

from sparkdl_comm.errors import InputError
from sparkdl_comm.fabric.core.batch import BatchPlan, BatchState, plan_batch
from sparkdl_comm.fabric.core.catch_up import catch_up, record_catch_up
from sparkdl_comm.fabric.core.decisions import Decision, Push, StateCopy
from sparkdl_comm.fabric.core.events import (
    BandwidthReported,
    Event,
    ModelRequested,
    NodeLost,
    TransferEnded,
    TransferProgressed,
    UpdateReady,
)
from sparkdl_comm.fabric.core.ledger import Ledger
from sparkdl_comm.fabric.core.losses import plan_copies, record_copy, remove_node
from sparkdl_comm.fabric.core.nodes import Node, Roles
from sparkdl_comm.fabric.core.overtake import (
    find_blocking_turns,
    list_pending_turns,
    move_to_last_turn,
    overtake,
    skip_old_turns,
)
from sparkdl_comm.fabric.core.residual_network import ResidualNetwork, get_reserved_until
from sparkdl_comm.fabric.core.rules import Rules
from sparkdl_comm.fabric.core.transfers import make_models, make_pushes


class Scheduler:
    """Scheduler of one job: events in, decisions out::

        scheduler = Scheduler(roles, rules)
        scheduler.observe(BandwidthReported(...), now)    # of every host, before the first decide
        scheduler.observe(UpdateReady(...), now)          # at any time; carry out the returned decisions at once
        decisions = scheduler.decide(now)                 # every batch interval, 100 ms in the paper, and if is_due

    Times are seconds and never go back. It is not thread-safe.
    """

    def __init__(self, roles: Roles, rules: Rules) -> None:
        self._ledger = Ledger(roles, rules)
        self._batches = count()
        self._now = -math.inf

    @property
    def version(self) -> int:
        """The servers' version, in updates, once all decisions are applied."""
        return self._ledger.version

    def observe(self, event: Event, now: float) -> list[Decision]:
        """Take an event that happened at ``now``.

        Return the decisions that cannot wait for the next batch: consequences of a lost node, a refused update, or an
        update that has reached every node that needs it.

        :raises InputError: an unknown worker or host, a known update id, wrong sizes, or a clock that goes back.
        :raises RankLostError: a server without replica is lost.
        """
        self._advance(now)
        ledger = self._ledger
        match event:
            case UpdateReady(update):
                self._check_request(update.worker, update.sizes)
                ledger.sizes = update.sizes
                if update.id in ledger.update_ledger.by_id:
                    raise InputError(f"update {update.id} of worker {update.worker} was already announced")
                ledger.update_ledger.add(update)
                if not 0 <= update.norm < math.inf:
                    return [ledger.update_ledger.drop(update.id, "norm")]
            case ModelRequested(worker, sizes):
                self._check_request(worker, sizes)
                ledger.add_request(event)
            case BandwidthReported(host, up, down):
                ledger.record_bandwidth(host, up, down)
            case TransferProgressed(transfer, sent):
                if transfer in ledger.pending_transfers:
                    ledger.pending_transfers.record_progress(transfer, sent, now)
            case TransferEnded(transfer):
                if transfer in ledger.pending_transfers:
                    ended = ledger.pending_transfers.remove(transfer)
                    if isinstance(ended, Push) and ended.turn is not None:
                        record_catch_up(ledger, ended)
                        return list(ledger.update_ledger.record_arrival(transfer, ended.updates))
                    if isinstance(ended, StateCopy):
                        return record_copy(ledger, ended)
            case NodeLost(node, versions):
                return remove_node(ledger, node, versions)
        return []

    def decide(self, now: float) -> list[Decision]:
        """Decide on everything that is waiting, as one batch.

        :raises InputError: the bandwidth of a host was never reported, or the clock goes back.
        """
        self._advance(now)
        ledger = self._ledger
        rates = ledger.rates()
        decisions: list[Decision] = list(ledger.pending_transfers.repace(rates, now))
        network = ledger.pending_transfers.compute_residual(rates, now)
        if ledger.has_diverged and ledger.replicas:
            decisions += plan_copies(ledger, network, now)
        lead_seconds = ledger.rules.lead_seconds
        if self._can_serve(network, now, lead_seconds):
            sides = ledger.list_hosts()

            def make_plan(state: BatchState) -> BatchPlan:
                return plan_batch(ledger.update_ledger, ledger.roles.workers, network, sides, ledger.rules, state, now)

            batch, moved = overtake(ledger, make_plan, now)
            decisions += make_pushes(ledger, batch, moved)
            decisions += skip_old_turns(moved)
            network = batch.replication.residual
        elif not ledger.replicas:
            moved = find_blocking_turns(ledger, list_pending_turns(ledger), [])
            for group in moved:
                decisions += move_to_last_turn(ledger, group)
            decisions += skip_old_turns(moved)
        if ledger.replicas:
            decisions += catch_up(ledger, network, now)
        if self._can_answer(network, now + lead_seconds):
            decisions += make_models(ledger, network, self._next_batch_number(), now)
        return decisions

    def is_due(self, now: float) -> bool:
        """Return whether waiting for the next batch gains nothing.

        That is so if something waiting could start on an idle link of the servers now. It is also so if the link gets
        idle by the time the pending updates could be summed.

        :raises InputError: the bandwidth of a host was never reported.
        """
        ledger = self._ledger
        if not ledger.update_ledger.pending and not ledger.answerable_workers:
            return False
        network = ledger.pending_transfers.compute_residual(ledger.rates(), now)
        return self._can_serve(network, now, 0.0) or self._can_answer(network, now)

    def _can_serve(self, network: ResidualNetwork, now: float, lead_seconds: float) -> bool:
        """Return whether updates are pending, and the downlinks of all servers are free soon enough to schedule them.

        That is within ``lead_seconds`` seconds, or in half of the time in which an aggregator can receive the updates.
        """
        ledger = self._ledger
        if not ledger.update_ledger.pending or not ledger.can_serve:
            return False
        latest = now + max(lead_seconds, ledger.gathering_seconds / 2)
        return all(get_reserved_until(network.links[2 * server + 1]) <= latest for server in ledger.servers)

    def _can_answer(self, network: ResidualNetwork, soon: float) -> bool:
        """Return whether workers wait for the model, and the uplinks of all servers are free at the time ``soon``."""
        ledger = self._ledger
        return bool(ledger.answerable_workers) and all(
            get_reserved_until(network.links[2 * server]) <= soon for server in ledger.servers
        )

    def _next_batch_number(self) -> int:
        """Return the batch number of the models sent now.

        With ``bsp`` it is the iteration's number. A worker that asks late then gets the same version as the others,
        which may have gone on.
        """
        return (
            self._ledger.update_ledger.count_slowest()
            if self._ledger.rules.synchrony.kind == "bsp"
            else next(self._batches)
        )

    def _advance(self, now: float) -> None:
        if now < self._now:
            raise InputError(f"the scheduler's clock went back from {self._now} to {now} seconds")
        self._now = now

    def _check_request(self, worker: int, sizes: Sequence[int]) -> None:
        roles = self._ledger.roles
        if not 0 <= worker < len(roles.workers) or Node("worker", worker) in self._ledger.lost_nodes:
            raise InputError(f"worker {worker} is unknown or lost. The job began with {len(roles.workers)} workers.")
        if len(sizes) != len(roles.servers) or min(sizes) < 0:
            raise InputError(
                f"worker {worker}: sizes {tuple(sizes)} must be {len(roles.servers)}, one per server, each at least 0"
            )
