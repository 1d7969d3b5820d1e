"""The table of the keys ``spark.sparkdl.comm.*``: the only place where a key, its default, its meaning and its limits are
written down."""

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
        "How gradients and parameters travel. The Param `strategy` overrides it. NAME+LOOP stands for a collective with\n"
        "collective.loop=LOOP, NAME+decoupled+ibatch with collective.batching=ibatch too, ps+BATCHING for ps.batching.",
        strategy.name,
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
        "How long fit waits for executors to register, until there is one slot per worker, or all executors that were\n"
        "asked for; and for free slots to be given to it.",
        values.seconds,
    ),
    Key(
        "turnTimeout",
        "turn_timeout",
        "time",
        "1d",
        "How long fit waits for other fits and jobs of the same application, which hold the slots that it needs.",
        values.seconds,
    ),
    Key(
        "maxRestarts",
        "max_restarts",
        "number",
        "2",
        "How many times fit starts the ranks again after one was lost with its process, executor or host: from\n"
        "the last checkpoint, or from the beginning without checkpointDir.",
        values.count,
    ),
    Key(
        "nic",
        "nic",
        "name or address",
        "",
        "Network interface that ranks listen on, such as eth1, or its address, or its network, such as\n"
        "10.0.1.0/24. Empty: the address that Spark uses.",
        values.anything,
    ),
    Key(
        "ports",
        "ports",
        "port or range",
        "0",
        "Ports for the executors' listening sockets (ranks, and the plugin): 0 for any free\n"
        "one, or a range such as 40000-40100.",
        values.port_range,
    ),
    Key(
        "driver.host",
        "driver_host",
        "name or address",
        "",
        "Name or address by which executors reach the process that calls fit. It listens there, or on\n"
        "spark.driver.bindAddress if that is set; where neither is its own (NAT), on its first NIC. Empty:\n"
        "spark.driver.host; in a Spark Connect client, its address on the way to the server.",
        values.anything,
    ),
    Key(
        "driver.port",
        "driver_port",
        "port",
        "0",
        "Port on the driver where ranks meet, and progress and the trained model come back to; 0 for any free one.",
        values.port,
    ),
    Key(
        "rails",
        "rails",
        "names or addresses",
        "",
        "Network interfaces that collectives use at once, one per rail (level of a BCube), separated by commas,\n"
        "each as in nic. Empty: that of nic, alone.",
        values.names,
    ),
    Key(
        "topology",
        "topology",
        "topology",
        "",
        "Shape of the network for collectives, such as bcube:3,2,10gbit, star:9 or hosts:4x2. Empty: what the\n"
        "networks of the rails tell.",
        values.topology,
    ),
    Key(
        "collective.block",
        "block",
        "size",
        "0",
        "Bytes per block of collectives that pipeline, such as 64KiB. 0: what the cost model says is best, by links as\n"
        "they were measured: of bml and p2p-ps the order of additions depends on it, and so do the last bits of sums.",
        values.size_or_0,
    ),
    Key(
        "collective.bucket",
        "bucket",
        "size",
        "4MiB",
        "Bytes of gradients that a collective reduces at once, at least: so much is there before it begins to\n"
        "travel, while backward goes on.",
        values.size,
    ),
    Key(
        "collective.batching",
        "batching",
        "name",
        "fixed",
        "How layers are cut into buckets, with collective.loop=decoupled: fixed (collective.bucket), or ibatch. Then a fit\n"
        "begins with fixed, and measures; iBatch's planner, which needs Java but not the plugin, plans from that; of its\n"
        "plans the one that should be the fastest is tried if it should be faster than fixed, and stays if it is. What stays\n"
        "depends on times, and other buckets add up in another order: two fits with one seed may differ by rounding.",
        values.one_of("fixed", "ibatch"),
    ),
    Key(
        "collective.loop",
        "loop",
        "name",
        "all-reduce",
        "What a step with a collective is: all-reduce (gradients are all-reduced, every rank updates), decoupled (they are\n"
        "reduce-scattered, every rank updates its part, and parameters are all-gathered while forward uses each layer's as\n"
        "they come; not for cheapest, nor with a compression; auto tries it by itself), root (gradients are reduced to\n"
        "rank 0, which updates and broadcasts the parameters), or root-overlap (likewise, and forward uses each layer's\n"
        "parameters as they come). The last two for strategies that reduce and broadcast.",
        values.one_of("all-reduce", *strategy.OTHER_LOOPS),
    ),
    Key(
        "collective.resync",
        "resync",
        "number",
        "0",
        "With collective.loop=all-reduce: broadcast rank 0's parameters after every so many steps, in case that\n"
        "ranks round differently (other processors); 0: never.",
        values.count,
    ),
    Key(
        "auto.candidates",
        "auto_candidates",
        "names",
        "",
        "Among which strategies auto chooses, such as ring,ring+decoupled,ps+whole: names of collectives that all-reduce,\n"
        "alone or with +decoupled, cheapest (for each bucket the cheapest collective, by measured links), ps+BATCHING; with\n"
        "a compression cheapest, hitopk and ps+BATCHING. With +decoupled+ibatch, only where it is named, buckets are as with\n"
        "collective.batching=ibatch. Empty: all others that can run; of ps, ps+whole, ps+layerwise and\n"
        "ps+ibatch, or what ps.batching says if that is another. Also fabric, which is asynchronous, so only where it is\n"
        "named: for whole epochs, where it is predicted to be faster by a clear margin, and was in the first of them.",
        values.names,
    ),
    Key(
        "compression",
        "compression",
        "none|NAME:SHARE|powersgd:RANK",
        "none",
        "Which elements of the gradients travel: all (none), or that share of them that is largest in magnitude, such as\n"
        "exact:0.01, in the steps that compression.schedule names; what is left out is added to the next step's gradient.\n"
        "exact (reads the gradient as few times as possible), mstopk (approximate: CommLib's search for two thresholds, in\n"
        "up to 30 passes), topk (torch.topk), dgc (double sampling).\n"
        "For ps, strategies whose algorithm all-gathers, and hitopk, which takes exact:0.01 for none.\n"
        "powersgd:R instead sends gradients as products of two matrices with R columns, by collectives\n"
        "that all-reduce (not gloo, ps and hitopk).",
        compression.compression,
    ),
    Key(
        "compression.schedule",
        "compression_schedule",
        "schedule",
        "always",
        "In which steps gradients are compressed; in others they are dense, and carry what was left out before. always, or\n"
        "steps:A-B, epochs:A-B (from 1; B may be missing), warmup:STEPS (for so many steps from A on more travels: a quarter\n"
        "of the elements, a sixteenth, and so on), auto (not ps: sixteen steps are dense and sparse in turn, then all are\n"
        "what was faster; tried again every 100 steps or more), with commas between, such as auto,epochs:1-13,warmup:100.",
        compression.schedule,
    ),
    Key(
        "compression.values",
        "compression_values",
        "fp32|bf16|fp16",
        "fp32",
        "Number format of compressed gradients on the network; what rounding takes is added to the next step's gradient.",
        values.one_of("fp32", "bf16", "fp16"),
    ),
    Key(
        "compression.momentum",
        "compression_momentum",
        "number",
        "0",
        "Momentum correction of compressed gradients: what is left out gathers as an optimizer's momentum does, and keeps\n"
        "the learning rate of its step. Then the optimizer should be SGD without momentum. 0: none.",
        values.below_1,
    ),
    Key(
        "compression.feedback",
        "compression_feedback",
        "true|false",
        "true",
        "Whether what compression leaves out is added to the next step's gradient. false: it is lost, for comparisons; not\n"
        "with compression.momentum.",
        values.flag,
    ),
    Key(
        "ps.wire",
        "ps_wire",
        "fp32|bf16|fp16",
        "fp32",
        "Number format of parameters and gradients on the network, strategy ps. Sums are made in fp32.",
        values.one_of("fp32", "bf16", "fp16"),
    ),
    Key(
        "ps.sharedMemory",
        "ps_shared_memory",
        "true|false",
        "true",
        "Executors of one host read each other's parameters and gradients from memory, not by TCP, strategy ps. Where\n"
        "they cannot, as in containers of their own, they use TCP all the same.",
        values.flag,
    ),
    Key(
        "ps.batching",
        "ps_batching",
        "policy",
        "whole",
        "How layers are cut into batches of parameters that are pulled while the batch before is computed,\n"
        "strategy ps: whole (one), layerwise, greedy1, greedy2, ibatch (the better one of the two greedy plans; if pushes\n"
        "are ibatch too, the best that is found for both together, unless whole, layerwise or, of many layers, parts:24\n"
        "turn out to be faster), paper (the better one of the two greedy plans for pulls, each batch asked for when\n"
        "the one before is here, and all gradients pushed at once: what iBatch's paper measured), paper-layerwise (likewise,\n"
        "a batch for each layer: what it compares with), optimal (the plan that takes least, of one direction alone),\n"
        "parts:COUNT (parts that take about as long to transfer, the first one cut once more), or fixed:BYTES (as many\n"
        "layers as fit, at least one).",
        values.policy,
    ),
    Key(
        "ps.pushBatching",
        "ps_push_batching",
        "policy",
        "",
        "Likewise, batches of gradients that are pushed while backward goes on. Empty: as ps.batching, and with paper and\n"
        "paper-layerwise one batch. If neither is whole, parameters of the next step arrive while backward goes on, in\n"
        "memory of their own: once more as much as the model takes, and what the executor updates of it.",
        values.push_policy,
    ),
    Key(
        "ps.profileIterations",
        "ps_profile_iterations",
        "number",
        "10",
        "Iterations that are measured before the first plan of greedy1, greedy2, ibatch, optimal or parts; until then\n"
        "there is one batch. If ibatch planned both directions, its plan, then layerwise, of many layers parts:24, and of\n"
        "small models, whose blocks are fetched for the profile alone, whole are used for as many iterations each, to see\n"
        "which is the fastest (not if these are less than 3). Every tenth such period the ranks compare what they measure\n"
        "with what they planned for.",
        values.iterations,
    ),
    Key(
        "ps.replanDrift",
        "ps_replan_drift",
        "number",
        "0.25",
        "Plan again when computation, start-up or transfer took that share more or less than planned for.",
        values.share,
    ),
    *FABRIC_KEYS,
    Key(
        "data.cache",
        "data_cache",
        "memory|disk",
        "memory",
        "Where each rank keeps its rows: in memory, or as an Arrow file in its executor's local directory, of which the\n"
        "system keeps in memory what fits. On the disk, neither the rows as they come nor those kept need fit into memory;\n"
        "while they come they take their space twice. If the disk cannot take them, they are kept in memory. The next fit\n"
        "of the same application on the same files finds them on the disk.",
        values.one_of("memory", "disk"),
    ),
    Key(
        "data.cacheLimit",
        "data_cache_limit",
        "bytes",
        "100GiB",
        "How much an executor's ranks may keep on its disk, all fits together; what was not used for the longest time is\n"
        "removed. 5% of the disk stay free in any case.",
        values.size,
    ),
    Key(
        "data.memoryLimit",
        "data_memory_limit",
        "bytes",
        "0",
        "With data.cache=disk: how much of its rows each rank keeps in memory too, all through a fit; only the others are\n"
        "read from the disk. 0: none. The system keeps in memory what it has room for, so this is of use where rows are more.",
        values.size_or_0,
    ),
    Key(
        "data.shuffle",
        "data_shuffle",
        "local|global",
        "local",
        "What is new in each epoch: the order in which each rank uses its rows (local), or which rows these are, too: global\n"
        "deals them out anew over all ranks, which send each other those of the next step while they compute one.",
        values.one_of("local", "global"),
    ),
    Key(
        "timeline",
        "timeline",
        "count",
        "0",
        "How many of the last iterations of a run are traced, on all ranks, for model.timeline(). 0: none, at no cost.",
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
        "Show on the driver what rank 0 prints, as it comes; of more than 100 lines in a quarter of a second\n"
        "the last.",
        values.flag,
    ),
)
