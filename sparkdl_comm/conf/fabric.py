"""Keys of strategy ``fabric``, and the parsers of their values."""

from __future__ import annotations

import re

from sparkdl_comm.conf import values
from sparkdl_comm.conf.key import Key
from sparkdl_comm.errors import ConfError
from sparkdl_comm.units import parse_rate

_SYNC = re.compile(r"bsp|ssp:\d+|async:0*[1-9]\d*")


def sync(text: str) -> str:
    if not _SYNC.fullmatch(text):
        raise ValueError("bsp, ssp:K with K at least 0, or async:TAU with TAU at least 1")
    return text


def interval(text: str) -> float:
    value = values.seconds(text)
    # With a shorter interval, the scheduler would use all of its time for decisions.
    if value < 0.001:
        raise ValueError("1ms at least")
    return value


def rate(text: str) -> str:
    try:
        parse_rate(text)
    except ConfError:
        raise ValueError("a rate such as 10gbit or 200mbit") from None
    return text


def positive_or_inf(text: str) -> float:
    value = values.number(text)
    if not value > 0:
        raise ValueError("a number above 0, or inf")
    return value


FABRIC_KEYS: tuple[Key, ...] = (
    Key(
        "fabric.sync",
        "fabric_sync",
        "bsp|ssp:K|async:TAU",
        "async:30",
        "How far workers of strategy fabric may be apart. async:TAU: no worker waits. No update is applied to a model\n"
        "that has had more than TAU updates, itself included, since the version that it was computed from. ssp:K: no\n"
        "worker is more than K iterations ahead of the slowest. bsp: all updates of an iteration are applied before\n"
        "the next iteration begins.",
        sync,
    ),
    Key(
        "fabric.batchInterval",
        "fabric_batch_interval",
        "time",
        "100ms",
        "Interval at which the fabric's scheduler decides on new updates. If a link of the server is idle, it decides\n"
        "at once. At least 1ms.",
        interval,
    ),
    Key(
        "fabric.momentum",
        "fabric_momentum",
        "number",
        "0",
        "Momentum of SGD at the fabric's server. If it is set, the optimizer itself should have no momentum.",
        values.fraction_below_1,
    ),
    Key(
        "fabric.stepScale",
        "fabric_step_scale",
        "number",
        "0",
        "C of the fabric's delay-adaptive step size. The model's update number T, with a delay of D updates, is\n"
        "multiplied by C/sqrt(T+D). 0: updates are applied unscaled.",
        values.non_negative,
    ),
    Key(
        "fabric.replica",
        "fabric_replica",
        "true|false",
        "false",
        "Whether the fabric's server, which runs beside rank 0, has a replica beside rank 1. The replica takes over\n"
        "if the server's process is lost. Not with fabric.sync=bsp.",
        values.flag,
    ),
    Key(
        "fabric.divergence",
        "fabric_divergence",
        "number",
        "inf",
        "Limit of the L2 norm of the difference between the models of the fabric's server and replica. The larger the\n"
        "limit, the fewer and larger are the sums of updates that the replica gets, up to eight updates per worker in\n"
        "a sum. inf: the replica gets what the network has room for.",
        positive_or_inf,
    ),
    Key(
        "fabric.aggregators",
        "fabric_aggregators",
        "number",
        "1",
        "Number of aggregator processes that each worker of the fabric starts on its host.",
        values.count,
    ),
    Key(
        "fabric.replicaAggregators",
        "fabric_replica_aggregators",
        "number",
        "1",
        "How many of all aggregators of the fabric work for the replica, if there is one.",
        values.count,
    ),
    Key(
        "fabric.linkRate",
        "fabric_link_rate",
        "rate",
        "10gbit",
        "Assumed rate of a host's links in each direction, unless the system reports less. The fabric uses it until\n"
        "transfers have shown the real rate.",
        rate,
    ),
)
