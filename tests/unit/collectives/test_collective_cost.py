"""Predicted times against the papers' formulas, and `sparkdl-comm explain`."""

import json
import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from sparkdl_comm.cli import main
from sparkdl_comm.collectives.algorithms import make_plan
from sparkdl_comm.collectives.cost import Cost, critical_path, predict, rank_algorithms
from sparkdl_comm.collectives.plan import Collective
from sparkdl_comm.collectives.transfers import order_transfers
from sparkdl_comm.errors import ConfError
from sparkdl_comm.topology import Topology

#: Table 1 of the linear-pipeline paper (see ``algorithms/lp.py``), by algorithm and operation: seconds of p ranks for n bytes
#: in blocks of b bytes, over one link per rank. The paper takes the log of powers of two. Here it is rounded up.
TABLE_1: dict[tuple[str, str], Callable[..., float]] = {
    ("be", "broadcast"): lambda p, log, n, b, alpha, beta, gamma: (log + p - 1) * alpha + 2 * (p - 1) / p * n * beta,
    ("be", "reduce"): lambda p, log, n, b, alpha, beta, gamma: (
        2 * log * alpha + 2 * (p - 1) / p * n * beta + (p - 1) / p * n * gamma
    ),
    ("mst", "broadcast"): lambda p, log, n, b, alpha, beta, gamma: log * (alpha + n * beta),
    ("mst", "reduce"): lambda p, log, n, b, alpha, beta, gamma: log * (alpha + n * beta + n * gamma),
    ("mst", "all_reduce"): lambda p, log, n, b, alpha, beta, gamma: log * (2 * alpha + 2 * n * beta + n * gamma),
    ("lp", "broadcast"): lambda p, log, n, b, alpha, beta, gamma: (p - 1 + n / b) * alpha + (b * (p - 1) + n) * beta,
    ("lp", "reduce"): lambda p, log, n, b, alpha, beta, gamma: (
        (p - 1 + n / b) * alpha + (b * (p - 1) + n) * (beta + gamma)
    ),
    ("lp", "all_reduce"): lambda p, log, n, b, alpha, beta, gamma: (
        2 * (p - 1 + n / b) * alpha + (b * (p - 1) + n) * (2 * beta + gamma)
    ),
}
TABLE_1["be", "all_reduce"] = TABLE_1["be", "reduce"]


def seconds(name, operation, text, count, cost, block=1):
    topology = Topology.parse(text)
    plan = make_plan(name, Collective(operation, topology, count, block=block))
    return critical_path(order_transfers(plan), topology, 1, cost)


def test_a_pipelined_all_reduce_of_4_blocks_on_3_ranks_takes_9_steps():
    per_block = Cost((1.0,), alpha=0.0, gamma=0.0)
    assert seconds("lp", "all_reduce", "star:3", 4, per_block) == 9
    both = [seconds("lp", operation, "star:3", 4, per_block) for operation in ("reduce", "broadcast")]
    assert both == [5, 5]


@pytest.mark.parametrize("operation", ["reduce_scatter", "all_gather"])
@pytest.mark.parametrize(("world", "blocks"), [(2, 1), (3, 4), (5, 1), (8, 3)])
def test_pipelines_to_all_ranks_never_leave_a_link_idle(operation, world, blocks):
    per_block = Cost((1.0,), alpha=0.0, gamma=0.0)
    assert seconds("lp", operation, f"star:{world}", world * blocks, per_block) == (world - 1) * blocks


@pytest.mark.parametrize("world", [2, 4, 8])
@pytest.mark.parametrize(("name", "operation"), list(TABLE_1))
def test_plans_take_what_table_1_says(name, operation, world):
    """Not longer: the paper counts some steps that a full-duplex link does at once. Bytes alone, so that it is exact."""
    count, block, beta = 64 * world, 8, 2.0
    cost = Cost((beta,), alpha=0.0, gamma=0.0)
    table = TABLE_1[name, operation](world, math.ceil(math.log2(world)), count, block, 0.0, beta, 0.0)
    taken = seconds(name, operation, f"star:{world}", count, cost, block)
    if (name, operation) in (("be", "broadcast"), ("lp", "all_reduce")):
        assert taken <= table
    elif name == "lp":
        # The paper fills the pipe with p - 1 blocks; the first of them is one of the message's.
        assert taken == pytest.approx(table - block * beta)
    else:
        assert taken == pytest.approx(table)


