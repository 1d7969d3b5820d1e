"""Groups of keys. A key ``spark.sparkdl.comm.GROUP.NAME`` is a field of its group's dataclass."""

from __future__ import annotations

from dataclasses import dataclass

from sparkdl_comm.conf import forms
from sparkdl_comm.conf.compression import Compression, CompressionSchedule, parse_compression, parse_schedule
from sparkdl_comm.conf.forms import declare
from sparkdl_comm.conf.strategy import IBATCH, OTHER_LOOPS


@dataclass(frozen=True)
class DriverConf:
    """How executors reach the process that calls fit: ``spark.sparkdl.comm.driver.*``."""

    host: str = declare(
        "",
        forms.address,
        "Name or address by which executors reach the process that calls fit, such as driver.example.com. The process "
        "listens there, or on spark.driver.bindAddress if that is set. If neither belongs to this host (NAT), it "
        "listens on its first NIC. Empty: spark.driver.host. In a Spark Connect client, empty means the client's "
        "address towards the server.",
    )
    port: int = declare(
        "0",
        forms.port,
        "Port on the driver for the ranks' rendezvous, progress and the trained model, such as 40200. 0: any free port.",
    )


@dataclass(frozen=True)
class CollectiveConf:
    """Collectives: ``spark.sparkdl.comm.collective.*``. ``block`` and ``bucket`` are in bytes."""

    block: int = declare(
        "0",
        forms.size_or_0,
        "Bytes per block of pipelined collectives, such as 64KiB. 0: the best size by the cost model and the measured "
        "links. The size of the blocks determines the order of additions in bml and p2p-ps, and so the last bits of "
        "their sums.",
    )
    bucket: int = declare(
        "4MiB",
        forms.size,
        "Least number of bytes of gradients that a collective reduces at once. A bucket is sent as soon as it has as "
        "many, while backward goes on.",
    )
    batching: str = declare(
        "fixed",
        forms.one_of("fixed", IBATCH),
        "How layers are cut into buckets, with collective.loop=decoupled: fixed (by collective.bucket), or ibatch. "
        "With ibatch a fit begins with fixed buckets, and measures. iBatch's planner, which needs Java but not the "
        "plugin, makes plans from that. If the best plan is predicted to be faster than fixed, it is tried, and stays "
        "if it is. The outcome depends on times, and other buckets add up in another order. So two fits with one seed "
        "may differ by rounding.",
    )
    loop: str = declare(
        "all-reduce",
        forms.one_of("all-reduce", *OTHER_LOOPS),
        "What a step with a collective does. all-reduce: gradients are all-reduced, and every rank updates all "
        "parameters. decoupled: gradients are reduce-scattered, every rank updates its shard, and parameters are "
        "all-gathered during forward. Not for cheapest, nor with a compression. auto tries it by itself. root: "
        "gradients are reduced to rank 0, which updates and broadcasts the parameters. root-overlap: the same, but "
        "the broadcast overlaps with forward. The last two need a strategy that reduces and broadcasts.",
    )
    shared_memory: bool = declare(
        "true",
        forms.flag,
        "Whether ranks of one host read messages of 512 KiB or more from each other's memory, not over TCP. If the "
        "system does not allow it, for example in separate containers, they use TCP.",
    )
    resync: int = declare(
        "0",
        forms.count,
        "With collective.loop=all-reduce: number of steps, such as 1000, after which rank 0's parameters are "
        "broadcast again, in case ranks with different processors round differently. 0: never.",
    )


@dataclass(frozen=True)
class AutoConf:
    """Strategy ``auto``: ``spark.sparkdl.comm.auto.*``."""

    candidates: tuple[str, ...] = declare(
        "",
        forms.names,
        "Strategies among which auto chooses, such as ring,ring+decoupled,ps+whole. Possible names: collectives that "
        "all-reduce, alone or with +decoupled; cheapest (for each bucket the cheapest collective, by measured links); "
        "ps+BATCHING. With a compression: cheapest, hitopk and ps+BATCHING. A name with +decoupled+ibatch cuts "
        "buckets as with collective.batching=ibatch. Empty: all that can run, but without +decoupled+ibatch. Of ps, "
        "these are ps+whole, ps+layerwise and ps+ibatch, or only the value of ps.batching if that is not ibatch.",
    )


