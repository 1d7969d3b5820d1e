"""Table of the keys ``spark.sparkdl.comm.*``: the only place with a key's default, meaning and limits."""

from __future__ import annotations

from sparkdl_comm.conf import compression, strategy, values
from sparkdl_comm.conf.fabric import FABRIC_KEYS
from sparkdl_comm.conf.key import PREFIX, Key

__all__ = ["KEYS", "PREFIX", "Key"]

#: All keys.
KEYS: tuple[Key, ...] = (
    Key(
        "strategy",
        "strategy",
        "name",
        "ps",
        "How gradients and parameters are exchanged. The Param `strategy` overrides it. NAME+LOOP stands for a\n"
        "collective with collective.loop=LOOP. NAME+decoupled+ibatch also sets collective.batching=ibatch.\n"
        "ps+BATCHING sets ps.batching.",
        strategy.checked_name,
    ),
    Key(
        "timeout",
        "timeout",
        "time",
        "5min",
        "How long a rank waits for its peers, in any single wait, before the run fails.",
        values.seconds,
    ),
    Key(
        "slotTimeout",
        "slot_timeout",
        "time",
        "30s",
        "How long fit waits for executors to register, and then for free slots. It needs one slot per worker, or all\n"
        "requested executors if the number of workers is not set.",
        values.seconds,
    ),
    Key(
        "turnTimeout",
        "turn_timeout",
        "time",
        "1d",
        "How long fit waits for other fits and jobs of the same application that hold the slots it needs.",
        values.seconds,
    ),
    Key(
        "maxRestarts",
        "max_restarts",
        "number",
        "2",
        "How many times fit restarts the ranks after one was lost with its process, executor or host. It restarts\n"
        "from the last checkpoint, or without checkpointDir from the beginning.",
        values.count,
    ),
    Key(
        "nic",
        "nic",
        "name or address",
        "",
        "Network interface that ranks listen on, such as eth1, or its address, or its network, such as 10.0.1.0/24.\n"
        "Empty: the address that Spark uses.",
        values.any_text,
    ),
    Key(
        "ports",
        "ports",
        "port or range",
        "0",
        "Ports for the executors' listening sockets (ranks, and the plugin). 0 for any free port, or a range such as\n"
        "40000-40100.",
        values.port_range,
    ),
    Key(
        "driver.host",
        "driver_host",
        "name or address",
        "",
        "Name or address by which executors reach the process that calls fit. The process listens there, or on\n"
        "spark.driver.bindAddress if that is set. If neither belongs to this host (NAT), it listens on its first NIC.\n"
        "Empty: spark.driver.host. In a Spark Connect client, empty means the client's address towards the server.",
        values.any_text,
    ),
    Key(
        "driver.port",
        "driver_port",
        "port",
        "0",
        "Port on the driver for the ranks' rendezvous, progress and the trained model. 0 for any free port.",
        values.port,
    ),
    Key(
        "rails",
        "rails",
        "names or addresses",
        "",
        "Network interfaces that collectives use at once, one per rail (level of a BCube), separated by commas. Each\n"
        "is written as in nic. Empty: only the interface of nic.",
        values.names,
    ),
    Key(
        "topology",
        "topology",
        "topology",
        "",
        "Shape of the network for collectives, such as bcube:3,2,10gbit, star:9 or hosts:4x2. Empty: derived from the\n"
        "networks of the rails.",
        values.topology,
    ),
    Key(
        "collective.block",
        "block",
        "size",
        "0",
        "Bytes per block of pipelined collectives, such as 64KiB. 0: the best size by the cost model and the measured\n"
        "links. The size of the blocks determines the order of additions in bml and p2p-ps, and so the last bits of\n"
        "their sums.",
        values.size_or_0,
    ),
    Key(
        "collective.bucket",
        "bucket",
        "size",
        "4MiB",
        "Least number of bytes of gradients that a collective reduces at once. A bucket is sent as soon as it has as\n"
        "many, while backward goes on.",
        values.size,
    ),
    Key(
        "collective.batching",
        "batching",
        "name",
        "fixed",
        "How layers are cut into buckets, with collective.loop=decoupled: fixed (by collective.bucket), or ibatch.\n"
        "With ibatch a fit begins with fixed buckets, and measures. iBatch's planner, which needs Java but not the\n"
        "plugin, makes plans from that. If the best plan is predicted to be faster than fixed, it is tried, and stays\n"
        "if it is. The outcome depends on times, and other buckets add up in another order. So two fits with one seed\n"
        "may differ by rounding.",
        values.one_of("fixed", "ibatch"),
    ),
    Key(
        "collective.loop",
        "loop",
        "name",
        "all-reduce",
        "What a step with a collective does. all-reduce: gradients are all-reduced, and every rank updates all\n"
        "parameters. decoupled: gradients are reduce-scattered, every rank updates its shard, and parameters are\n"
        "all-gathered during forward. Not for cheapest, nor with a compression. auto tries it by itself. root:\n"
        "gradients are reduced to rank 0, which updates and broadcasts the parameters. root-overlap: the same, but\n"
        "the broadcast overlaps with forward. The last two need a strategy that reduces and broadcasts.",
        values.one_of("all-reduce", *strategy.OTHER_LOOPS),
    ),
    Key(
        "collective.resync",
        "resync",
        "number",
        "0",
        "With collective.loop=all-reduce: number of steps after which rank 0's parameters are broadcast again, in\n"
        "case ranks with different processors round differently. 0: never.",
        values.count,
    ),
    Key(
        "auto.candidates",
        "auto_candidates",
        "names",
        "",
        "Strategies among which auto chooses, such as ring,ring+decoupled,ps+whole. Possible names: collectives that\n"
        "all-reduce, alone or with +decoupled; cheapest (for each bucket the cheapest collective, by measured links);\n"
        "ps+BATCHING. With a compression: cheapest, hitopk and ps+BATCHING. A name with +decoupled+ibatch cuts\n"
        "buckets as with collective.batching=ibatch. Empty: all that can run, but without +decoupled+ibatch. Of ps,\n"
        "these are ps+whole, ps+layerwise and ps+ibatch, or another value of ps.batching.",
        values.names,
    ),
    Key(
        "compression",
        "compression",
        "none|NAME:SHARE|powersgd:RANK",
        "none",
        "Which elements of the gradients are sent: all (none), or a share of them with the largest magnitudes, such\n"
        "as exact:0.01, in the steps of compression.schedule. What is left out is added to the next step's gradient.\n"
        "exact reads the gradient as few times as possible. mstopk is approximate: CommLib's search for two\n"
        "thresholds, in up to 30 passes. topk is torch.topk. dgc uses double sampling. For ps, strategies with an\n"
        "algorithm that all-gathers, and hitopk, which uses exact:0.01 for none. powersgd:R sends gradients as\n"
        "products of two matrices with R columns instead, by collectives that all-reduce (not gloo, ps and hitopk).",
        compression.parse_compression,
    ),
    Key(
        "compression.schedule",
        "compression_schedule",
        "schedule",
        "always",
        "In which steps gradients are compressed. Other steps send dense gradients, plus what was left out before.\n"
        "always, or a list of these, separated by commas, such as auto,epochs:1-13,warmup:100. steps:A-B and\n"
        "epochs:A-B count from 1, and B may be missing. warmup:STEPS sends more in so many steps from A on: a quarter\n"
        "of the elements, then a sixteenth, and so on. auto (not with ps) alternates dense and compressed steps for\n"
        "sixteen steps, and continues with the faster kind. It tries again after 100 steps or more.",
        compression.parse_schedule,
    ),
    Key(
        "compression.values",
        "compression_values",
        "fp32|bf16|fp16",
        "fp32",
        "Number format of compressed gradients on the network. The rounding error is added to the next step's\n"
        "gradient.",
        values.one_of("fp32", "bf16", "fp16"),
    ),
    Key(
        "compression.momentum",
        "compression_momentum",
        "number",
        "0",
        "Momentum correction of compressed gradients. What is left out accumulates with this momentum, as in an\n"
        "optimizer, at the learning rate of its step. The optimizer should then be SGD without momentum. 0: none.",
        values.fraction_below_1,
    ),
    Key(
        "compression.feedback",
        "compression_feedback",
        "true|false",
        "true",
        "Whether what compression leaves out is added to the next step's gradient. false: it is lost, for\n"
        "comparisons. Not with compression.momentum.",
        values.flag,
    ),
    Key(
        "ps.wire",
        "ps_wire",
        "fp32|bf16|fp16",
        "fp32",
        "Number format of parameters and gradients on the network, strategy ps. Sums are computed in fp32.",
        values.one_of("fp32", "bf16", "fp16"),
    ),
    Key(
        "ps.sharedMemory",
        "ps_shared_memory",
        "true|false",
        "true",
        "Whether executors of one host read each other's parameters and gradients from memory, not over TCP, strategy\n"
        "ps. If they cannot, for example in separate containers, they use TCP.",
        values.flag,
    ),
    Key(
        "ps.batching",
        "ps_batching",
        "policy",
        "whole",
        "How layers are cut into batches of parameters for pulls, strategy ps. A batch is pulled while the one before\n"
        "is computed. whole: one batch. layerwise: one per layer. greedy1 and greedy2: iBatch's greedy plans. ibatch:\n"
        "the better one of these. If pushes are ibatch too, it is the best plan found for both together, unless\n"
        "whole, layerwise or, with many layers, parts:24 turn out to be faster. paper, as iBatch's paper measured:\n"
        "the better greedy plan for pulls, each batch requested when the one before has arrived, and all gradients\n"
        "pushed at once. paper-layerwise, the paper's baseline: the same with one batch per layer. optimal: the\n"
        "fastest plan for one direction alone. parts:COUNT: parts that take about equally long to transfer, the first\n"
        "one cut once more. fixed:BYTES: as many layers as fit, at least one.",
        values.policy,
    ),
    Key(
        "ps.pushBatching",
        "ps_push_batching",
        "policy",
        "",
        "How layers are cut into batches of gradients for pushes, strategy ps. A batch is pushed while backward goes\n"
        "on. Empty: as ps.batching, and with paper and paper-layerwise one batch. If neither direction is whole,\n"
        "parameters of the next step arrive while backward goes on. This needs memory for a second copy of the model,\n"
        "and of the part that the executor updates.",
        values.push_policy,
    ),
    Key(
        "ps.profileIterations",
        "ps_profile_iterations",
        "number",
        "10",
        "Iterations to measure before the first plan of greedy1, greedy2, ibatch, optimal or parts. Until then there\n"
        "is one batch. If ibatch planned both directions, its plan and others are then tried for as many iterations\n"
        "each, and the fastest stays. The others are layerwise, with many layers parts:24, and whole for small\n"
        "models, whose blocks are fetched only for the profile. With fewer than 3 iterations nothing is tried. In\n"
        "every tenth such period the ranks compare their measurements with the plan.",
        values.iterations,
    ),
    Key(
        "ps.replanDrift",
        "ps_replan_drift",
        "number",
        "0.25",
        "Relative change of computation, start-up or transfer time, compared with the plan, that leads to a new plan.",
        values.non_negative,
    ),
    *FABRIC_KEYS,
    Key(
        "data.cache",
        "data_cache",
        "memory|disk",
        "memory",
        "Where each rank keeps its rows: in memory, or as an Arrow file in its executor's local directory. Of this\n"
        "file, the system keeps in memory what fits. So with disk, neither the arriving rows nor the kept rows need\n"
        "to fit into memory. While rows arrive, they take twice their space on the disk. If the disk has no room,\n"
        "rows are kept in memory. The next fit of the same application on the same files finds its rows on the disk.",
        values.one_of("memory", "disk"),
    ),
    Key(
        "data.cacheLimit",
        "data_cache_limit",
        "bytes",
        "100GiB",
        "Limit of the rows that an executor's ranks keep on its disk, all fits together. Beyond it, the rows that\n"
        "were not used for the longest time are removed. 5% of the disk always stay free.",
        values.size,
    ),
    Key(
        "data.memoryLimit",
        "data_memory_limit",
        "bytes",
        "0",
        "With data.cache=disk: how many bytes of its rows each rank also keeps in memory throughout a fit. Only the\n"
        "other rows are read from the disk. 0: none. The system caches what it has room for anyway, so this helps\n"
        "only if the rows are larger than that.",
        values.size_or_0,
    ),
    Key(
        "data.shuffle",
        "data_shuffle",
        "local|global",
        "local",
        "What changes with each epoch. local: the order in which each rank uses its rows. global: also which rows\n"
        "each rank has. All rows are distributed again over all ranks. The ranks exchange the rows of the next step\n"
        "while they compute one.",
        values.one_of("local", "global"),
    ),
    Key(
        "timeline",
        "timeline",
        "count",
        "0",
        "How many of the last iterations of a run are traced, on all ranks, for model.timeline(). 0: none, without\n"
        "any cost.",
        values.count,
    ),
    Key(
        "progress",
        "progress",
        "true|false",
        "true",
        "Show a progress bar on the driver while fit runs.",
        values.flag,
    ),
    Key(
        "logs",
        "logs",
        "true|false",
        "true",
        "Whether the driver shows what rank 0 prints, as it arrives. Of more than 100 lines in a quarter of a second\n"
        "it shows only the last 100.",
        values.flag,
    ),
)