@pytest.mark.parametrize("world", [*range(2, 20), 24, 32, 33])
def test_two_trees_keep_every_link_busy(world):
    """The steps of the docstring, of one block each: n/b, and what the first block takes. Blocks come in turns, always."""
    blocks, per_block = 60, Cost((1.0,), alpha=0.0, gamma=0.0)
    steps = blocks + 2 * (world - 1).bit_length() - 2
    for operation in ("broadcast", "reduce"):
        assert seconds("tree", operation, f"star:{world}", blocks, per_block) <= steps
    assert seconds("tree", "all_reduce", f"star:{world}", blocks, per_block) <= 2 * steps


@pytest.mark.parametrize(
    ("text", "name", "in_t_f"),
    [
        ("bcube:3,2", "bml", 16 / 18),
        ("bcube:4,2", "bml", 30 / 32),
        ("bcube:4,2", "p2p-ps", 2 * 3 / 4),
        ("fattree:4", "hierarchical", 30 / 16),
        ("fattree:4", "p2p-ps", 30 / 16),
        ("star:9", "ring", 16 / 9),
        ("bcube:2,3", "bml", 14 / 24),
    ],
)
def test_synchronisation_takes_what_the_bml_paper_says(text, name, in_t_f):
    """In T_F, the time of the whole gradient over one link: 2(N-1)/(kN) for BML; Fig. 5 at 16 servers."""
    topology = Topology.parse(text)
    count = 6 * topology.world * topology.rails
    cost = Cost((1.0 / count,) * topology.rails, alpha=0.0, gamma=0.0)
    assert seconds(name, "all_reduce", text, count, cost) == pytest.approx(in_t_f)


@pytest.mark.parametrize(
    ("text", "name", "in_t_f"),
    [
        ("bcube:32,2", "bml", 2046 / 2048),
        ("bcube:32,2", "p2p-ps", 62 / 32),
        ("fattree:16", "hierarchical", 2046 / 1024),
        ("fattree:16", "p2p-ps", 2046 / 1024),
    ],
)
@pytest.mark.slow
def test_figure_5_at_1024_servers(text, name, in_t_f):
    topology = Topology.parse(text)
    count = 2048
    cost = Cost((1.0 / count,) * topology.rails, alpha=0.0, gamma=0.0)
    found = predict(name, "all_reduce", topology, count, 1, cost)
    assert found.seconds == pytest.approx(in_t_f)


def test_the_cheapest_depends_on_the_size():
    topology = Topology.parse("star:9,1gbit")
    cost = Cost.of(topology, gamma=0.0)
    small, large = (rank_algorithms("all_reduce", topology, count, 4, cost)[0] for count in (1, 2**24))
    assert small.seconds == pytest.approx(8 * cost.alpha, rel=0.01)  # up a tree and down again, log2(9) each
    assert large.algorithm in ("torus2d", "be", "ring")
    assert large.seconds == pytest.approx(16 / 9 * 2**26 / 125e6, rel=0.01)


def test_more_levels_mean_more_rails():
    topology = Topology.parse("bcube:3,2,200mbit")
    best, *others = rank_algorithms("all_reduce", topology, 2**22, 4, Cost.of(topology))
    assert best.algorithm == "bml"
    ring = next(prediction for prediction in others if prediction.algorithm == "ring")
    assert best.seconds < 0.51 * ring.seconds


@pytest.mark.parametrize("text", ["bcube:2x3,200mbit", "bcube:3,2,200mbit/100mbit"])
def test_unequal_levels_keep_all_rails_busy(text):
    topology = Topology.parse(text)
    found = predict("bml", "all_reduce", topology, 2**22, 4, Cost.of(topology))
    rail_seconds = [nbytes * 8 / rate for nbytes, rate in zip(found.rail_bytes, topology.rates, strict=True)]
    assert min(rail_seconds) > 0.99 * max(rail_seconds)
    assert found.seconds < 1.1 * max(rail_seconds)


