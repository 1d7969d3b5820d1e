"""The fabric's scheduler: what it refuses, and single decisions of it."""

import math

import pytest

from sparkdl_comm.errors import ConfError, InputError, RankLostError
from sparkdl_comm.fabric.core.messages import (
    BandwidthReported,
    Cancellation,
    Decision,
    DroppedUpdate,
    ModelRequested,
    ModelTransfer,
    NewSchedule,
    NewTurn,
    Node,
    NodeLost,
    Push,
    ReleasedUpdate,
    Roles,
    SkippedTurn,
    StateCopy,
    TransferEnded,
    TransferProgressed,
    Update,
)
from sparkdl_comm.fabric.core.scheduler import Scheduler
from sparkdl_comm.fabric.params import FabricParams, step_size

SERVER = Node("server", 0)


def scheduler(rates: list[float], bound: int = 10, **settings) -> Scheduler:
    """Workers on hosts of these rates, bytes/s both ways; the server is on the last."""
    roles = Roles(workers=tuple(range(len(rates) - 1)), servers=(len(rates) - 1,))
    made = Scheduler(roles, FabricParams(f"async:{bound}"), **settings)
    for host, rate in enumerate(rates):
        made.observe(BandwidthReported(host, rate, rate), 0.0)
    return made


def ready(
    made: Scheduler, number: int, now: float, *, worker: int | None = None, base: int = 0, norm: float = 1.0
) -> list[Decision]:
    return made.observe(Update(number, number if worker is None else worker, (100,), base, norm), now)


def of(kind: type, decisions: list[Decision]) -> list[Decision]:
    return [decision for decision in decisions if isinstance(decision, kind)]


@pytest.mark.parametrize("norm", [math.nan, math.inf, -1.0])
def test_an_update_without_a_proper_norm_is_refused_and_its_worker_named(norm):
    made = scheduler([10.0, 10.0])
    assert ready(made, 0, 0.0, norm=norm) == [DroppedUpdate(0, 0, "norm")]
    assert not of(Push, made.decide(0.1))


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (Update(1, 7, (100,), 0, 1.0), "worker 7"),
        (Update(1, 0, (100, 5), 0, 1.0), r"sizes \(100, 5\)"),
        (ModelRequested(0, (-1,)), r"sizes \(-1,\)"),
        (BandwidthReported(9, 1.0, 1.0), "host 9"),
        (BandwidthReported(0, math.nan, 1.0), "host 0"),
    ],
)
def test_events_about_what_there_is_not_are_refused(event, said):
    with pytest.raises(InputError, match=said):
        scheduler([10.0, 10.0]).observe(event, 0.0)


def test_a_host_that_no_monitor_has_reported_is_named():
    made = Scheduler(Roles(workers=(0,), servers=(1,)), FabricParams("bsp"))
    made.observe(BandwidthReported(0, 1.0, 1.0), 0.0)
    with pytest.raises(InputError, match="host 1"):
        made.decide(0.0)


def test_an_id_is_used_once_and_the_clock_goes_on():
    made = scheduler([10.0, 10.0])
    ready(made, 0, 1.0)
    with pytest.raises(InputError, match="update 0 of worker 0"):
        ready(made, 0, 1.0)
    with pytest.raises(InputError, match=r"from 1\.0 to 0\.5"):
        made.decide(0.5)


def test_settings_that_make_no_sense_are_refused():
    for text in ("async:0", "async", "ssp:-1", "bsp:1", "often"):
        with pytest.raises(ConfError, match=f"sync='{text}'"):
            FabricParams(text)
    with pytest.raises(InputError, match="lead_seconds=-1"):
        scheduler([10.0, 10.0], lead_seconds=-1.0)
    with pytest.raises(ConfError, match="0 and 1"):
        Roles(workers=(), servers=(0,))
    with pytest.raises(ConfError, match="1 replicas of 2 servers"):
        Roles(workers=(0,), servers=(1, 2), replicas=(3,))


