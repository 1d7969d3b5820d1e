"""Settings of a run, read from Spark's configuration."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from sparkdl_comm.conf import forms
from sparkdl_comm.conf.forms import PREFIX, declare, keys_of
from sparkdl_comm.conf.groups import (
    AutoConf,
    CollectiveConf,
    CompressionConf,
    DataConf,
    DriverConf,
    FabricConf,
    PsConf,
)
from sparkdl_comm.conf.strategy import NamedStrategy, strategy_name
from sparkdl_comm.errors import ConfError, nearest


@dataclass(frozen=True)
class CommConf:
    """Checked settings of one run. Read them with :meth:`from_mapping`; see :data:`KEYS` for their meaning.

    Times are in seconds. ``ports`` is ``(first, last)``, both included. ``(0, 0)`` means any free port.
    """

    strategy: str = declare(
        "ps",
        strategy_name,
        "How gradients and parameters are exchanged: ps, auto, gloo, nccl, hitopk, fabric, or a collective (ring, bml, "
        "lp, be, mst, torus2d, hierarchical, p2p-ps, tree, cheapest); not set: ps where the plugin is loaded, the "
        "model has two million parameters or more, and ps accepts optimizer, compression and layers, else ring. The "
        "size does not count if a key of ps is set. The Param `strategy` overrides this key. NAME+LOOP stands for a "
        "collective with collective.loop=LOOP. NAME+decoupled+ibatch also sets collective.batching=ibatch. "
        "ps+BATCHING sets ps.batching.",
        is_chosen=True,
    )
    timeout: float = declare(
        "5min", forms.seconds, "How long a rank waits for its peers, in any single wait, before the run fails."
    )
    slot_timeout: float = declare(
        "30s",
        forms.seconds,
        "How long fit waits for executors to register, and then for its tasks to start in slots that no other job "
        "holds. It needs one slot per worker, or all requested executors if the number of workers is not set. Then it "
        "raises SlotsError.",
    )
    turn_timeout: float = declare(
        "1d",
        forms.seconds,
        "How long fit waits for other fits (then DeadlineError), or other jobs (then SlotsError), of the same "
        "application that hold the slots it needs.",
    )
    max_restarts: int = declare(
        "2",
        forms.count,
        "How many times fit restarts the ranks after one was lost with its process, executor or host. It restarts "
        "from the last checkpoint, or without checkpointDir from the beginning.",
    )
    nic: str = declare(
        "",
        forms.address,
        "Network interface (such as eth1), its address or its network (such as 10.0.1.0/24) for all that ranks send each "
        "other, except the data of strategy ps. Collectives and fabric use rails instead, if set. ps sends parameters and "
        "gradients between the executors' JVMs, over the address that Spark uses (SPARK_LOCAL_IP). Empty: this address "
        "for all strategies.",
    )
    ports: tuple[int, int] = declare(
        "0",
        forms.port_range,
        "Ports for the executors' listening sockets (ranks, and the plugin), such as 40000-40100. 0: any free port.",
    )
    driver: DriverConf = DriverConf()
    rails: tuple[str, ...] = declare(
        "",
        forms.names,
        "Network interfaces that collectives use at once, such as eth1,eth2: one per rail (level of a BCube). Each is "
        "written as in nic. Empty: only the interface of nic.",
    )
    topology: str = declare(
        "",
        forms.topology,
        "Shape of the network for collectives, such as bcube:3,2,10gbit, star:9 or hosts:4x2. Empty: derived from the "
        "networks of the rails.",
    )
    collective: CollectiveConf = CollectiveConf()
    auto: AutoConf = AutoConf()
    compression: CompressionConf = CompressionConf()
    ps: PsConf = PsConf()
    fabric: FabricConf = FabricConf()
    data: DataConf = DataConf()
    timeline: int = declare(
        "0",
        forms.count,
        "How many of the last iterations of a run are traced, on all ranks, for model.timeline(), such as 5. 0: none, "
        "without any cost.",
    )
    progress: bool = declare("true", forms.flag, "Show a progress bar on the driver while fit runs.")
    logs: bool = declare(
        "true",
        forms.flag,
        "Whether the driver shows what rank 0 prints, as it arrives. Of more than 100 lines in a quarter of a second "
        "it shows only the last 100.",
    )

    @classmethod
    def from_mapping(cls, conf: Mapping[str, str], **overrides: object) -> CommConf:
        """Read the settings from Spark's configuration.

        :param conf: any Spark settings. Those outside :data:`PREFIX` are ignored.
        :param overrides: values by :attr:`~sparkdl_comm.conf.forms.Key.argument` that have precedence over ``conf`` (Params of
            the estimator). None means unset.
        :raises ConfError: an unknown key under the prefix (with the nearest known one), an unknown override, or a bad
            value (with key, value and limit).
        """
        known = {key.full for key in KEYS}
        for name in conf:
            if name.startswith(PREFIX) and name not in known:
                raise ConfError(
                    f"unknown key {name}{nearest(name, known) or '.'} Known keys: {', '.join(sorted(known))}"
                )
        keys = {key.argument: key for key in KEYS}
        for name in overrides:
            if name not in keys:
                raise ConfError(f"unknown setting {name}{nearest(name, keys)}")
        found: dict[str, Any] = {}
        for argument, key in keys.items():
            override = overrides.get(argument)
            found[argument] = key.read(conf.get(key.full, key.default) if override is None else as_text(override))
        strategy = found["strategy"]
        for argument, text in asdict(NamedStrategy.parse(strategy)).items():
            key = keys[argument]
            is_set = key.full in conf or overrides.get(argument) is not None
            if text and is_set and as_text(found[argument]) != text and argument != "strategy":
                raise ConfError(
                    f"strategy {strategy!r} stands for {key.full}={text}, but that is set to"
                    f" {as_text(found[argument])}: remove one of them"
                )
            found[argument] = key.read(text) if text else found[argument]
        groups: dict[str, dict[str, Any]] = defaultdict(dict)
        for argument, key in keys.items():
            groups[key.group][key.field] = found[argument]
        own = groups.pop("")
        return cls(**own, **{group: replace(getattr(cls, group), **fields) for group, fields in groups.items()})


#: All keys.
KEYS = tuple(keys_of(CommConf))


def as_text(value: object) -> str:
    """Return ``value`` as in Spark's properties: ``true`` for True, ``40000-40100`` for a pair of ports."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return ("-" if isinstance(value[0], int) else ",").join(str(part) for part in value) if value else ""
    return str(value)
