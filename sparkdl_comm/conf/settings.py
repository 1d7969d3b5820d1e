"""The settings of a run, read out of Spark's configuration."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from sparkdl_comm.conf.compression import Compression, Schedule
from sparkdl_comm.conf.keys import KEYS, PREFIX
from sparkdl_comm.errors import ConfError


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
    batching: str
    loop: str
    resync: int
    auto_candidates: tuple[str, ...]
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
    fabric_sync: str
    fabric_batch_interval: float
    fabric_momentum: float
    fabric_step_scale: float
    fabric_replica: bool
    fabric_divergence: float
    fabric_aggregators: int
    fabric_replica_aggregators: int
    fabric_link_rate: str
    data_cache: str
    data_cache_limit: int
    data_memory_limit: int
    data_shuffle: str
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