@dataclass(frozen=True)
class CompressionConf:
    """Compression of gradients: ``spark.sparkdl.comm.compression``, which is ``method``, and
    ``spark.sparkdl.comm.compression.*``.
    """

    method: Compression | None = declare(
        "none",
        parse_compression,
        "Which elements of the gradients are sent: all (none), or a share of them with the largest magnitudes, such "
        "as exact:0.01, in the steps of compression.schedule. What is left out is added to the next step's gradient. "
        "exact reads the gradient as few times as possible. mstopk is approximate: CommLib's search for two "
        "thresholds, in up to 30 passes. topk is torch.topk. dgc uses double sampling. For ps, strategies with an "
        "algorithm that all-gathers, and hitopk, which uses exact:0.01 for none. powersgd:R sends gradients as "
        "products of two matrices with R columns instead, by collectives that all-reduce (not gloo, ps and hitopk).",
        is_group=True,
    )
    schedule: CompressionSchedule = declare(
        "always",
        parse_schedule,
        "In which steps gradients are compressed. Other steps send dense gradients, plus what was left out before. "
        "always, or a list of these, separated by commas, such as auto,epochs:1-13,warmup:100. steps:A-B and "
        "epochs:A-B count from 1, and B may be missing. warmup:STEPS sends more in so many steps from A on: a quarter "
        "of the elements, then a sixteenth, and so on. auto (not with ps) alternates dense and compressed steps for "
        "sixteen steps, and continues with the faster kind. It tries again after 100 steps or more.",
    )
    values: str = declare(
        "fp32",
        forms.one_of("fp32", "bf16", "fp16"),
        "Number format of compressed gradients on the network. The rounding error is added to the next step's "
        "gradient.",
    )
    momentum: float = declare(
        "0",
        forms.fraction_below_1,
        "Momentum correction of compressed gradients, such as 0.9. What is left out accumulates with this momentum, "
        "as in an optimizer, at the learning rate of its step. The optimizer should then be SGD without momentum. 0: "
        "none.",
    )
    feedback: bool = declare(
        "true",
        forms.flag,
        "Whether what compression leaves out is added to the next step's gradient. false: it is lost, for "
        "comparisons. Not with compression.momentum.",
    )


@dataclass(frozen=True)
class PsConf:
    """Strategy ``ps``: ``spark.sparkdl.comm.ps.*``."""

    wire: str = declare(
        "fp32",
        forms.one_of("fp32", "bf16", "fp16"),
        "Number format of parameters and gradients on the network, strategy ps. Sums are computed in fp32.",
    )
    shared_memory: bool = declare(
        "true",
        forms.flag,
        "Whether executors of one host read each other's parameters and gradients from memory, not over TCP, strategy "
        "ps. If they cannot, for example in separate containers, they use TCP.",
    )
    batching: str = declare(
        "ibatch",
        forms.policy,
        "How layers are cut into batches of parameters for pulls, strategy ps. A batch is pulled while the one before "
        "is computed. whole: one batch. layerwise: one per layer. greedy1 and greedy2: iBatch's greedy plans. ibatch: "
        "the better one of these. If pushes are ibatch too, it is the best plan found for both together, unless "
        "whole, layerwise or, with many layers, parts:24 turn out to be faster. It is then whole if the plan is "
        "predicted to save less than 3 % of a step or, in fits of PyTorch, if memory is short. With maxGradNorm, "
        "precision=fp16 or an optimizer that is not torch's each direction has a plan of its own, and nothing is "
        "tried. paper, as iBatch's paper measured: the better greedy plan for pulls, each batch requested when the one "
        "before has arrived, and all gradients pushed at once. paper-layerwise, the paper's baseline: the same with "
        "one batch per layer. optimal: the fastest plan for one direction alone. parts:COUNT: parts that take about "
        "equally long to transfer, the first one cut once more. fixed:BYTES: as many layers as fit, at least one.",
    )
    push_batching: str = declare(
        "",
        forms.push_policy,
        "How layers are cut into batches of gradients for pushes, strategy ps. A batch is pushed while backward goes "
        "on. Empty: as ps.batching, and with paper and paper-layerwise one batch. If neither direction is whole, "
        "parameters of the next step arrive while backward goes on, except with maxGradNorm, precision=fp16 or an "
        "optimizer that is not torch's. This needs memory for a second copy of the model, and of the part that the "
        "executor updates.",
    )
    profile_iterations: int = declare(
        "10",
        forms.iterations,
        "Iterations to measure before the first plan of greedy1, greedy2, ibatch, optimal or parts. Until then there "
        "is one batch. If ibatch planned both directions together, its plan and others are then tried for five "
        "iterations each, and the fastest stays. The others are layerwise, with many layers parts:24, and whole for "
        "small models, whose blocks are fetched only for the profile. What is predicted to take more than 1.3 times as "
        "long as the plan is not tried. If the plan loses, a second one is made from its measurement, and tried. With "
        "fewer than 3 iterations nothing is tried. In every tenth such period the ranks compare their measurements "
        "with the plan.",
    )
    replan_drift: float = declare(
        "0.25",
        forms.non_negative,
        "Relative change of computation, start-up or transfer time, compared with the plan, that leads to a new plan.",
    )


