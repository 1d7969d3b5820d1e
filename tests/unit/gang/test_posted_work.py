"""Work that other threads post to a thread that waits for sockets."""

import select
import threading

from sparkdl_comm.gang.posted_work import PostedWork

WAIT_MS = 10_000


def test_the_thread_wakes_and_runs_all_in_order() -> None:
    posted, done, run = PostedWork(), threading.Event(), []
    poll = select.poll()
    poll.register(posted.wake, select.POLLIN)

    def wait_and_run() -> None:
        while not done.is_set() and poll.poll(WAIT_MS):
            posted.drain()
            posted.run()

    thread = threading.Thread(target=wait_and_run)
    thread.start()
    for number in range(3):
        posted.post(lambda number=number: run.append(number))
    posted.post(lambda: posted.post(done.set))  # work may post more
    thread.join(WAIT_MS / 1000)
    assert done.is_set()
    assert run == [0, 1, 2]
    posted.close()


def test_posting_does_not_wait_for_who_does_not_run() -> None:
    posted, run = PostedWork(), []
    many = 20_000  # more than a pair of sockets holds
    for _ in range(many):
        posted.post(lambda: run.append(1))
    posted.run()
    assert len(run) == many
    posted.close()


def test_work_that_comes_after_the_end_is_no_error() -> None:
    posted, run = PostedWork(), []
    posted.close()
    posted.post(lambda: run.append(1))
    assert not run
    assert all(sock.fileno() == -1 for sock in posted.sockets())
