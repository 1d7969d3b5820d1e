"""Settings of a run, read from Spark's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sparkdl_comm.conf.compression import Compression, Schedule
from sparkdl_comm.conf.keys import KEYS, PREFIX
from sparkdl_comm.conf.strategy import NamedStrategy
from sparkdl_comm.errors import ConfError, nearest


@dataclass(frozen=True)
class CommConf:
    """Checked settings of one run. Read them with :meth:`from_mapping`; see :data:`KEYS` for their meaning.

    Times are in seconds. ``ports`` is ``(first, last)``, both included. ``(0, 0)`` means any free port.
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
        """Read the settings from Spark's configuration.

        :param conf: any Spark settings. Those outside :data:`PREFIX` are ignored.
        :param overrides: values by field name that have precedence over ``conf`` (Params of the estimator). None means
            unset.
        :raises ConfError: an unknown key under the prefix (with the nearest known one), an unknown override, or a bad
            value (with key, value and limit).
        """
        known = {key.full for key in KEYS}
        for name in conf:
            if name.startswith(PREFIX) and name not in known:
                raise ConfError(
                    f"unknown key {name}{nearest(name, known) or '.'} Known keys: {', '.join(sorted(known))}"
                )
        fields = {key.field for key in KEYS}
        for name in overrides:
            if name not in fields:
                raise ConfError(f"unknown setting {name}{nearest(name, fields)}")
        values: dict[str, Any] = {}
        implied: dict[str, Any] = {}
        for key in KEYS:
            override = overrides.get(key.field)
            values[key.field] = key.read(conf.get(key.full, key.default) if override is None else as_text(override))
        for field, text in _settings_of_name(values["strategy"]).items():
            key = next(key for key in KEYS if key.field == field)
            is_set = key.full in conf or overrides.get(field) is not None
            if is_set and as_text(values[field]) != text and field != "strategy":
                raise ConfError(
                    f"strategy {values['strategy']!r} stands for {key.full}={text}, but that is set to"
                    f" {as_text(values[field])}: remove one of them"
                )
            implied[field] = key.read(text)
        return cls(**{**values, **implied})


def _settings_of_name(strategy: str) -> dict[str, str]:
    """Return the settings that a strategy's name implies, by field."""
    return {field: text for field, text in asdict(NamedStrategy.parse(strategy)).items() if text}


def as_text(value: object) -> str:
    """Return ``value`` as in Spark's properties: ``true`` for True, ``40000-40100`` for a pair of ports."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return ("-" if isinstance(value[0], int) else ",").join(str(part) for part in value) if value else ""
    return str(value)
