"""The fabric's scheduler over many batches: delays, order, links and divergence, whatever is ready when."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparkdl_comm.fabric.core.messages import (
    BandwidthReported,
    Cancellation,
    Decision,
    DroppedUpdate,
    ModelRequested,
    ModelTransfer,
    Node,
    NodeLost,
    Push,
    ReleasedUpdate,
    Role,
    Roles,
    Transfer,
    TransferEnded,
    Update,
)
from sparkdl_comm.fabric.core.network import ResidualNetwork
from sparkdl_comm.fabric.core.scheduler import Scheduler
from sparkdl_comm.fabric.core.updates import Divergence
from sparkdl_comm.fabric.params import FabricParams
from tests.draws import examples

from .fabric_checks import RATES, check_flows
from .fabric_cluster import SERVER, Cluster

WORKERS, HOSTS = 5, 8
PLAIN = Roles(workers=tuple(range(WORKERS)), servers=(5, 6), aggregators=(0, 2, 4))
REPLICATED = Roles(
    workers=tuple(range(WORKERS)), servers=(5,), aggregators=(0, 1), replicas=(6,), replica_aggregators=(3, 7)
)
SHARDED = Roles(
    workers=tuple(range(WORKERS)), servers=(5, 4), aggregators=(0, 1), replicas=(6, 7), replica_aggregators=(3, 7)
)


@st.composite
def rates(draw: st.DrawFn) -> list[tuple[float, float]]:
    return [(draw(RATES), draw(RATES)) for _ in range(HOSTS)]


def pushes(decisions: list, role: str) -> list[Push]:
    return [d for d in decisions if isinstance(d, Push) and d.target.role == role]


@examples(40)
@given(st.data(), st.integers(1, 12))
def test_no_update_is_older_than_the_bound(data: st.DataObject, bound: int) -> None:
    prompt = data.draw(st.booleans())
    cluster = Cluster(
        PLAIN,
        FabricParams(f"async:{bound}"),
        lead_seconds=data.draw(st.sampled_from([0.1, 1e9])),
        rates=data.draw(rates()),
        too_late=lambda: not prompt and data.draw(st.booleans()),
    )
    bases: dict[int, int] = {}
    for _ in range(data.draw(st.integers(1, 6))):
        for worker in data.draw(st.lists(st.integers(0, WORKERS - 1), max_size=6)):
            number, version = len(bases), cluster.version()
            bases[number] = data.draw(st.integers(max(0, version - bound - 2), version))
            cluster.ready(Update(number, worker, (data.draw(st.integers(1, 30)), 10), bases[number], 1.0))
        if data.draw(st.booleans()):
            cluster.observe(BandwidthReported(data.draw(st.integers(0, 6)), data.draw(RATES), data.draw(RATES)))
        cluster.decide()
        cluster.advance(cluster.now + data.draw(st.floats(0.1, 20)))
    while set(bases) - set(cluster.order(Node("server", 0))) - {d.update for d in cluster.made(DroppedUpdate)}:
        cluster.advance()
        cluster.decide()
    cluster.advance()
    first, second = cluster.order(Node("server", 0)), cluster.order(Node("server", 1))
    assert sorted(first) == sorted(second), "both shards have had the same updates"
    assert first == second or not prompt, "and in the same order"
    assert len(set(first)) == len(first)
    for order in (first, second):
        assert all(position - bases[number] <= bound for position, number in enumerate(order, 1))
    dropped = [decision.update for decision in cluster.made(DroppedUpdate)]
    assert sorted(first + dropped) == list(bases)
    assert sorted(decision.update for decision in cluster.made(ReleasedUpdate)) == sorted(first)


@examples(20)
@given(st.data())
def test_no_link_carries_more_than_it_can(data: st.DataObject) -> None:
    """Check all batches together, also while earlier transfers are under way."""
    roles = data.draw(st.sampled_from([PLAIN, REPLICATED]))
    cluster = Cluster(roles, FabricParams("async:50", 50.0), data.draw(rates()), lead_seconds=1e9)
    sizes = (20,) * len(roles.servers)
    for batch in range(data.draw(st.integers(1, 4))):
        for worker in data.draw(st.lists(st.integers(0, WORKERS - 1), unique=True)):
            cluster.ready(Update(batch * WORKERS + worker, worker, sizes, cluster.version(), 1.0))
            cluster.observe(ModelRequested(worker, sizes))
        cluster.decide()
        cluster.advance(cluster.now + data.draw(st.floats(0.1, 20)))
    transfers = cluster.made(Transfer)
    by_id = {transfer.id: transfer for transfer in transfers}
    flows = []
    for transfer in transfers:
        ready = max([0.0, *(by_id[other].end for other in transfer.after)])
        ends = roles.host(transfer.source), roles.host(transfer.target)
        flows.append((*ends, transfer.bytes, ready, tuple(map(tuple, transfer.schedule))))
    check_flows(ResidualNetwork.from_rates(cluster.rates), flows)


@examples(15, 400)
@given(st.data(), st.sampled_from([0.0, 0.5, 0.9]), st.floats(1.0, 20.0))
def test_server_and_replica_never_differ_by_more_than_they_may(
    data: st.DataObject, momentum: float, limit: float
) -> None:
    """With real vectors, the norm of their difference <= the bound of norms <= the limit after every step of either."""
    params = FabricParams("async:100", limit, momentum, step_scale=2.0)
    cluster = Cluster(REPLICATED, params, data.draw(rates()))
    draw = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    vectors: list[np.ndarray] = []
    for _ in range(data.draw(st.integers(1, 6))):
        for worker in data.draw(st.lists(st.integers(0, WORKERS - 1), max_size=5)):
            # Some point the same way, for which the bound is exact.
            vectors.append(draw.normal(size=3) + data.draw(st.sampled_from([0.0, 3.0])))
            norm = float(np.linalg.norm(vectors[-1]))
            cluster.ready(Update(len(vectors) - 1, worker, (data.draw(st.integers(5, 30)),), cluster.version(), norm))
        cluster.decide()
        cluster.advance(cluster.now + data.draw(st.floats(0.1, 30)))
    cluster.advance()
    server, replica = Node("server", 0), Node("replica", 0)
    assert cluster.order(replica) == cluster.order(server)[: len(cluster.order(replica))]
    steps = _steps(cluster, server, replica)
    models = {node: (np.zeros(3), np.zeros(3)) for node in (server, replica)}
    bound = Divergence(momentum)
    for node, push in steps:
        scaled = [scale * vectors[number] for number, scale in zip(push.updates, push.scales, strict=True)]
        parameters, step = models[node]
        step = momentum * step + sum(scaled)
        models[node] = parameters + step, step
        if node == server:
            bound.serve(push.updates, [float(np.linalg.norm(vector)) for vector in scaled])
        else:
            bound.replicate(push.updates)
        apart = float(np.linalg.norm(models[server][0] - models[replica][0]))
        assert apart <= bound.bound() * (1 + 1e-9) + 1e-9
        assert bound.bound() <= limit * (1 + 1e-9)


def _steps(cluster: Cluster, server: Node, replica: Node) -> list[tuple[Node, Push]]:
    """Return the pushes that server and replica have applied, by time. The replica never applies one before the server."""
    found: list[tuple[Node, Push]] = []
    waiting = list(cluster.applied.get(replica, []))
    at_server: set[int] = set()
    for time, push in [*cluster.applied.get(server, []), (float("inf"), None)]:
        while waiting and waiting[0][0] <= time and at_server.issuperset(waiting[0][1].updates):
            found.append((replica, waiting.pop(0)[1]))
        if push is not None:
            found.append((server, push))
            at_server.update(push.updates)
    assert not waiting
    return found


@pytest.mark.parametrize(("text", "ahead"), [("bsp", 0), ("ssp:0", 0), ("ssp:2", 2)])
@examples(8, 200)
@given(data=st.data())
def test_no_worker_is_further_ahead_than_it_may(text: str, ahead: int, data: st.DataObject) -> None:
    cluster = Cluster(PLAIN, FabricParams(text), data.draw(rates()))
    pushed = [0] * WORKERS
    computing = set(range(WORKERS))
    for _ in range(25):
        cluster.advance(cluster.now + data.draw(st.floats(0.1, 5)))
        settled = [0] * WORKERS
        for number in cluster.order(Node("server", 0)):
            settled[number % WORKERS] += 1
        for decision in cluster.decide():
            if isinstance(decision, ModelTransfer) and decision.target.role == "worker":
                for worker in decision.workers:
                    assert min(settled) >= pushed[worker] - ahead, (
                        "it begins an iteration that the others are not near yet"
                    )
                    computing.add(worker)
        for worker in data.draw(st.sets(st.sampled_from(sorted(computing)))) if computing else ():
            computing.discard(worker)
            cluster.ready(Update(pushed[worker] * WORKERS + worker, worker, (10, 10), 0, 1.0))
            pushed[worker] += 1
            cluster.observe(ModelRequested(worker, (10, 10)))
    assert not cluster.made(DroppedUpdate)


@examples(15, 400)
@given(st.data())
def test_training_goes_on_when_nodes_are_lost(data: st.DataObject) -> None:
    """No turn stays open, no update is applied twice, and the replica ends with the server's updates or a copy."""
    roles = data.draw(st.sampled_from([PLAIN, REPLICATED]))
    cluster = Cluster(roles, FabricParams("async:20"), data.draw(rates()))
    lost: set[Node] = set()
    update_worker: list[int] = []
    sizes = (10,) * len(roles.servers)
    number = 0
    for _ in range(5):
        for worker in range(WORKERS):
            if Node("worker", worker) not in lost:
                update_worker.append(worker)
                cluster.ready(Update(number, worker, sizes, cluster.scheduler.version, 1.0))
                cluster.observe(ModelRequested(worker, sizes))
                number += 1
        cluster.decide()
        cluster.advance(cluster.now + data.draw(st.floats(0.0, 8)))
        node = data.draw(
            st.sampled_from([Node("worker", 1), Node("worker", 2), *(Node("aggregator", a) for a in range(3))])
        )
        if data.draw(st.booleans()):
            lost.add(node)
            cluster.lose(node)
    for _ in range(30):
        cluster.advance()
        cluster.decide()
    orders = [cluster.order(Node("server", shard)) for shard in range(len(roles.servers))]
    had = set().union(*orders)
    for shard, order in enumerate(orders):
        assert len(set(order)) == len(order)
        assert cluster.version(Node("server", shard)) == len(had), "it counts what another one has"
    assert len(had) == cluster.scheduler.version, "nothing that was decided is still open"
    settled = {decision.update for decision in [*cluster.made(DroppedUpdate), *cluster.made(ReleasedUpdate)]}
    for update in set(range(number)) - had - settled:
        assert Node("worker", update_worker[update]) in lost


