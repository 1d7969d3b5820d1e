"""What ranks measure for the planner, and how they agree on it."""

from sparkdl_comm.strategies.ps.profiler import (
    DirectionProfile,
    LayerTimes,
    NetworkTimes,
    agree,
    drift,
)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_forward_counts_for_the_layer_in_use_and_waits_for_none():
    clock = Clock()
    times = LayerTimes(2, window=3, clock=clock)
    assert times.medians() is None
    for slow in (1, 1, 50):  # an outlier
        times.begin()
        clock.now += 9
        times.at(0)
        clock.now += 2 * slow
        times.stop()
        clock.now += 7
        times.at(1)
        clock.now += 3
        times.end()
    assert times.medians() == [2, 3]


def test_backward_counts_for_the_layer_whose_gradient_is_there():
    clock = Clock()
    times = LayerTimes(3, window=1, clock=clock)
    for seconds in (100, 1):  # the window has room for the last
        times.begin()
        for layer in (2, 2, 0):
            clock.now += seconds
            times.was(layer)
        clock.now += seconds
        times.end()
    assert times.medians() == [1, 0, 2]


def test_startup_is_up_to_the_first_byte_and_transfers_in_parallel_are_one():
    network = NetworkTimes(window=10)
    assert network.medians() is None
    network.end()
    assert network.medians() is None, "a step in which nothing came"
    network.add([[], [[1, 10.0, 11.0, 13.0, 100], [2, 10.0, 12.0, 16.0, 300]]])
    network.end()
    assert network.medians() == (1.0, 5 / 400)
    network.add([[[1, 0.0, 2.0, 3.0, 100], [2, 3.0, 4.0, 5.0, 100]]])
    network.end()
    assert network.medians() == (1.5, (5 / 400 + 2 / 200) / 2), "the pause between the two is not transfer"


def test_batches_that_come_at_the_same_time_count_once_and_say_nothing_of_startups():
    network = NetworkTimes(window=10)
    network.add([[[1, 0.0, 1.0, 4.0, 300]]])
    network.add([[[1, 0.0, 4.0, 6.0, 100], [2, 0.0, 3.0, 5.0, 100]], [[1, 10.0, 13.0, 15.0, 100]]])
    network.end()
    assert network.medians() == (2.0, 7 / 600), "of the first and the last batch"


def test_blocks_that_came_with_their_notices_are_not_measured():
    network = NetworkTimes(window=10)
    network.add([[[1, 10.0, 10.0, 10.1, 100]]])
    network.end()
    assert network.medians() is None
    network.add([[[1, 10.0, 10.0, 10.1, 100], [2, 10.0, 12.0, 16.0, 400]]])
    network.end()
    assert network.medians() == (2.0, 4 / 400)


def report(startup: float, per_byte: float, compute: list[float]) -> dict:
    return {"pull": {"startup": startup, "per_byte": per_byte, "compute": compute}}


def test_ranks_agree_on_the_median():
    reports = [report(1, 5, [1, 8]), report(2, 4, [2, 9]), {}, report(9, 1, [3, 1])]
    assert agree(reports, "pull") == DirectionProfile([2, 8], 2, 4)
    assert agree(reports, "push") is None


def test_drift_is_the_largest_change():
    before = DirectionProfile([1.0, 3.0], 0.5, 2.0)
    assert drift(before, before) == 0
    assert drift(before, DirectionProfile([3.0, 1.0], 0.5, 2.0)) == 0, "sums count, single layers scatter"
    assert drift(before, DirectionProfile([2.0, 3.0], 0.5, 1.8)) == 0.25
    assert drift(before, DirectionProfile([1.0, 3.0], 0.2, 2.0)) == 0.6
