"""Settings of a run: one table of the keys ``spark.sparkdl.comm.*`` and the frozen dataclass they are read
into.

The table :data:`KEYS` is the only place where a key, its default, its meaning and its limits are written
down. ``python -m sparkdl_comm.conf`` prints it in Spark's properties format; that text is
``conf/sparkdl-defaults.conf``. To add a key: add a row to the table and a field of the same name to
:class:`CommConf`.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sparkdl_comm.errors import ConfError
from sparkdl_comm.topology import Topology
from sparkdl_comm.units import parse_size

PREFIX = "spark.sparkdl.comm."

_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s|m|min|h|d)?")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, None: 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_RANGE = re.compile(r"(\d+)(-(\d+)?)?")
_PORTS = re.compile(r"(\d+)(?:\s*-\s*(\d+))?")


#: Names of policies; ``fixed:BYTES`` is one more.
POLICIES = ("whole", "layerwise", "greedy1", "greedy2", "ibatch", "optimal")

#: What a schedule is made of.
_SCHEDULE = ("steps", "epochs", "warmup")

#: Names of the operators that select elements of gradients.
COMPRESSIONS = ("mstopk", "topk", "dgc")


@dataclass(frozen=True)
class Key:
    """One row of the table.

    ``name`` is the key without :data:`PREFIX`, ``field`` the attribute of :class:`CommConf`, ``type`` what a
    value looks like (for people), ``default`` its text, ``doc`` one or more sentences. ``parse`` turns a text
    into the value and raises ``ValueError`` saying what is accepted.
    """

    name: str
    field: str
    type: str
    default: str
    doc: str
    parse: Callable[[str], Any]

    @property
    def full(self) -> str:
        return PREFIX + self.name

    def read(self, text: str) -> Any:
        """The value of ``text``; :class:`ConfError` naming key, value and limit if there is none."""
        try:
            return self.parse(text.strip())
        except ValueError as error:
            raise ConfError(f"{self.full}={text!r}: must be {error}") from None


def _text(text: str) -> str:
    return text


def _name(text: str) -> str:
    if not text:
        raise ValueError("a name, not empty")
    return text


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def seconds(text: str) -> float:
    """Seconds, more than 0, in a Spark time string: ``30s``, ``2min``, ``500ms``; a bare number: s."""
    match = _TIME.fullmatch(text.lower())
    value = float(match[1]) * _SECONDS[match[2]] if match else math.nan
    if not value > 0:
        raise ValueError("a time of more than 0, such as 30s, 2min or 500ms (us, ms, s, m, min, h, d; bare number: s)")
    return value


def _port_range(text: str) -> tuple[int, int]:
    match = _PORTS.fullmatch(text)
    first = int(match[1]) if match else -1
    last = int(match[2]) if match and match[2] else first
    if (first, last) != (0, 0) and not 1024 <= first <= last <= 65535:
        raise ValueError("0 (any free port), one port, or a range first-last, within 1024-65535")
    return first, last


def _port(text: str) -> int:
    try:
        first, last = _port_range(text)
    except ValueError:
        first, last = -1, 0
    if first != last:
        raise ValueError("0 (any free port) or one port within 1024-65535")
    return first


def _list(text: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in text.split(",")) if text else ()
    if not all(parts):
        raise ValueError("names separated by commas, none of them empty")
    return parts


def _topology(text: str) -> str:
    if text:
        try:
            Topology.parse(text)
        except ConfError as error:
            raise ValueError(f"a topology: {error.message}") from None
    return text


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ConfError:
        raise ValueError("a number and B, KiB, MiB, GiB, kB, MB or GB, such as 64KiB; 4 bytes at least") from None


def _size_or_0(text: str) -> int:
    return 0 if text == "0" else _size(text)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise ValueError("a whole number of at least 0")
    return int(text)


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError("one of " + ", ".join(choices))
        return text

    return parse


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError("a whole number of at least 1")
    return int(text)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ValueError("a number of at least 0, such as 0.25")
    return value


@dataclass(frozen=True)
class Compression:
    """Of gradients: which operator selects the elements that travel, and what share of them, in (0, 1]. Or ``powersgd``, by
    matrices of ``rank`` columns, of which all elements travel."""

    operator: str
    density: float
    rank: int = 0

    def __str__(self) -> str:
        return f"{self.operator}:{self.rank or f'{self.density:g}'}"


#: Of what compresses where the settings name none.
DEFAULT_COMPRESSION = Compression("mstopk", 0.01)


@dataclass(frozen=True)
class Schedule:
    """In which steps gradients are sparse: those of ``steps`` that are in ``epochs``, from 1, both ends included. For
    ``warmup`` steps from the first of ``steps`` on more travels. ``auto``: only if a trial finds such steps faster."""

    steps: tuple[float, float] = (1, math.inf)
    epochs: tuple[float, float] = (1, math.inf)
    warmup: int = 0
    auto: bool = False

    def __str__(self) -> str:
        ranges = {"steps": self.steps, "epochs": self.epochs}
        parts = [
            f"{name}:{a:g}-{'' if b == math.inf else b}" for name, (a, b) in ranges.items() if (a, b) != (1, math.inf)
        ]
        return ",".join(["auto"] * self.auto + parts + [f"warmup:{self.warmup}"] * bool(self.warmup)) or "always"


def _compression(text: str) -> Compression | None:
    if text == "none":
        return None
    name, _, share = text.partition(":")
    if name == "powersgd" and share.isdecimal() and int(share) >= 1:
        return Compression(name, 1.0, int(share))
    try:
        density = float(share)
    except ValueError:
        density = math.nan
    if name not in COMPRESSIONS or not 0 < density <= 1:
        raise ValueError(
            f"none, or one of {', '.join(COMPRESSIONS)} with the share of elements that travel, more than 0 and at most 1,"
            " such as mstopk:0.01; or powersgd:R, with a rank of at least 1, such as powersgd:4"
        )
    return Compression(name, density)


def _schedule(text: str) -> Schedule:
    found: dict[str, Any] = {}
    for part in text.split(",") if text != "always" else ():
        name, _, value = part.strip().partition(":")
        if part.strip() == "auto" and "auto" not in found:
            found["auto"] = True
            continue
        match = _RANGE.fullmatch(value)
        if name in found or name not in _SCHEDULE or not match or (name == "warmup") != (match[2] is None):
            break
        first, last = int(match[1]), int(match[3] or 0) or math.inf
        found[name] = first if name == "warmup" else (first, last)
        if not 1 <= first <= last:
            break
    else:
        return Schedule(**found)
    raise ValueError(
        "always, or some of auto, steps:A-B, epochs:A-B (from 1; B may be missing) and warmup:STEPS, with commas between"
    )


def _below_1(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1:
        raise ValueError("a number of at least 0 and less than 1")
    return value


def _policy(text: str) -> str:
    """How layers are cut into batches; the planner itself is in the plugin's jar."""
    kind, _, size = text.partition(":")
    if text in POLICIES or (kind == "fixed" and size.isdecimal() and int(size) > 0):
        return text
    raise ValueError(f"one of {', '.join(POLICIES)}, or fixed:BYTES with BYTES of at least 1")