def test_the_replica_takes_over() -> None:
    cluster = Cluster(REPLICATED, FabricParams("async:20", 3.0), [(10.0, 10.0)] * HOSTS)
    for number in range(10):
        cluster.ready(Update(number, number % WORKERS, (10,), cluster.version(), 1.0))
        if number % WORKERS == WORKERS - 1:
            cluster.decide()
            cluster.advance(cluster.now + 2)
    decisions = cluster.lose(Node("server", 0))
    cluster.advance()
    assert not pushes(decisions, "server")
    replica = Node("replica", 0)
    before = len(cluster.order(replica))
    assert cluster.scheduler.version == before, "it has all that was on its way to it"
    lost = {decision.update for decision in cluster.made(DroppedUpdate) if decision.reason == "lost"}
    assert lost.isdisjoint(cluster.order(replica))
    assert len(lost) <= 3, "by norms of 1, no more than the bound of 3"
    for number in range(10, 15):
        cluster.ready(Update(number, number % WORKERS, (10,), before, 1.0))
        cluster.observe(ModelRequested(number % WORKERS, (10,)))
    for _ in range(5):
        cluster.decide()
        cluster.advance()
    assert set(range(10, 15)) <= set(cluster.order(replica))
    assert {d.source.role for d in cluster.made(ModelTransfer)} == {"replica"} | {
        d.source.role for d in cluster.made(ModelTransfer) if d.source.role == "aggregator"
    }


