"""Ctrl-C on the driver while ranks run.

Python raises KeyboardInterrupt in the middle of whatever the main thread waits for. Left like this, a call to the JVM has its
answer still to come, and the next call on that connection would read it; and the job goes on. So:

1. Jobs that take long run in a thread of their own (:func:`in_thread`), and their caller waits where it can be interrupted.
2. Whoever started them cancels them, by a :class:`JobTag`, and throws a connection away on which a call was interrupted
   (:func:`interruptible`).
"""

from __future__ import annotations

import secrets
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, TypeVar

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import InheritableThread, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sparkdl_comm.job.driver_listener import CHECK_SECONDS
from sparkdl_comm.job.session import is_classic

T = TypeVar("T")

#: What is raised when the JVM is gone, or the server: spark-submit's ends on Ctrl-C itself.
_GONE = (Py4JError, PySparkException)


class JobTag:
    """A context: the jobs that this thread starts inside it, also by :func:`in_thread`, can be cancelled from any thread."""

    def __init__(self, spark: SparkSession) -> None:
        self._classic = is_classic(spark)
        self._tags: Any = spark.sparkContext if self._classic else spark
        self.name = f"sparkdl-{secrets.token_hex(8)}"

    def __enter__(self) -> JobTag:
        (self._tags.addJobTag if self._classic else self._tags.addTag)(self.name)
        return self

    def __exit__(self, *exc: object) -> None:
        with suppress(*_GONE):
            (self._tags.removeJobTag if self._classic else self._tags.removeTag)(self.name)

    def cancel(self) -> None:
        with suppress(*_GONE):
            (self._tags.cancelJobsWithTag if self._classic else self._tags.interruptTag)(self.name)


@contextmanager
def interruptible(spark: SparkSession) -> Iterator[None]:
    """Cancels the jobs started in here, in this thread or by :func:`in_thread`, when KeyboardInterrupt comes out."""
    with JobTag(spark) as tag:
        handler = _calls_the_jvm()
        if handler is not None:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            yield
        except BaseException as error:
            if not isinstance(error, Exception):
                _drop_connection(error.__traceback__)
                tag.cancel()
            raise
        finally:
            if handler is not None:
                signal.signal(signal.SIGINT, handler)


def in_thread(spark: SparkSession, job: Callable[[], T], check: Callable[[], None]) -> T:
    """``job()``, in a thread that has the tags, job group and pool of this one. It is not waited for any more when this one is
    interrupted, or when ``check``, which is called every second, raises."""
    done: Future[T] = Future()
    tags = set() if is_classic(spark) else spark.getTags()

    def run() -> None:
        try:
            for tag in tags:
                spark.addTag(tag)
            done.set_result(job())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            done.set_exception(error)

    kind = InheritableThread if is_classic(spark) else threading.Thread
    kind(target=run, name="sparkdl-job", daemon=True).start()
    while not wait([done], CHECK_SECONDS).done:
        check()
    return done.result()


def _calls_the_jvm() -> Any:
    """The handler of SIGINT, if it is the one that pyspark sets: it cancels *all* jobs, through the connection that may be in
    the middle of a call. None: it is another, or this is not the thread that signals interrupt."""
    if threading.current_thread() is not threading.main_thread():
        return None
    handler = signal.getsignal(signal.SIGINT)
    return handler if getattr(handler, "__module__", "") == SparkContext.__module__ else None


def _drop_connection(traceback: TracebackType | None) -> None:
    """Close this thread's connection to the JVM if ``traceback`` ends inside of a call; the next call makes a new one."""
    while traceback is not None:
        if traceback.tb_frame.f_globals.get("__name__") == "py4j.clientserver":
            connection = SparkContext._gateway._gateway_client.get_thread_connection()  # type: ignore[union-attr]
            if connection is not None:
                connection.close()
            return
        traceback = traceback.tb_next