@dataclass(frozen=True)
class FabricConf:
    """Strategy ``fabric``: ``spark.sparkdl.comm.fabric.*``. ``batch_interval`` is in seconds."""

    sync: str = declare(
        "async:30",
        forms.sync,
        "How far workers of strategy fabric may be apart. async:TAU: no worker waits. No update is applied to a model "
        "that has had more than TAU updates, itself included, since the version that it was computed from. ssp:K: no "
        "worker is more than K iterations ahead of the slowest. bsp: all updates of an iteration are applied before "
        "the next iteration begins.",
    )
    batch_interval: float = declare(
        "100ms",
        forms.interval,
        "Interval at which the fabric's scheduler decides on new updates. If a link of the server is idle, it decides "
        "at once. At least 1ms.",
    )
    momentum: float = declare(
        "0",
        forms.fraction_below_1,
        "Momentum of SGD at the fabric's server, such as 0.9. If it is set, the optimizer itself should have no momentum.",
    )
    step_scale: float = declare(
        "0",
        forms.non_negative,
        "C of the fabric's delay-adaptive step size, such as 2. The model's update number T, with a delay of D "
        "updates, is multiplied by C/sqrt(T+D). 0: updates are applied unscaled.",
    )
    replica: bool = declare(
        "false",
        forms.flag,
        "Whether the fabric's server, which runs beside rank 0, has a replica beside rank 1. The replica takes over "
        "if the server's process is lost. Not with fabric.sync=bsp.",
    )
    divergence: float = declare(
        "inf",
        forms.positive_or_inf,
        "Limit of the L2 norm of the difference between the models of the fabric's server and replica, such as 1. The "
        "larger the limit, the fewer and larger are the sums of updates that the replica gets, up to eight updates "
        "per worker in a sum. inf: the replica gets what the network has room for.",
    )
    aggregators: int = declare(
        "1", forms.count, "Number of aggregator processes that each worker of the fabric starts on its host."
    )
    replica_aggregators: int = declare(
        "1", forms.count, "How many of all aggregators of the fabric work for the replica, if there is one."
    )
    link_rate: str = declare(
        "10gbit",
        forms.rate,
        "Assumed rate of a host's links in each direction, unless the system reports less. The fabric uses it until "
        "transfers have shown the real rate.",
    )


@dataclass(frozen=True)
class DataConf:
    """Rows of the ranks: ``spark.sparkdl.comm.data.*``. Limits are in bytes."""

    cache: str = declare(
        "memory",
        forms.one_of("memory", "disk"),
        "Where each rank keeps its rows: in memory, or as an Arrow file in its executor's local directory. Of this "
        "file, the system keeps in memory what fits. So with disk, neither the arriving rows nor the kept rows need "
        "to fit into memory. While rows arrive, they take twice their space on the disk. If the disk has no room, "
        "rows are kept in memory.",
    )
    cache_name: str = declare(
        "",
        forms.cache_name,
        "Cache in which ranks keep their rows for later fits and applications, such as digits, on disk even with "
        "data.cache=memory. A fit that finds the cache takes its rows from there, and reads only what it needs to "
        "count the rows and to hash the labels. It refuses a cache with other columns, decode, labels, or numbers of "
        "rows and ranks. {rows} in the name stands for a hash of all rows, which reads them all. Empty: no cache.",
    )
    cache_dir: str = declare(
        "~/.cache/sparkdl-comm",
        forms.local_directory,
        "With data.cacheName: local directory of each executor's host that has the caches, in a subdirectory that "
        "only the user can open. It should outlive the application.",
    )
    cache_limit: int = declare(
        "100GiB",
        forms.size,
        "Limit of the rows in one directory: that of an executor, or data.cacheDir with all its caches. Beyond it, "
        "the rows that were not used for the longest time are removed. 5% of the disk always stay free.",
    )
    memory_limit: int = declare(
        "0",
        forms.size_or_0,
        "With rows on disk: how many bytes of its rows, such as 4GiB, each rank also keeps in memory throughout a "
        "fit. Only the other rows are read from the disk. 0: none. The system caches what it has room for anyway, so "
        "this helps only if the rows are larger than that.",
    )
    shuffle: str = declare(
        "local",
        forms.one_of("local", "global"),
        "What each epoch changes: the order in which each rank uses its rows (local), or also which rows it has "
        "(global). With global, all rows are distributed again over all ranks. The ranks exchange the rows of the "
        "next step while they compute one.",
    )
