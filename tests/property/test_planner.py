"""The planner against brute force. Times are whole numbers, so that all sums are exact; one JVM plans many profiles."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from sparkdl_comm.conf.forms import POLICIES as NAMED
from sparkdl_comm.jvm.planner import Bucketing, plan_buckets
from tests.draws import examples

POLICIES = (*NAMED, "parts:3", "fixed:20")


@dataclass(frozen=True)
class Profile:
    startup: int
    layers: list[tuple[int, int]]  # transfer, compute

    def request(self, policy: str, direction: str = "pull") -> dict:
        transfer, compute = map(list, zip(*self.layers, strict=True))
        times = {"startup": self.startup, "transfer": transfer, "compute": compute, "bytes": transfer}
        return {**times, "policy": policy, "direction": direction}

    def pull(self, after: int, last: int) -> int:
        """One communication for layers `after` + 1 to `last`."""
        return self.startup + sum(transfer for transfer, _ in self.layers[after:last])

    def compute(self, after: int, last: int) -> int:
        return sum(compute for _, compute in self.layers[after:last])

    def seconds(self, ends: list[int]) -> int:
        """Of the pipeline: pulls go back to back; a batch is computed when it is there and the one before is computed."""
        arrived = done = before = 0
        for end in ends:
            arrived += self.pull(before, end)
            done = max(done, arrived) + self.compute(before, end)
            before = end
        return done

    def every_cut(self) -> Iterator[list[int]]:
        inner = range(1, len(self.layers))
        for count in range(len(self.layers)):
            for cuts in combinations(inner, count):
                yield [*cuts, len(self.layers)]


PROFILES = st.builds(
    Profile, st.integers(0, 9), st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=12)
)


def ends(plan: Bucketing) -> list[int]:
    firsts, lasts = map(list, zip(*plan.batches, strict=True))
    assert firsts == [1, *(last + 1 for last in lasts[:-1])], "batches of consecutive layers, beginning with the first"
    return lasts


@examples(3, 80)
@given(st.lists(PROFILES, min_size=1, max_size=12))
def test_plans(profiles: list[Profile]) -> None:
    requests = [profile.request(policy) for profile in profiles for policy in POLICIES]
    requests += [profile.request("ibatch", "push") for profile in profiles]
    plans = plan_buckets(requests)
    for number, profile in enumerate(profiles):
        made = dict(zip(POLICIES, plans[number * len(POLICIES) : (number + 1) * len(POLICIES)], strict=True))
        best = min(profile.seconds(cut) for cut in profile.every_cut())
        for plan in made.values():
            assert ends(plan)[-1] == len(profile.layers)
            assert plan.predicted_seconds == profile.seconds(ends(plan))
            assert plan.optimal_ratio == (plan.predicted_seconds / best if best else 1.0)
        assert made["optimal"].predicted_seconds == best
        assert ends(made["whole"]) == [len(profile.layers)]
        assert ends(made["layerwise"]) == list(range(1, len(profile.layers) + 1))
        assert made["ibatch"].predicted_seconds == min(made[name].predicted_seconds for name in ("greedy1", "greedy2"))
        check_forwards(profile, [0, *ends(made["greedy1"])])
        check_backwards(profile, [0, *ends(made["greedy2"])])
        push = plans[len(profiles) * len(POLICIES) + number]
        assert push.batches == made["ibatch"].batches[::-1]
        assert push.predicted_seconds == made["ibatch"].predicted_seconds


def satisfied(profile: Profile, before: int, last: int, following: int) -> bool:
    """Eq. 5: the pull of `last` + 1 to `following` takes as long as the computation of `before` + 1 to `last`."""
    return profile.pull(last, following) >= profile.compute(before, last)


def check_forwards(profile: Profile, cut: list[int]) -> None:
    layers = len(profile.layers)
    possible = any(satisfied(profile, 0, one, two) for one in range(1, layers) for two in range(one + 1, layers + 1))
    for k in range(1, len(cut) - 1):
        could = possible if k == 1 else cut[k + 1] < layers
        assert satisfied(profile, *cut[k - 1 : k + 2]) or not could


def check_backwards(profile: Profile, cut: list[int]) -> None:
    layers = len(profile.layers)
    possible = any(satisfied(profile, one, two, layers) for two in range(1, layers) for one in range(two))
    for k in range(1, len(cut) - 1):
        could = possible if k == len(cut) - 2 else cut[k - 1] > 0
        assert satisfied(profile, *cut[k - 1 : k + 2]) or not could
