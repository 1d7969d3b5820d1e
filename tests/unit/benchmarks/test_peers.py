"""The benchmark `peers`: systems that are skipped, and the weights that it compares trained ones with."""

import itertools
import shutil
import threading
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from benchmarks.collectives import rank
from benchmarks.collectives import run as collectives
from benchmarks.collectives.peers import Measured
from benchmarks.peers import run as peers
from benchmarks.workload import LEARNING_RATE, Model, hidden_of, loss, nbytes, network, perceptron, right, rows
from lab.arguments import parser

from sparkdl_comm.errors import LabError, LabUnavailableError
from sparkdl_comm.sim.profile import Profile
from sparkdl_comm.topology import Topology
from tests.unit.collective_helpers import on_all
from tests.unit.fabric_helpers import raised
from tests.unit.gang_helpers import SECONDS

HIDDEN, COUNT, ITERATIONS = 20, 12, 15


def test_collectives_asks_its_peers_on_a_star(monkeypatch: pytest.MonkeyPatch) -> None:
    def here(star: Topology, options: Namespace) -> Iterator[Measured]:
        assert str(star) == "star:4,50mbit"
        result = {"case": "broadcast", "bytes": 1000, "samples": [0.5], "cpu_seconds": 0.1, "verified": True}
        yield Measured("here", [result])

    def missing(star: Topology, options: Namespace) -> Iterator[Measured]:
        raise LabUnavailableError("no such thing")

    monkeypatch.setattr(collectives, "PEERS", {"here": here, "missing": missing})
    skipped: list[str] = []
    options = Namespace(rate=[20.0, 50.0], peers=["missing", "here"], calls=1)
    found = list(collectives.peers(options, Topology.parse("bcube:2,2"), skipped.append))
    assert [(row.algorithm, row.compute, row.theory_seconds) for row in found] == [("here", "real", 8000 / 50e6)]
    assert skipped == ["missing skipped: no such thing"]


def test_without_open_mpi_its_peers_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    skipped: list[str] = []
    options = Namespace(rate=[20.0], peers=["openmpi", "openmpi-shm"])
    assert not list(collectives.peers(options, Topology.parse("star:2"), skipped.append))
    assert [text.split(":")[0] for text in skipped] == ["openmpi skipped", "openmpi-shm skipped"]
    assert all("libopenmpi-dev" in text for text in skipped)


def test_a_system_that_fails_is_named_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def trained(lab: object, spark: object, system: peers.System, options: Namespace) -> Iterator[str]:
        if system.algorithm == "torch-ddp":
            raise LabError("it broke")
        yield system.algorithm

    lab = nullcontext(SimpleNamespace(spark=lambda memory: nullcontext()))
    monkeypatch.setattr(peers, "Lab", lambda topology: lab)
    monkeypatch.setattr(peers, "trained", trained)
    failed: list[str] = []
    found = peers.rows(peers.arguments(parser(""), ["--peers", "torch-ddp,sparkdl"]), failed.append)
    assert [next(found), next(found)] == ["sparkdl-ps", "sparkdl-gloo"]
    with pytest.raises(LabError, match="^torch-ddp$"):
        next(found)
    assert failed == ["torch-ddp failed: it broke"]


def test_a_system_that_is_not_installed_is_skipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(peers, "BIGDL", tmp_path)
    options = peers.arguments(parser(""), ["--peers", "bigdl"])
    skipped: list[str] = []
    with pytest.raises(LabUnavailableError, match="all peers"):
        list(peers.rows(options, skipped.append))
    assert skipped == [f"bigdl skipped: no BigDL in {tmp_path}: `make bigdl` installs it"]


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


@pytest.mark.parametrize("operation", ["all_reduce", "broadcast", "reduce"])
@pytest.mark.parametrize("wrong", [None, 1])
def test_results_of_a_collective_are_checked_on_every_rank(operation: str, wrong: int | None) -> None:
    """Ranks are threads. One rank may get a wrong result in a repeat."""
    world, barrier, job = 2, threading.Barrier(2), rank.Job("here", [operation], [400], 1, 3, 2, SECONDS)
    vectors: list[torch.Tensor] = [torch.empty(0)] * world
    told: list[list[float]] = [[]] * world

    def one(number: int) -> dict[str, object]:
        calls = itertools.count()

        def run(operation: str, vector: torch.Tensor) -> None:
            vectors[number] = vector.clone()
            barrier.wait(SECONDS)
            if operation == "broadcast":
                vector.copy_(vectors[0])
            elif operation == "all_reduce" or number == 0:
                vector.copy_(vectors[0] + vectors[1])
            barrier.wait(SECONDS)
            if next(calls) == 5 and number == wrong:
                vector[7] += 1

        def gather(numbers: Sequence[float]) -> list[list[float]]:
            told[number] = [*numbers]
            barrier.wait(SECONDS)
            found = [*told]
            barrier.wait(SECONDS)
            return found

        ranks = rank.Ranks(lambda operation, vector: None, lambda: barrier.wait(SECONDS), run, gather)
        place = SimpleNamespace(world=world, rank=number)
        return rank.measure(ranks, operation, 400, job, place)  # type: ignore[arg-type]

    found = on_all([*range(world)], one)
    raised(found)
    assert all(len(result["samples"]) == 3 and result["cpu_seconds"] >= 0 for result in found)
    is_right = wrong is None or operation == "reduce"  # only its root has a result
    assert [result["verified"] for result in found] == [is_right] * world