def _policy_or_empty(text: str) -> str:
    return _policy(text) if text else text


KEYS: tuple[Key, ...] = (
    Key(
        "strategy",
        "strategy",
        "name",
        "ps",
        "How gradients and parameters travel. The Param `strategy` overrides it.",
        _name,
    ),
    Key(
        "timeout",
        "timeout",
        "time",
        "5min",
        "How long a rank waits for its peers, in any single wait, before the run fails.",
        seconds,
    ),
    Key(
        "slotTimeout",
        "slot_timeout",
        "time",
        "30s",
        "How long fit waits for executors to register, until there is one slot per worker, and for these slots to\n"
        "become free.",
        seconds,
    ),
    Key(
        "turnTimeout",
        "turn_timeout",
        "time",
        "1d",
        "How long fit waits for other fits of the same application, which hold the slots that it needs.",
        seconds,
    ),
    Key(
        "maxRestarts",
        "max_restarts",
        "number",
        "2",
        "How many times fit starts the ranks again after one was lost with its process, executor or host: from\n"
        "the last checkpoint, or from the beginning without checkpointDir.",
        _count,
    ),
    Key(
        "nic",
        "nic",
        "name or address",
        "",
        "Network interface that ranks listen on, such as eth1, or its address, or its network, such as\n"
        "10.0.1.0/24. Empty: the address that Spark uses.",
        _text,
    ),
    Key(
        "ports",
        "ports",
        "port or range",
        "0",
        "Ports for the executors' listening sockets (ranks, and the plugin): 0 for any free\n"
        "one, or a range such as 40000-40100.",
        _port_range,
    ),
    Key(
        "driver.host",
        "driver_host",
        "name or address",
        "",
        "Name or address by which executors reach the process that calls fit. It listens there, or on\n"
        "spark.driver.bindAddress if that is set; where neither is its own (NAT), on its first NIC. Empty:\n"
        "spark.driver.host; in a Spark Connect client, its address on the way to the server.",
        _text,
    ),
    Key(
        "driver.port",
        "driver_port",
        "port",
        "0",
        "Port on the driver where ranks meet, and progress and the trained model come back to; 0 for any free one.",
        _port,
    ),
    Key(
        "rails",
        "rails",
        "names or addresses",
        "",
        "Network interfaces that collectives use at once, one per rail (level of a BCube), separated by commas,\n"
        "each as in nic. Empty: that of nic, alone.",
        _list,
    ),
    Key(
        "topology",
        "topology",
        "topology",
        "",
        "Shape of the network for collectives, such as bcube:3,2,10gbit, star:9 or hosts:4x2. Empty: what the\n"
        "networks of the rails tell.",
        _topology,
    ),
    Key(
        "collective.block",
        "block",
        "size",
        "0",
        "Bytes per block of collectives that pipeline, such as 64KiB. 0: what the cost model says is best, by links as\n"
        "they were measured: of bml and p2p-ps the order of additions depends on it, and so do the last bits of sums.",
        _size_or_0,
    ),
    Key(
        "collective.bucket",
        "bucket",
        "size",
        "4MiB",
        "Bytes of gradients that a collective reduces at once, at least: so much is there before it begins to\n"
        "travel, while backward goes on.",
        _size,
    ),
    Key(
        "collective.loop",
        "loop",
        "name",
        "all-reduce",
        "What a step with a collective is: all-reduce (gradients are all-reduced, every rank updates), root (they are\n"
        "reduced to rank 0, which updates and broadcasts the parameters), or root-overlap (likewise, and forward uses\n"
        "each layer's parameters as they come). The last two for strategies that reduce and broadcast.",
        _one_of("all-reduce", "root", "root-overlap"),
    ),
    Key(
        "collective.resync",
        "resync",
        "number",
        "0",
        "With collective.loop=all-reduce: broadcast rank 0's parameters after every so many steps, in case that\n"
        "ranks round differently (other processors); 0: never.",
        _count,
    ),
    Key(
        "compression",
        "compression",
        "none|NAME:SHARE|powersgd:RANK",
        "none",
        "Which elements of the gradients travel: all (none), or that share of them that is largest in magnitude, such as\n"
        "mstopk:0.01, in the steps that compression.schedule names; what is left out is added to the next step's gradient.\n"
        "mstopk (by thresholds, reading the gradient as few times as possible), topk (torch.topk), dgc (double sampling).\n"
        "For ps, strategies whose algorithm all-gathers, and hitopk, which takes mstopk:0.01 for none.\n"
        "powersgd:R instead sends gradients as products of two matrices with R columns, by strategies that all-reduce.",
        _compression,
    ),
    Key(
        "compression.schedule",
        "compression_schedule",
        "schedule",
        "always",
        "In which steps gradients are compressed; in others they are dense, and carry what was left out before. always, or\n"
        "steps:A-B, epochs:A-B (from 1; B may be missing), warmup:STEPS (for so many steps from A on more travels: a quarter\n"
        "of the elements, a sixteenth, and so on), auto (not ps: twelve steps are dense and sparse in turn, then all are\n"
        "what was faster), with commas between, such as auto,epochs:1-13,warmup:100.",
        _schedule,
    ),
    Key(
        "compression.values",
        "compression_values",
        "fp32|bf16|fp16",
        "fp32",
        "Number format of compressed gradients on the network; what rounding takes is added to the next step's gradient.",
        _one_of("fp32", "bf16", "fp16"),
    ),
    Key(
        "compression.momentum",
        "compression_momentum",
        "number",
        "0",
        "Momentum correction of compressed gradients: what is left out gathers as an optimizer's momentum does. Then the\n"
        "optimizer itself should have none. 0: none.",
        _below_1,
    ),
    Key(
        "compression.feedback",
        "compression_feedback",
        "true|false",
        "true",
        "Whether what compression leaves out is added to the next step's gradient. false: it is lost, for comparisons; not\n"
        "with compression.momentum.",
        _flag,
    ),
    Key(
        "ps.wire",
        "ps_wire",
        "fp32|bf16|fp16",
        "fp32",
        "Number format of parameters and gradients on the network, strategy ps. Sums are made in fp32.",
        _one_of("fp32", "bf16", "fp16"),
    ),
    Key(
        "ps.sharedMemory",
        "ps_shared_memory",
        "true|false",
        "true",
        "Executors of one host read each other's parameters and gradients from memory, not by TCP, strategy ps. Where\n"
        "they cannot, as in containers of their own, they use TCP all the same.",
        _flag,
    ),
    Key(
        "ps.batching",
        "ps_batching",
        "policy",
        "whole",
        "How layers are cut into batches of parameters that are pulled while the batch before is computed,\n"
        "strategy ps: whole (one), layerwise, greedy1, greedy2, ibatch (the better one of the two greedy plans; if pushes\n"
        "are ibatch too, the best that is found for both together, unless whole or layerwise turns out to be faster),\n"
        "optimal (the plan that takes least, of one direction alone), or fixed:BYTES (as many layers as fit, at least one).",
        _policy,
    ),
    Key(
        "ps.pushBatching",
        "ps_push_batching",
        "policy",
        "",
        "Likewise, batches of gradients that are pushed while backward goes on. Empty: as ps.batching. If neither is\n"
        "whole, parameters of the next step arrive while backward goes on, in memory of their own: once more as much as\n"
        "the model takes, and what the executor updates of it.",
        _policy_or_empty,
    ),
    Key(
        "ps.profileIterations",
        "ps_profile_iterations",
        "number",
        "10",
        "Iterations that are measured before the first plan of greedy1, greedy2, ibatch or optimal; until then there\n"
        "is one batch. If ibatch planned both directions, its plan and then layerwise are used for as many iterations each,\n"
        "to see which is the fastest (not if these are less than 3). Every tenth such period the ranks compare what they\n"
        "measure with what they planned for.",
        _positive,
    ),
    Key(
        "ps.replanDrift",
        "ps_replan_drift",
        "number",
        "0.25",
        "Plan again when computation, start-up or transfer took that share more or less than planned for.",
        _share,
    ),
    Key(
        "data.cache",
        "data_cache",
        "memory|disk",
        "memory",
        "Where each rank keeps its rows: in memory, or as an Arrow file in its executor's local directory, of which the\n"
        "system keeps in memory what fits. On the disk, neither the rows as they come nor those kept need fit into memory;\n"
        "while they come they take their space twice. If the disk cannot take them, they are kept in memory. The next fit\n"
        "of the same application on the same files finds them on the disk.",
        _one_of("memory", "disk"),
    ),
    Key(
        "data.cacheLimit",
        "data_cache_limit",
        "bytes",
        "100GiB",
        "How much an executor's ranks may keep on its disk, all fits together; what was not used for the longest time is\n"
        "removed. 5% of the disk stay free in any case.",
        _size,
    ),
    Key(
        "timeline",
        "timeline",
        "count",
        "0",
        "How many of the last iterations of a run are traced, on all ranks, for model.timeline(). 0: none, at no cost.",
        _count,
    ),
    Key(
        "progress",
        "progress",
        "true|false",
        "true",
        "Show a progress bar on the driver while fit runs.",
        _flag,
    ),
    Key(
        "logs",
        "logs",
        "true|false",
        "true",
        "Show on the driver what rank 0 prints, as it comes; of more than 100 lines in a quarter of a second\n"
        "the last.",
        _flag,
    ),
)


