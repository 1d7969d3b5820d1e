"""Bandwidth estimates from drawn traces: transfers as fluids through links whose rates change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl_comm.fabric.bandwidth import PROBE_FACTOR, BandwidthEstimator
from sparkdl_comm.fabric.protocol import Flow, Rates

HOSTS = 4
NOMINAL = 100e6
SHARES = (0.1, 0.25, 0.33, 0.5, 1.0)
INTERVAL = 0.1


class Fluid:
    """Transfers share links by max-min fairness; each is paced at ``PROBE_FACTOR`` times what its links are taken to carry."""

    def __init__(self, nominal: float = NOMINAL) -> None:
        self.up, self.down = [nominal] * HOSTS, [nominal] * HOSTS
        self.estimates = BandwidthEstimator(HOSTS, nominal)
        self.now = 0.0

    def rates(self, flows: list[tuple[int, int]]) -> list[tuple[float, bool]]:
        """Bytes per second of each, and whether the network holds it up."""
        wanted = [PROBE_FACTOR * min(self.estimates.estimate(a)[0], self.estimates.estimate(b)[1]) for a, b in flows]
        rates = [0.0] * len(flows)
        links = [(self.up, 0), (self.down, 1)]
        open_flows = set(range(len(flows)))
        while open_flows:
            shares = {
                i: min(
                    (link[flows[i][end]] - sum(rates[j] for j in range(len(flows)) if flows[j][end] == flows[i][end]
                     and j not in open_flows))
                    / sum(1 for j in open_flows if flows[j][end] == flows[i][end])
                    for link, end in links
                )
                for i in open_flows
            }  # fmt: skip
            paced = {i for i in open_flows if wanted[i] <= min(shares.values())}
            chosen = paced or {min(open_flows, key=shares.__getitem__)}
            for i in chosen:
                rates[i] = wanted[i] if paced else shares[i]
            open_flows -= chosen
        return [(rate, rate < want * 0.999) for rate, want in zip(rates, wanted, strict=True)]

    def run(self, seconds: float, flows: list[tuple[int, int]]) -> None:
        """New transfers; each sends all the time."""
        totals = [0] * len(flows)
        for _ in range(round(seconds / INTERVAL)):
            self.now += INTERVAL
            moved = self.rates(flows)
            totals = [total + round(rate * INTERVAL) for total, (rate, _) in zip(totals, moved, strict=True)]
            for host in {a for a, _ in flows}:
                sent = [
                    Flow(number, INTERVAL, round(rate * INTERVAL), 1.0 if held else 0.0, total, 0.0)
                    for number, ((a, _), (rate, held), total) in enumerate(zip(flows, moved, totals, strict=True))
                    if a == host
                ]
                up = sum(flow.sent for flow in sent)
                down = sum(round(r * INTERVAL) for (_, b), (r, _) in zip(flows, moved, strict=True) if b == host)
                targets = {number: b for number, (_, b) in enumerate(flows)}
                self.estimates.observe(host, Rates(INTERVAL, up, down, 0.0, sent), targets, self.now)


def near(found: float, true: float) -> bool:
    return abs(found - true) <= 0.25 * true


@pytest.mark.parametrize("nominal", [12.5e6, NOMINAL])
@given(changes=st.lists(st.tuples(st.sampled_from(SHARES), st.sampled_from(SHARES)), min_size=1, max_size=6))
def test_path(nominal: float, changes: list[tuple[float, float]]) -> None:
    """Half a second after any change, the path of a transfer under way is known."""
    fluid = Fluid(nominal)
    for up, down in changes:
        fluid.up[0], fluid.down[1] = up * nominal, down * nominal
        fluid.run(0.5, [(0, 1)])
        assert near(min(fluid.estimates.estimate(0)[0], fluid.estimates.estimate(1)[1]), min(up, down) * nominal)


@given(st.lists(st.sampled_from(SHARES), min_size=2, max_size=5), st.permutations(range(1, HOSTS)))
def test_server(shares: list[float], workers: list[int]) -> None:
    """A slow server is known once its workers have sent to it alone, and then at once."""
    fluid = Fluid()
    for share in shares:
        fluid.down[0] = share * NOMINAL
        for worker in workers:
            fluid.run(0.5, [(worker, 0)])
        fluid.run(0.5, [(worker, 0) for worker in workers])
        assert near(fluid.estimates.estimate(0)[1], share * NOMINAL)
    for worker in workers:
        fluid.run(0.5, [(worker, 0)])
        assert min(fluid.estimates.estimate(worker)[0], fluid.estimates.estimate(0)[1]) >= 0.75 * shares[-1] * NOMINAL


@given(st.lists(st.tuples(st.tuples(*[st.sampled_from((0.1, 1.0))] * 3), st.permutations(range(1, HOSTS))), max_size=4))
def test_many_slow_workers(changes: list[tuple[tuple[float, ...], list[int]]]) -> None:
    """Their server is not taken for slow: one of them would seem to fill its link, and nobody would see that it does not."""
    fluid = Fluid()
    for worker in range(1, HOSTS):
        fluid.run(0.5, [(worker, 0)])
    for shares, workers in changes:
        fluid.up[1:] = [share * NOMINAL for share in shares]
        for senders in (workers[:1], workers[1:], workers[:2], workers, workers[2:]):
            fluid.run(0.5, [(worker, 0) for worker in senders])
            assert near(fluid.estimates.estimate(0)[1], NOMINAL)


@given(st.sampled_from(SHARES[:2]), st.sets(st.integers(1, HOSTS - 1), min_size=1))
def test_a_server_that_is_fast_again_behind_slow_workers(share: float, senders: set[int]) -> None:
    """No worker can show that the server is fast, so the estimator assumes it."""
    fluid, workers = Fluid(), range(1, HOSTS)
    fluid.down[0] = share * NOMINAL
    for worker in workers:
        fluid.run(0.5, [(worker, 0)])
    fluid.run(0.5, [(worker, 0) for worker in workers])
    assert near(fluid.estimates.estimate(0)[1], share * NOMINAL)
    fluid.down[0] = NOMINAL
    fluid.up[1:] = [share / (HOSTS - 1) * NOMINAL for _ in workers]
    for _ in range(3):
        fluid.run(0.5, [(worker, 0) for worker in senders])
    assert near(fluid.estimates.estimate(0)[1], NOMINAL)


@given(st.sampled_from(SHARES[:-1]), st.integers(1, HOSTS - 1))
def test_worker(share: float, slow: int) -> None:
    """A worker's link has become slow. The estimator does not blame the server, because others send as before."""
    fluid = Fluid()
    workers = [worker for worker in range(1, HOSTS) if worker != slow] + [slow]
    for worker in workers:
        fluid.run(0.5, [(worker, 0)])
    fluid.up[slow] = share * NOMINAL
    for worker in workers:
        fluid.run(0.5, [(worker, 0)])
    assert near(fluid.estimates.estimate(slow)[0], share * NOMINAL)
    assert near(fluid.estimates.estimate(0)[1], NOMINAL)


