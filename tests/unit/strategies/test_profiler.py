"""What ranks measure of their computing, for the planner. NetworkTimesSpec.scala tests what executors measure."""

from sparkdl_comm.strategies.ps.profiler import LayerTimes, Profiler


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
        times.start_layer(0)
        clock.now += 2 * slow
        times.stop()
        clock.now += 7
        times.start_layer(1)
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
            times.record_layer(layer)
        clock.now += seconds
        times.end()
    assert times.medians() == [1, 0, 2]


def test_updates_are_of_a_step():
    clock = Clock()
    profiler = Profiler(1, 9, clock)
    assert profiler.get_times() == {"forward": None, "backward": None, "update": 0.0, "seconds": None}
    for updated in (1.0, 1.5, 2.5):
        profiler.begin_iteration(updated)
        profiler.backward.begin()
        clock.now += 2
        profiler.backward.record_layer(0)
        profiler.backward.end()
    assert profiler.get_times() == {"forward": None, "backward": [2], "update": 0.75, "seconds": 2}


def test_iterations_are_timed_without_those_that_change_batches():
    clock = Clock()
    profiler = Profiler(2, 5, clock)
    assert profiler.get_times()["seconds"] is None
    for taken in [0, 9, 9, 1, 2, 3]:
        clock.now += taken
        profiler.begin_iteration(0.0)
    assert profiler.get_times()["seconds"] == 2
    hasty = Profiler(2, 2, clock)
    for _ in range(9):
        hasty.begin_iteration(0.0)
    assert hasty.get_times()["seconds"] is None, "all of its iterations have batches that change"