@dataclass(frozen=True)
class CommConf:
    """The settings of one run, checked. Read them with :meth:`from_mapping`; see :data:`KEYS` for their
    meaning.

    Times are in seconds. ``ports`` is ``(first, last)``, both included; ``(0, 0)`` means any free port.
    """

    strategy: str
    timeout: float
    slot_timeout: float
    turn_timeout: float
    max_restarts: int
    nic: str
    ports: tuple[int, int]
    driver_host: str
    driver_port: int
    rails: tuple[str, ...]
    topology: str
    block: int
    bucket: int
    loop: str
    resync: int
    compression: Compression | None
    compression_schedule: Schedule
    compression_values: str
    compression_momentum: float
    compression_feedback: bool
    ps_wire: str
    ps_shared_memory: bool
    ps_batching: str
    ps_push_batching: str
    ps_profile_iterations: int
    ps_replan_drift: float
    data_cache: str
    data_cache_limit: int
    timeline: int
    progress: bool
    logs: bool

    @classmethod
    def from_mapping(cls, conf: Mapping[str, str], **overrides: object) -> CommConf:
        """Read the settings out of Spark's configuration.

        :param conf: any Spark settings; those outside :data:`PREFIX` are ignored.
        :param overrides: values by field name that win over ``conf`` (a Param of the estimator); None means
            unset.
        :raises ConfError: an unknown key under the prefix (names the nearest known one), an unknown override,
            or a bad value (names key, value and limit).
        """
        known = {key.full for key in KEYS}
        for name in conf:
            if name.startswith(PREFIX) and name not in known:
                raise ConfError(f"unknown key {name}{_nearest(name, known)}. Known keys: {', '.join(sorted(known))}")
        fields = {key.field for key in KEYS}
        for name in overrides:
            if name not in fields:
                raise ConfError(f"unknown setting {name}{_nearest(name, fields)}")
        values = {}
        for key in KEYS:
            override = overrides.get(key.field)
            values[key.field] = key.read(conf.get(key.full, key.default) if override is None else as_text(override))
        return cls(**values)


def as_text(value: object) -> str:
    """``value`` as Spark's properties have it: ``true`` for True, ``40000-40100`` for a pair of ports."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return ("-" if isinstance(value[0], int) else ",").join(str(part) for part in value) if value else ""
    return str(value)


def _nearest(name: str, known: set[str]) -> str:
    match = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.0)
    return f"; did you mean {match[0]}?" if match else ""


def defaults_file() -> str:
    """The text of ``conf/sparkdl-defaults.conf``: every key, commented out, with meaning and default."""
    lines = [
        "# Keys of sparkdl_comm with their defaults, in the format of spark-defaults.conf.",
        "# Generated by `python -m sparkdl_comm.conf`; a test compares this file with the code.",
    ]
    for key in KEYS:
        lines += ["", *(f"# {line}" for line in key.doc.split("\n"))]
        lines += [
            f"# Type: {key.type}. Default: {key.default or '(empty)'}.",
            f"# {key.full} {key.default}".rstrip(),
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(defaults_file(), end="")