#: Seconds for which a round goes on, and what is lost then.
ROUNDS = st.lists(
    st.tuples(
        st.floats(0.0, 8.0),
        st.sampled_from(
            [None, Node("worker", 1), Node("worker", 2), *(Node("aggregator", a) for a in range(4)), SERVER]
        ),
    ),
    max_size=8,
)


@examples(40, 1000)
@given(st.sampled_from([REPLICATED, SHARDED]), st.sampled_from([4.0, float("inf")]), rates(), ROUNDS)
# The server is lost while a copy is on its way to a replica that has an update which the server has not.
@example(
    REPLICATED,
    float("inf"),
    [(2.5, 5), (10, 1), (10 / 3, 1), (1, 1), (1, 1), (1, 1), (1, 10 / 3), (1, 2.5)],
    [(3.0, None), *[(0.0, None)] * 3, (0.0, Node("aggregator", 0)), *[(0.0, None)] * 2, (0.0, SERVER)],
)
# A worker is lost several of whose updates wait for their turn at the replicas.
@example(
    SHARDED,
    float("inf"),
    [(1, 1), (1, 10 / 3), (5, 10 / 3), (1, 10 / 3), (5, 2.5), (1, 10), (2.5, 10), (1, 5)],
    [(0.0, SERVER), (3.0, None), *[(0.0, None)] * 4, (2.5, None), (0.0, Node("worker", 2))],
)
def test_the_replica_takes_over_whatever_was_lost_before(
    roles: Roles, divergence: float, rates: list[tuple[float, float]], rounds: list[tuple[float, Node | None]]
) -> None:
    """Also while a copy is on its way to it: no update is in its model twice or too late; the scheduler knows its version."""
    bound = 12
    cluster = Cluster(roles, FabricParams(f"async:{bound}", divergence), rates)
    sizes = (10,) * len(roles.servers)
    serving: Role = "server"

    def shards() -> list[Node]:
        return [Node(serving, shard) for shard in range(len(roles.servers))]

    #: Worker and base version of each update.
    updates: list[tuple[Node, int]] = []
    lost: set[Node] = set()
    for seconds, node in rounds:
        for worker in range(WORKERS):
            if Node("worker", worker) not in lost:
                base = min(map(cluster.version, shards()))
                cluster.ready(Update(len(updates), worker, sizes, base, 1.0))
                updates.append((Node("worker", worker), base))
        cluster.decide()
        cluster.advance(cluster.now + seconds)
        if node is not None and node not in lost:
            lost.add(node)
            cluster.lose(node)
            if node == SERVER:
                serving = "replica"
    for _ in range(30):
        cluster.advance()
        cluster.decide()
    orders = [cluster.order(node) for node in shards()]
    had = set().union(*orders)
    for order in orders:
        assert len(set(order)) == len(order)
        assert all(position - updates[number][1] <= bound for position, number in enumerate(order, 1))
    assert max(map(cluster.version, shards())) == cluster.scheduler.version
    released = {decision.update for decision in cluster.made(ReleasedUpdate)}
    if all(node.role != "aggregator" for node in lost):
        assert released <= had, "workers forget what somebody has"
    settled = released | {decision.update for decision in cluster.made(DroppedUpdate)}
    assert all(updates[number][0] in lost for number in set(range(len(updates))) - had - settled)


