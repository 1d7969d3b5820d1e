"""The keys of strategy ``fabric``, and what their texts say."""

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
    # More often, the scheduler would do nothing but decide.
    if value < 0.001:
        raise ValueError("1ms at least")
    return value


def rate(text: str) -> str:
    try:
        parse_rate(text)
    except ConfError:
        raise ValueError("a rate such as 10gbit or 200mbit") from None
    return text


def above_0(text: str) -> float:
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
        "How far workers of strategy fabric may be apart. async:TAU: nobody waits, and no update is applied to a model that\n"
        "has had more than TAU updates, itself included, since the version it was computed from. ssp:K: nobody is more than\n"
        "K iterations ahead of the slowest. bsp: everybody's update of an iteration before the next one begins.",
        sync,
    ),
    Key(
        "fabric.batchInterval",
        "fabric_batch_interval",
        "time",
        "100ms",
        "How often the fabric's scheduler decides on what has come meanwhile. Where a link of the server is idle it does so\n"
        "at once. 1ms at least.",
        interval,
    ),
    Key(
        "fabric.momentum",
        "fabric_momentum",
        "number",
        "0",
        "Momentum of SGD at the fabric's server. Then the optimizer itself should have none.",
        values.below_1,
    ),
    Key(
        "fabric.stepScale",
        "fabric_step_scale",
        "number",
        "0",
        "C of the fabric's delay-adaptive step size: an update that was delayed by D, and is the model's Tth, is multiplied\n"
        "by C/sqrt(T+D). 0: updates are applied as the optimizer made them.",
        values.share,
    ),
    Key(
        "fabric.replica",
        "fabric_replica",
        "true|false",
        "false",
        "Whether the fabric's server, which is beside rank 0, has a replica beside rank 1, which takes over if the server's\n"
        "process is lost. Not with fabric.sync=bsp.",
        values.flag,
    ),
    Key(
        "fabric.divergence",
        "fabric_divergence",
        "number",
        "inf",
        "The most that the L2 norm of the difference between the models of the fabric's server and replica may be: the replica"
        " gets updates in fewer and larger sums the larger it is, up to eight updates for each worker. inf: it gets what the"
        " network leaves room for.",
        above_0,
    ),
    Key(
        "fabric.aggregators",
        "fabric_aggregators",
        "number",
        "1",
        "Aggregators that each worker of the fabric starts beside itself, each a process.",
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
        "What the fabric takes a host's links to carry in each direction, unless the system says less, until transfers\n"
        "show.",
        rate,
    ),
)