@given(st.lists(st.sampled_from(SHARES), min_size=1, max_size=4))
def test_together(shares: list[float]) -> None:
    """Several at once share the server's link: each can have its share of that to all, whoever seems slow."""
    fluid = Fluid()
    for share in shares:
        fluid.down[0] = share * NOMINAL
        fluid.run(0.5, [(worker, 0) for worker in range(1, HOSTS)])
        for worker in range(1, HOSTS):
            path = min(fluid.estimates.estimate(worker)[0], fluid.estimates.estimate(0)[1])
            assert 0.75 * share / (HOSTS - 1) <= path / NOMINAL <= 1.25 * share


@given(st.sampled_from(SHARES), st.floats(0.02, 0.09), st.integers(0, 9))
def test_in_turn(share: float, lasting: float, phase: int) -> None:
    """Transfers that are shorter than the time between two reports, one after the other, are not added up."""
    estimates, rate = BandwidthEstimator(HOSTS, NOMINAL), share * NOMINAL
    begun = 0.0
    for number in range(30):
        begun, end = begun + lasting, begun + 2 * lasting
        report = (int(10 * end) + 1 + phase / 10) * INTERVAL
        sent = round(rate * lasting)
        flow = Flow(number, lasting, sent, 1.0, sent, report - end)
        estimates.observe(1 + number % 3, Rates(INTERVAL, sent, 0, 0.0, [flow]), {number: 0}, report)
    assert estimates.estimate(0)[1] <= 1.25 * NOMINAL


@given(st.sampled_from(SHARES[:2]), st.permutations(range(1, HOSTS)))
def test_slow_among_others(share: float, workers: list[int]) -> None:
    """A slow worker sends with others. The server's link is full, but because of the others."""
    fluid = Fluid()
    flows = [(worker, 0) for worker in workers]
    fluid.run(1.0, flows)
    fluid.up[workers[0]] = share * NOMINAL / 3
    fluid.run(0.5, flows)
    assert near(fluid.estimates.estimate(workers[0])[0], share * NOMINAL / 3)
    assert near(fluid.estimates.estimate(0)[1], NOMINAL)


@given(st.integers(0, 9))
def test_what_others_send_is_not_there(tenths: int) -> None:
    """But only once it has lasted: the first bytes may be those of a transfer that its sender has not reported yet."""
    estimates = BandwidthEstimator(HOSTS, NOMINAL)
    passed = round(tenths / 10 * NOMINAL * INTERVAL)
    estimates.observe(2, Rates(INTERVAL, passed, 0, 0.0, []), {}, INTERVAL)
    assert estimates.estimate(2) == (NOMINAL, NOMINAL)
    for report in range(2, 6):
        estimates.observe(2, Rates(INTERVAL, passed, 0, 0.0, []), {}, report * INTERVAL)
    assert near(estimates.estimate(2)[0], (10 - tenths) / 10 * NOMINAL)
    assert estimates.estimate(2)[1] == NOMINAL


def test_acknowledgements_do_not_make_a_transfer_that_follows_another_jobs() -> None:
    """The receiver's daemon may report on its first bytes before the sender's does."""
    estimates, passed = BandwidthEstimator(HOSTS, NOMINAL), round(0.8 * NOMINAL * INTERVAL)
    for report in range(1, 8):
        estimates.observe(2, Rates(INTERVAL, passed, 200, 0.0, []), {}, report * INTERVAL)
    estimates.observe(2, Rates(INTERVAL, passed, passed, 0.0, []), {}, 8 * INTERVAL)
    assert near(estimates.estimate(2)[1], NOMINAL)
    assert near(estimates.estimate(2)[0], 0.2 * NOMINAL)


def test_nothing_is_known_of_short_transfers() -> None:
    estimates = BandwidthEstimator(HOSTS, NOMINAL)
    flow = Flow(5, INTERVAL, 1000, 1.0, 1000, 0.0)
    estimates.observe(0, Rates(INTERVAL, 1000, 0, 0.0, [flow]), {5: 1}, INTERVAL)
    assert estimates.estimate(0) == estimates.estimate(1) == (NOMINAL, NOMINAL)