@examples(40, 1000)
@given(st.data(), st.sampled_from([3.0, float("inf")]))
def test_nobody_waits_after_the_replica_has_taken_over(data: st.DataObject, divergence: float) -> None:
    """Transfers end in a drawn order. Each update is released or dropped once, and every worker continues."""
    scheduler = Scheduler(REPLICATED, FabricParams("ssp:0", divergence), lead_seconds=1e9)
    underway: dict[int, Transfer] = {}
    decided: list[Decision] = []

    def obey(decisions: list[Decision]) -> None:
        decided.extend(decisions)
        underway.update((d.id, d) for d in decisions if isinstance(d, Transfer))
        for decision in decisions:
            if isinstance(decision, Cancellation):
                del underway[decision.transfer]

    def may_end() -> list[int]:
        return [number for number, transfer in underway.items() if underway.keys().isdisjoint(transfer.after)]

    def end(number: int, now: float) -> None:
        del underway[number]
        obey(scheduler.observe(TransferEnded(number), now))

    for host in range(HOSTS):
        scheduler.observe(BandwidthReported(host, 10.0, 10.0), 0.0)
    for worker in range(WORKERS):
        obey(scheduler.observe(Update(worker, worker, (10,), 0, 1.0), worker))
        obey(scheduler.decide(worker))
        for _ in range(data.draw(st.integers(0, 3))):
            if able := may_end():
                end(data.draw(st.sampled_from(able)), worker)
    obey(scheduler.observe(NodeLost(Node("server", 0), (0,)), WORKERS))
    for worker in range(WORKERS):
        obey(scheduler.observe(ModelRequested(worker, (10,)), WORKERS))
    obey(scheduler.decide(WORKERS))
    while able := may_end():
        end(able[0], WORKERS)
        obey(scheduler.decide(WORKERS))
    assert sorted(d.update for d in decided if isinstance(d, (ReleasedUpdate, DroppedUpdate))) == list(range(WORKERS))
    got = [d.target.index for d in decided if isinstance(d, ModelTransfer) and d.target.role == "worker"]
    assert sorted(got) == list(range(WORKERS))