def test_the_step_is_smaller_the_older_the_update():
    assert step_size(2.0, 4, 0) == 1.0
    assert step_size(2.0, 4, 12) == 0.5
    assert step_size(2.0, 4, -3) == 1.0


def test_updates_are_multiplied_by_the_step_size_of_their_place():
    roles = Roles(workers=(0, 1), servers=(2,))
    made = Scheduler(roles, FabricParams("async:10", step_scale=2.0))
    for host, rate in enumerate([10.0, 5.0, 10.0]):
        made.observe(BandwidthReported(host, rate, rate), 0.0)
    ready(made, 0, 0.0, base=-3)
    ready(made, 1, 0.0)
    assert [push.scales for push in of(Push, made.decide(0.0))] == [
        (2.0 / math.sqrt(1 + 4),),
        (2.0 / math.sqrt(2 + 2),),
    ]


def test_a_lost_server_without_a_replica_is_the_end():
    with pytest.raises(RankLostError, match="server 0"):
        scheduler([10.0, 10.0]).observe(NodeLost(SERVER), 0.0)


def test_a_transfer_under_way_is_paced_anew_when_its_link_changes():
    made = scheduler([10.0, 10.0])
    ready(made, 0, 0.0)
    [push] = of(Push, made.decide(0.0))
    assert push.end == pytest.approx(10)
    made.observe(BandwidthReported(0, 5.0, 5.0), 4.0)
    [repaced] = of(NewSchedule, made.decide(4.0))
    assert repaced.transfer == push.id
    assert repaced.schedule[-1].end == pytest.approx(4 + 60 / 5)
    made.observe(TransferProgressed(push.id, 80), 6.0)
    [repaced] = of(NewSchedule, made.decide(6.0))
    assert repaced.schedule[-1].end == pytest.approx(6 + 20 / 5)


def test_a_batch_waits_while_the_server_is_busy_and_is_then_decided_on_as_one():
    made = scheduler([10.0] * 5, lead_seconds=2.0)
    ready(made, 0, 0.0)
    assert len(of(Push, made.decide(0.0))) == 1
    ready(made, 1, 1.0)
    assert not made.decide(1.0), "the server's link is taken until 10"
    ready(made, 2, 5.0)
    assert len(of(Push, made.decide(8.0))) == 2


def test_models_wait_too_and_go_out_together():
    made = scheduler([10.0] * 5, lead_seconds=2.0)
    for worker, now in enumerate([0.0, 1.0, 5.0]):
        made.observe(ModelRequested(worker, (100,)), now)
        found = of(ModelTransfer, made.decide(now))
        assert [model.batch for model in found] == ([0] if worker == 0 else [])
    made.observe(TransferEnded(0), 10.0)
    found = of(ModelTransfer, made.decide(10.0))
    assert sorted(model.workers[0] for model in found) == [1, 2]
    assert len({model.batch for model in found}) == 1


@pytest.mark.parametrize(("bound", "overtaken"), [(10, True), (2, False)])
def test_a_slow_update_is_overtaken_if_its_delay_bound_allows_it(bound, overtaken):
    made = scheduler([1.0, 10.0, 10.0, 10.0], bound)
    ready(made, 0, 0.0)
    [slow] = of(Push, made.decide(0.0))
    assert (slow.turn, slow.end) == (0, pytest.approx(100))
    ready(made, 1, 1.0, base=1)
    ready(made, 2, 1.0, base=1)
    decisions = made.decide(1.0)
    turns = [push.turn for push in of(Push, decisions)]
    assert turns == [1, 2]
    if overtaken:
        assert of(NewTurn, decisions) == [NewTurn(slow.id, 3)]
        assert of(SkippedTurn, decisions) == [SkippedTurn(SERVER, 0)]
    else:
        assert not of(NewTurn, decisions), "it would be the third, and may be the second at most"
    assert made.version == 3


