"""What is seen of a fit on a GPU, and what its rows become there, beside the same fit on the CPU."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from sparkdl_comm.train.spec import Observation, Stopping
from tests.gpu.gpu_ranks import Case, Fitted, fit_all
from tests.gpu.test_fits import ADAM, case, table
from tests.unit.ranks import Rows

torchmetrics = pytest.importorskip("torchmetrics")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def largest_error(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).abs().max()


def twice(rows: torch.Tensor) -> torch.Tensor:
    return 2 * rows


def noisy(rows: torch.Tensor) -> torch.Tensor:
    """Of the device's own generator."""
    return rows + torch.randn_like(rows)


def weighted() -> list[Rows]:
    return [dataclasses.replace(part, weights=torch.linspace(0.5, 1.5, part.rows)) for part in table()]


def watched(one: Case, **changes: object) -> Case:
    metrics = {"r2": torchmetrics.R2Score(), "largest": largest_error}
    return dataclasses.replace(one, **{"validation": table(), "observation": Observation(metrics)} | changes)


CASES = {
    "metrics": watched(case("nccl")),
    "decoupled": watched(case("ring", optimizer=ADAM, loop="decoupled")),
    "rows dealt anew": watched(case("nccl", data_shuffle="global")),
    "augmented": watched(case("ring"), augment=twice),
    "weighted rows": watched(case("nccl"), parts=weighted(), validation=weighted(), loss=nn.MSELoss(reduction="none")),
    # Nothing is an improvement after the first epoch, with whose parameters it ends.
    "stopped": dataclasses.replace(
        case("nccl"), validation=table(), observation=Observation(stopping=Stopping(patience=1, min_delta=1e9))
    ),
}
NOISY = dataclasses.replace(case("nccl"), augment=noisy)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Fitted]]:
    """By the name of the case, what each rank found on the GPU and then what they found on the CPU."""
    here = [dataclasses.replace(one, device="cpu", settings=_on_cpu(one)) for one in CASES.values()]
    found = fit_all([*CASES.values(), *here, NOISY, NOISY], tmp_path_factory.mktemp("gangs"))
    gpu, cpu = found[: len(CASES)], found[len(CASES) : 2 * len(CASES)]
    both = {name: [*on_gpu, *on_cpu] for name, on_gpu, on_cpu in zip(CASES, gpu, cpu, strict=True)}
    return both | {"noisy": found[-2] + found[-1]}


def _on_cpu(one: Case) -> dict[str, object]:
    settings = dict(one.settings)
    return settings | {"strategy": "gloo"} if settings["strategy"] == "nccl" else settings


@pytest.mark.parametrize("name", CASES)
def test_what_the_cpu_finds(fitted: dict[str, list[Fitted]], name: str) -> None:
    first, second, *others = fitted[name]
    for each in (first, second, *others):
        assert not each.error, each.error
    for gpu, cpu in zip((first, second), others, strict=True):
        assert len(gpu.history) == len(cpu.history)
        for one, other in zip(gpu.history, cpu.history, strict=True):
            assert one.keys() == other.keys()
            for key in one.keys() - {"seconds"}:
                assert one[key] == pytest.approx(other[key], rel=1e-3, abs=1e-5), key
    assert (first.values - others[0].values).norm() / others[0].values.norm() <= 1e-3


def test_it_stops_early(fitted: dict[str, list[Fitted]]) -> None:
    assert len(fitted["stopped"][0].history) < CASES["stopped"].epochs


def test_what_the_gpu_draws_depends_on_the_seed_alone(fitted: dict[str, list[Fitted]]) -> None:
    one, _, again, _ = fitted["noisy"]
    assert not one.error, one.error
    assert one.losses == again.losses
    assert torch.equal(one.values, again.values)
