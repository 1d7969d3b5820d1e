"""What ranks measure for the planner."""

from sparkdl_comm.strategies.ps.profiler import LayerTimes, NetworkTimes, Profiler


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
    assert network.medians() == {"startup": 1.0, "per_byte": 5 / 400, "sum": 0}
    network.add([[[1, 0.0, 2.0, 3.0, 100], [2, 3.0, 4.0, 5.0, 100]]])
    network.end()
    found = network.medians()
    assert found is not None
    assert found["startup"] == 1.5
    assert found["per_byte"] == (5 / 400 + 2 / 200) / 2, "the pause between the two is not transfer"


def test_batches_that_come_at_the_same_time_count_once_and_say_nothing_of_startups():
    network = NetworkTimes(window=10)
    network.add([[[1, 0.0, 1.0, 4.0, 300]]])
    network.add([[[1, 0.0, 4.0, 6.0, 100], [2, 0.0, 3.0, 5.0, 100]], [[1, 10.0, 13.0, 15.0, 100]]])
    network.end()
    found = network.medians()
    assert found is not None
    assert (found["startup"], found["per_byte"]) == (2.0, 7 / 600), "of the first and the last batch"


def test_blocks_that_came_with_their_notices_are_not_measured():
    network = NetworkTimes(window=10)
    network.add([[[1, 10.0, 10.0, 10.1, 100]]])
    network.end()
    assert network.medians() is None
    network.add([[[1, 10.0, 10.0, 10.1, 100], [2, 10.0, 12.0, 16.0, 400]]])
    network.end()
    assert network.medians() == {"startup": 2.0, "per_byte": 4 / 400, "sum": 0}


def test_the_gap_is_the_least_time_between_first_bytes_of_one_server():
    network = NetworkTimes(window=10)
    first, second, third = [1, 0.0, 5.0, 6.0, 100], [1, 0.0, 8.0, 9.0, 100], [1, 8.5, 9.0, 10.0, 100]
    elsewhere = [2, 0.0, 5.5, 6.0, 100]
    network.add([[first, elsewhere], [second], [third]])
    network.end()
    found = network.medians()
    assert found is not None
    assert found["gap"] == 3.0, "the third was asked for when the second one had begun, and one came from elsewhere"
    network.add([[[1, 0.0, 2.0, 6.0, 100]], [[1, 0.0, 9.0, 9.5, 100]]])
    network.end()
    found = network.medians()
    assert found is not None
    assert found["gap"] == found["startup"] == 3.5, "no more than a start-up"


def test_sums_and_updates_are_of_a_step():
    clock = Clock()
    profiler = Profiler(1, 9, clock)
    assert profiler.report() == {"pull": None, "push": None, "seconds": None}
    for updated in (1.0, 1.5, 2.5):
        profiler.iteration(updated)
        profiler.backward.begin()
        clock.now += 2
        profiler.backward.was(0)
        profiler.backward.end()
        profiler.pushes.add([[[1, 0.0, 1.0, 4.0, 300]]])
        profiler.pushes.summed(4.0, 4.25)
        profiler.pushes.summed(5.0, 5.5)
        profiler.pushes.end()
    pushes = {"compute": [2], "startup": 1.0, "per_byte": 0.01, "gap": None, "sum": 0.75, "update": 0.75}
    assert profiler.report() == {"pull": None, "push": pushes, "seconds": 2}


def test_iterations_are_timed_without_those_that_change_batches():
    clock = Clock()
    profiler = Profiler(2, 5, clock)
    assert profiler.report()["seconds"] is None
    for taken in [0, 9, 9, 1, 2, 3]:
        clock.now += taken
        profiler.iteration(0.0)
    assert profiler.report()["seconds"] == 2
    hasty = Profiler(2, 2, clock)
    for _ in range(9):
        hasty.iteration(0.0)
    assert hasty.report()["seconds"] is None, "all of its iterations have batches that change"