@pytest.mark.parametrize(("base", "kept"), [(-1, True), (-2, False)])
def test_what_overtakes_keeps_its_delay_bound_if_the_other_one_was_applied_before(base, kept):
    """The server may apply it until it hears that it has another turn."""
    made = scheduler([1.0, 10.0, 10.0], 3)
    ready(made, 0, 0.0)
    made.decide(0.0)
    ready(made, 1, 1.0, base=base)
    decisions = made.decide(1.0)
    assert bool(of(NewTurn, decisions)) == bool(of(Push, decisions)) == kept
    assert of(DroppedUpdate, decisions) == ([] if kept else [DroppedUpdate(1, 1, "deadline")])


def test_what_is_under_way_and_what_is_new_get_their_turns_by_their_ends():
    made = scheduler([1.0, 10.0, 0.5, 100.0])
    ready(made, 0, 0.0)
    [slow] = of(Push, made.decide(0.0))
    ready(made, 1, 1.0)
    ready(made, 2, 1.0)
    decisions = made.decide(1.0)
    assert {push.updates: push.turn for push in of(Push, decisions)} == {(1,): 1, (2,): 3}
    assert of(NewTurn, decisions) == [NewTurn(slow.id, 2)]
    assert of(SkippedTurn, decisions) == [SkippedTurn(SERVER, 0)]


@pytest.mark.parametrize(("base", "yields"), [(0, True), (-1, False)])
def test_what_becomes_slow_lets_pass_what_is_under_way_if_its_delay_bound_allows_it(base, yields):
    made = scheduler([10.0, 5.0, 100.0], bound=2)
    ready(made, 0, 0.0, base=base)
    ready(made, 1, 0.0)
    slow, _ = of(Push, made.decide(0.0))
    assert (slow.updates, slow.turn) == ((0,), 0)
    made.observe(BandwidthReported(0, 0.5, 0.5), 4.0)
    decisions = made.decide(4.0)
    assert of(NewTurn, decisions) == ([NewTurn(slow.id, 2)] if yields else [])
    assert of(SkippedTurn, decisions) == ([SkippedTurn(SERVER, 0)] if yields else [])
    assert not of(NewTurn, made.decide(5.0)), "it is the last one now, or has to stay the first"


def test_nothing_is_put_behind_a_later_one_that_has_to_keep_its_turn():
    made = scheduler([2.0, 1.0, 10.0, 100.0], bound=2)
    ready(made, 0, 0.0, base=1)
    made.decide(0.0)
    ready(made, 1, 0.0)
    made.decide(0.0)
    ready(made, 2, 1.0, base=2)
    decisions = made.decide(1.0)
    assert [push.turn for push in of(Push, decisions)] == [2]
    assert not of(NewTurn, decisions), "update 0, which ends at 50, would come after update 1, which ends at 100"


def test_a_batch_is_due_when_a_link_of_the_server_is_idle():
    made = scheduler([10.0] * 3)
    assert not made.is_due(0.0), "nothing is waiting"
    ready(made, 0, 0.0)
    assert made.is_due(0.0)
    made.decide(0.0)
    ready(made, 1, 1.0)
    assert not made.is_due(1.0), "the server's link is taken until 10"
    made.observe(ModelRequested(0, (100,)), 2.0)
    assert made.is_due(2.0), "its link out is not"
    made.decide(2.0)
    assert not made.is_due(2.0)
    assert made.is_due(10.0)


def test_a_batch_is_due_as_soon_as_half_of_it_can_be_summed_meanwhile():
    """An update takes a link 10 s, and one of them is beside its aggregator."""
    made = Scheduler(Roles(workers=(0, 1, 2, 3), servers=(4,), aggregators=(0, 1, 2, 3)), FabricParams("async:10"))
    for host in range(5):
        made.observe(BandwidthReported(host, 10.0, 10.0), 0.0)
    ready(made, 0, 0.0)
    made.decide(0.0)
    ready(made, 1, 1.0)
    ready(made, 2, 1.0)
    assert not made.is_due(4.0), "the server's link is taken until 10, and one of two is at an aggregator after 5 s"
    assert made.is_due(5.0)
    ready(made, 3, 4.0)
    assert made.is_due(4.0)
    pushes = [push for push in of(Push, made.decide(4.0)) if push.turn is not None]
    assert [push.updates for push in pushes] == [(1, 2), (3,)]
    assert pushes[-1].end == pytest.approx(30), "the server's link does not rest"


