"""What the benchmark `peers` compares trained weights with."""

import json
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from benchmarks.collectives import run as collectives
from benchmarks.peers.arena import Arena, NotInstalledError
from benchmarks.workload import LEARNING_RATE, Model, hidden_of, loss, nbytes, network, perceptron, right, rows
from lab.bench import Row

from sparkdl_comm.sim.profile import Profile
from sparkdl_comm.topology import Topology

HIDDEN, COUNT, ITERATIONS = 20, 12, 15


def test_collectives_asks_its_peers_on_a_star(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def here(arena: Arena) -> Iterator[Row]:
        assert (str(arena.options.topology), arena.folder) == ("star:4,50mbit", tmp_path)
        line = {"case": "broadcast", "bytes": 1000, "samples": [0.5], "verified": True}
        yield from arena.rows("here", json.dumps(line), {})

    def missing(arena: Arena) -> Iterator[Row]:
        raise NotInstalledError("no such thing")

    monkeypatch.setattr(collectives, "PEERS", {"here": here, "missing": missing})
    skipped: list[str] = []
    options = Namespace(rate=[20.0, 50.0], peers=["missing", "here"])
    found = list(collectives.peers(options, Topology.parse("bcube:2,2"), tmp_path, skipped.append))
    assert [(row.algorithm, row.compute, row.theory_seconds) for row in found] == [("here", "real", 8000 / 50e6)]
    assert skipped == ["missing skipped: no such thing"]


def trained(
    inputs: torch.Tensor, targets: torch.Tensor, rate: float = LEARNING_RATE, name: Model = HIDDEN
) -> torch.nn.Module:
    model = network(name, scale=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for _ in range(ITERATIONS):
        optimizer.zero_grad()
        loss(model(inputs), targets).backward()
        optimizer.step()
    return model


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    inputs, targets = rows(COUNT)
    return torch.from_numpy(inputs), torch.from_numpy(targets)


def test_the_order_of_rows_does_not_matter() -> None:
    inputs, targets = batch()
    order = torch.arange(COUNT - 1, -1, -1)
    assert right(trained(inputs[order], targets[order]), HIDDEN, COUNT, ITERATIONS)


@pytest.mark.parametrize(
    "model",
    [
        lambda: perceptron(HIDDEN),  # not trained
        lambda: trained(*(part[1:] for part in batch())),  # a row is missing
        lambda: trained(*(part[[0, *range(COUNT)]] for part in batch())),  # a row counts twice
        lambda: trained(*batch(), rate=LEARNING_RATE * (COUNT - 1) / COUNT),  # the mean is of too many
    ],
)
def test_wrong_weights_are_told(model: object) -> None:
    assert not right(model(), HIDDEN, COUNT, ITERATIONS)  # type: ignore[operator]


def test_emulated_networks_are_compared_too() -> None:
    lenet5 = Profile.load("lenet5")
    assert right(trained(*batch(), name=lenet5), lenet5, COUNT, ITERATIONS)
    assert not right(trained(*(part[1:] for part in batch()), name=lenet5), lenet5, COUNT, ITERATIONS)
    assert nbytes(lenet5) == 4 * sum(parameter.numel() for parameter in network(lenet5).parameters())


@pytest.mark.parametrize("wanted", [2**18, 2**20, 2**24])
def test_models_have_about_as_many_bytes_as_wanted(wanted: int) -> None:
    hidden = hidden_of(wanted)
    assert nbytes(hidden) == 4 * sum(parameter.numel() for parameter in perceptron(hidden).parameters())
    assert nbytes(hidden) == pytest.approx(wanted, rel=0.01)
