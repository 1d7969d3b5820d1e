"""Spark jobs of this package on the driver: Ctrl-C while ranks run, and the jobs' description in the Spark UI.

Python raises KeyboardInterrupt at whatever point the main thread waits. If this is inside a call to the JVM, the answer
is still to come, and the next call on that connection would read it. Also, the Spark job would go on. So:

1. Long jobs run in a separate thread (:func:`run_in_thread`), and their caller waits where an interrupt does no harm.
2. The code that starts such jobs cancels them by a :class:`JobTag`. It also closes a connection on which a call was
   interrupted (:func:`cancel_on_interrupt`).
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

#: Exceptions raised when the application has ended, or the JVM or the Connect server is gone. A stopped SparkContext has no
#: ``_jsc``, so its methods raise AttributeError. The JVM of spark-submit itself ends on Ctrl-C.
DISCONNECTED = (Py4JError, PySparkException, AttributeError)


class JobTag:
    """Context that tags the jobs this thread starts inside it, directly or by :func:`run_in_thread`. Any thread can cancel
    them.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._is_classic = is_classic(spark)
        self._tagger: Any = spark.sparkContext if self._is_classic else spark
        self.name = f"sparkdl-{secrets.token_hex(8)}"

    def __enter__(self) -> JobTag:
        (self._tagger.addJobTag if self._is_classic else self._tagger.addTag)(self.name)
        return self

    def __exit__(self, *exc: object) -> None:
        with suppress(*DISCONNECTED):
            (self._tagger.removeJobTag if self._is_classic else self._tagger.removeTag)(self.name)

    def cancel(self) -> None:
        with suppress(*DISCONNECTED):
            (self._tagger.cancelJobsWithTag if self._is_classic else self._tagger.interruptTag)(self.name)


@contextmanager
def cancel_on_interrupt(spark: SparkSession) -> Iterator[None]:
    """Cancel the jobs started in this context, by this thread or :func:`run_in_thread`, if a KeyboardInterrupt leaves the
    context.
    """
    with JobTag(spark) as tag:
        handler = _find_pyspark_handler()
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


def run_in_thread(spark: SparkSession, job: Callable[[], T], check: Callable[[], None]) -> T:
    """Run ``job`` in another thread with this thread's tags, job group and pool, and return its result.

    Stops waiting for the job if this thread is interrupted, or if ``check``, called every second, raises.
    """
    done: Future[T] = Future()
    tags = set() if is_classic(spark) else spark.getTags()

    def run() -> None:
        try:
            for tag in tags:
                spark.addTag(tag)
            done.set_result(job())
        except BaseException as error:  # noqa: BLE001 - raised in the waiting thread
            done.set_exception(error)

    thread_class = InheritableThread if is_classic(spark) else threading.Thread
    thread_class(target=run, name="sparkdl-job", daemon=True).start()
    while not wait([done], CHECK_SECONDS).done:
        check()
    return done.result()


def _find_pyspark_handler() -> Any:
    """Return the SIGINT handler if it is pyspark's, which cancels *all* jobs over a connection that may be in use.

    Returns None if it is another handler, or if this is not the main thread, which alone receives signals.
    """
    if threading.current_thread() is not threading.main_thread():
        return None
    handler = signal.getsignal(signal.SIGINT)
    return handler if getattr(handler, "__module__", "") == SparkContext.__module__ else None


def _drop_connection(traceback: TracebackType | None) -> None:
    """Close this thread's connection to the JVM if ``traceback`` ends inside a call. The next call opens a new one."""
    while traceback is not None:
        if traceback.tb_frame.f_globals.get("__name__") == "py4j.clientserver":
            connection = SparkContext._gateway._gateway_client.get_thread_connection()  # type: ignore[union-attr]
            if connection is not None:
                connection.close()
            return
        traceback = traceback.tb_next


#: Local properties of SparkContext that the UI shows.
_DESCRIPTION, _GROUP = "spark.job.description", "spark.jobGroup.id"
_OWN_GROUP = "sparkdl_comm"


@contextmanager
def describe_jobs(spark: SparkSession, text: str) -> Iterator[None]:
    """Set the description and, unless the user has set one, the group of the jobs that this thread starts in the
    context.

    A description that the user has set precedes ``text``. Spark Connect has neither, so there this does nothing.
    """
    if not is_classic(spark):
        yield
        return
    context = spark.sparkContext
    before = {key: context.getLocalProperty(key) for key in (_DESCRIPTION, _GROUP)}
    users = before[_DESCRIPTION]
    context.setLocalProperty(_DESCRIPTION, f"{users}: {text}" if users else text)
    if before[_GROUP] is None:
        context.setLocalProperty(_GROUP, _OWN_GROUP)
    try:
        yield
    finally:
        with suppress(*DISCONNECTED):
            for key, value in before.items():
                context.setLocalProperty(key, value)  # type: ignore[arg-type]