def test_a_request_that_may_not_be_answered_makes_no_batch_due():
    made = Scheduler(Roles(workers=(0, 1), servers=(2,)), FabricParams("bsp"))
    for host in range(3):
        made.observe(BandwidthReported(host, 10.0, 10.0), 0.0)
    ready(made, 0, 0.0)
    made.decide(0.0)
    made.observe(ModelRequested(0, (100,)), 1.0)
    assert not made.is_due(1.0), "worker 1 has no update yet"


def test_after_a_loss_the_replica_gets_a_copy_of_the_server():
    roles = Roles(workers=(0, 1), servers=(2,), replicas=(3,))
    made = Scheduler(roles, FabricParams("async:10", momentum=0.9))
    for host in range(4):
        made.observe(BandwidthReported(host, 10.0, 10.0), 0.0)
    ready(made, 0, 0.0)
    pushes = of(Push, made.decide(0.0))
    assert [push.target.role for push in pushes] == ["server"], "the copy for the replica is punted"
    made.observe(TransferEnded(pushes[0].id), 10.0)
    made.observe(NodeLost(Node("worker", 0)), 10.0)
    [copy] = of(StateCopy, made.decide(10.0))
    assert (copy.source, copy.target, copy.turn, copy.resume) == (SERVER, Node("replica", 0), 1, 0)
    assert copy.bytes == 200, "parameters and momentum"
    assert not of(StateCopy, made.decide(20.0))


@pytest.mark.parametrize("ended", [0, 1, None])
def test_the_version_counts_a_lost_update_that_one_server_has(ended):
    """At the others too: else all later updates would look older there, or here, than they are."""
    made = Scheduler(Roles(workers=(0, 1), servers=(2, 3)), FabricParams("async:10"))
    for host in range(4):
        made.observe(BandwidthReported(host, 10.0, 10.0), 0.0)
    made.observe(Update(0, 0, (100, 100), 0, 1.0), 0.0)
    by_server = {push.target.index: push for push in of(Push, made.decide(0.0))}
    if ended is not None:
        made.observe(TransferEnded(by_server[ended].id), 10.0)
    decisions = made.observe(NodeLost(Node("worker", 0)), 10.0)
    lacking = [Node("server", shard) for shard in range(2) if shard != ended]
    assert of(SkippedTurn, decisions) == [SkippedTurn(node, 0, 0 if ended is None else 1) for node in lacking]
    assert made.version == (0 if ended is None else 1)


def test_what_is_on_its_way_to_one_replica_and_at_another_is_counted_once_when_they_take_over():
    roles = Roles(workers=(0, 1), servers=(2, 3), replicas=(4, 5))
    made = Scheduler(roles, FabricParams("async:10"))
    for host in range(6):
        made.observe(BandwidthReported(host, 10.0, 10.0), 0.0)
    replicated: list[Push] = []
    for number in range(2):
        now = 30.0 * number
        made.observe(Update(number, number, (100, 100), 0, 1.0), now)
        replicated += [push for push in of(Push, made.decide(now)) if push.target.role == "replica"]
    by_replica = {push.target.index: push for push in replicated}
    assert by_replica.keys() == {0, 1}
    made.observe(TransferEnded(by_replica[1].id), 50.0)
    made.observe(NodeLost(SERVER, versions=(0, 1)), 50.0)
    assert made.version == len(by_replica[0].updates) == 1