@pytest.mark.parametrize("max_steps", [0, 10**6])
def test_ranks_of_a_host_share_its_nic(monkeypatch, max_steps):
    """Four ranks on each of three hosts send as much as one of three would, and take as long as its NIC does."""
    monkeypatch.setattr("sparkdl_comm.collectives.cost.MAX_STEPS", max_steps)
    topology = Topology.parse("hosts:3x4,1gbit")
    cost = replace(Cost.of(topology, alpha=0.0, gamma=0.0), local=0.0)
    for name in ("torus2d", "hierarchical"):
        found = predict(name, "all_reduce", topology, 12_000, 4, cost)
        assert found.is_lower_bound == (max_steps == 0)
        assert found.rail_bytes == (2 * 2 * 48_000 // 3,)
        # Of the hierarchical one's exchanges, some meet at a NIC while another idles.
        slower = 1.125 if name == "hierarchical" and not found.is_lower_bound else 1.0
        assert found.seconds == pytest.approx(slower * found.rail_bytes[0] * 8 / 1e9)


def test_on_one_host_the_bound_is_what_goes_inside(monkeypatch):
    monkeypatch.setattr("sparkdl_comm.collectives.cost.MAX_STEPS", 0)
    topology = Topology.parse("hosts:1x4,1gbit")
    cost = Cost.of(topology, alpha=0.0, gamma=0.0)
    found = predict("ring", "all_reduce", topology, 4000, 4, cost)
    assert (found.rail_bytes, found.seconds) == ((0,), pytest.approx(2 * 3 * 4000 * cost.local))


@pytest.mark.slow
def test_explain_shows_every_algorithm(capsys):
    words = ["explain", "--topology", "bcube:3,2", "--rate", "200mbit", "--bytes", "64MiB"]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split()[0] == "bml"
    assert any(line.startswith("mst") and "left out" in line for line in lines)
    assert main([*words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["predictions"][0]["algorithm"] == "bml"
    assert said["predictions"][0]["rail_bytes"] == pytest.approx([2**26 * 8 / 9] * 2, rel=1e-5)


def test_explain_shows_sparse_sums_beside_dense_ones(capsys):
    words = ["explain", "--topology", "hosts:4x2", "--rate", "200mbit", "--bytes", "10MB", "--json", "--density"]
    assert main([*words, "0.01"]) == 0
    found = {row["algorithm"]: row for row in json.loads(capsys.readouterr().out)["predictions"]}
    entry, counts = 4 + 2, 4  # bytes of an entry, and of the number of entries in every 65,536 elements
    half = 1_250_000 // 100 * entry + counts * -(-1_250_000 // 2**16)
    assert found["hitopk"]["rail_bytes"] == [3 * 2 * half]
    whole = 25_000 * entry + counts * -(-2_500_000 // 2**16)
    assert found["naive-ag"]["rail_bytes"][0] >= 6 * whole
    seconds = {name: row["seconds"] for name, row in found.items()}
    assert 3 * 2 * half * 8 / 200e6 < seconds["hitopk"] < seconds["naive-ag"] < seconds["torus2d"] / 5
    assert main([*words, "1"]) == 0
    found = json.loads(capsys.readouterr().out)["predictions"]
    assert found[0]["algorithm"] not in ("hitopk", "naive-ag"), "sent with their positions, all elements take longer"


def test_explain_says_where_hitopk_cannot_be(capsys):
    assert (
        main(["explain", "--topology", "bcube:3,2", "--rate", "200mbit", "--bytes", "1MiB", "--density", "0.01"]) == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("hitopk")] == [
        "hitopk          left out: is for hosts with one NIC each"
    ]
    assert any(line.startswith("naive-ag") for line in lines)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--topology", "star:3"], "star:3 has no rates"),
        (["--topology", "star:3", "--rate", "1gbit", "--bytes", "many"], "size 'many'"),
        (["--topology", "star:3", "--rate", "1gbit", "--operation", "scan"], "there are all_reduce"),
        (
            ["--topology", "star:3", "--rate", "1gbit", "--density", "0"],
            "--density 0.0: must be more than 0 and at most 1",
        ),
        (
            ["--topology", "star:3", "--rate", "1gbit", "--density", "0.1", "--operation", "reduce"],
            "--density needs --operation all_reduce, not reduce",
        ),
    ],
)
def test_explain_refuses(words, complaint, capsys):
    assert main(["explain", *words]) == 1
    assert complaint in capsys.readouterr().err


def test_cost_needs_rates():
    with pytest.raises(ConfError, match="give one"):
        Cost.of(Topology.parse("star:2"))