def test_what_the_replica_has_is_settled_when_it_takes_over():
    """Update 0 has come to the replica, and nobody knows that it has come to the server; update 1 was not sent there yet."""
    roles = Roles(workers=(0, 1), servers=(2,), replicas=(3,))
    made = Scheduler(roles, FabricParams("ssp:0"))
    for host in range(4):
        made.observe(BandwidthReported(host, 10.0, 10.0), 0.0)
    ready(made, 0, 0.0)
    made.decide(0.0)
    ready(made, 1, 10.0)
    [replicated] = [push for push in of(Push, made.decide(10.0)) if push.target.role == "replica"]
    assert replicated.updates == (0,)
    made.observe(TransferEnded(replicated.id), 20.0)
    decisions = made.observe(NodeLost(SERVER, versions=(1,)), 20.0)
    assert of(ReleasedUpdate, decisions) == [ReleasedUpdate(0, 0)]
    assert of(DroppedUpdate, decisions) == [DroppedUpdate(1, 1, "lost")]
    for worker in range(2):
        made.observe(ModelRequested(worker, (100,)), 20.0)
    assert {model.workers for model in of(ModelTransfer, made.decide(20.0))} == {(0,), (1,)}


def replicated(bound: int) -> Scheduler:
    """Two workers, a server and a replica; updates 0 and 1 are at the server alone, worker 0 is lost, and a copy is decided on
    at 20 s."""
    roles = Roles(workers=(0, 1), servers=(2,), replicas=(3,))
    made = Scheduler(roles, FabricParams(f"async:{bound}", 2.0))
    for host in range(4):
        made.observe(BandwidthReported(host, 10.0, 10.0), 0.0)
    for number in range(2):
        ready(made, number, 10.0 * number, base=number)
        [push] = [push for push in of(Push, made.decide(10.0 * number)) if push.target == SERVER]
        made.observe(TransferEnded(push.id), 10.0 * (number + 1))
    made.observe(NodeLost(Node("worker", 0)), 20.0)
    return made


def test_a_server_that_is_lost_while_its_replica_copies_it():
    """The replica is what it was before the copy, and what the server alone had is lost."""
    made = replicated(bound=1)
    decisions = made.decide(20.0)
    [copy] = of(StateCopy, decisions)
    assert not of(ReleasedUpdate, decisions), "the replica has not got it yet"
    decisions = made.observe(NodeLost(SERVER, versions=(0,)), 21.0)
    assert Cancellation(copy.id) in decisions
    assert of(DroppedUpdate, decisions) == [DroppedUpdate(1, 1, "lost")]
    assert made.version == 0
    ready(made, 2, 22.0, worker=1, base=0)
    assert [push.updates for push in of(Push, made.decide(22.0))] == [(2,)], "its delay is 1"


def test_what_the_copy_brings_is_released_when_it_has_come():
    made = replicated(bound=9)
    [copy] = of(StateCopy, made.decide(20.0))
    ready(made, 2, 21.0, worker=1, base=2)
    assert not made.decide(21.0), "the server does not go further away from its replica"
    assert made.observe(TransferEnded(copy.id), 30.0) == [ReleasedUpdate(1, 1)]
    assert [push.updates for push in of(Push, made.decide(30.0))] == [(2,)]


def test_models_of_a_lost_server_are_not_passed_on():
    roles = Roles(workers=(0, 1, 2), servers=(3,), aggregators=(0,), replicas=(4,))
    made = Scheduler(roles, FabricParams("async:10"))
    for host, rate in enumerate([100.0, 100.0, 100.0, 1.0, 1.0]):
        made.observe(BandwidthReported(host, rate, rate), 0.0)
    for worker in range(3):
        made.observe(ModelRequested(worker, (100,)), 0.0)
    models = of(ModelTransfer, made.decide(0.0))
    assert {model.source.role for model in models} == {"server", "aggregator"}
    assert {cancelled.transfer for cancelled in of(Cancellation, made.observe(NodeLost(SERVER, (0,)), 1.0))} == {
        model.id for model in models
    }
    again = of(ModelTransfer, made.decide(1.0))
    assert {worker for model in again for worker in model.workers} == {0, 1, 2}
