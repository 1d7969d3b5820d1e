"""A module as a client of Spark Connect ships it: its tensors in a file, the rest with the function."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pyspark import cloudpickle

from sparkdl_comm.job import broadcasts
from sparkdl_comm.job.broadcasts import SessionModule


class Odd(torch.nn.Module):
    """A frozen parameter, shared ones, buffers that are kept and one that is not, a sparse one, a tensor that is neither."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(300, 300, bias=False)
        self.shared = torch.nn.Linear(300, 300, bias=False)
        self.shared.weight = self.first.weight
        self.frozen = torch.nn.Parameter(torch.randn(300), requires_grad=False)
        self.norm = torch.nn.BatchNorm1d(300)
        self.register_buffer("turned", torch.randn(300, 200).t())
        self.register_buffer("sparse", torch.eye(300).to_sparse())
        self.register_buffer("forgotten", torch.randn(300), persistent=False)
        self.scale = torch.tensor(3.0)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.shared(self.first(rows)) * self.frozen + self.forgotten)
        return self.turned @ self.sparse @ hidden.t() * self.scale


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A session that only keeps files."""

    def keep(path: str, file: bool) -> None:
        (tmp_path / Path(path).name).write_bytes(Path(path).read_bytes())

    monkeypatch.setattr(broadcasts.SparkFiles, "get", lambda name: str(tmp_path / name))
    return SimpleNamespace(addArtifacts=keep)


def test_a_module_arrives_as_it_was(session: Any, tmp_path: Path) -> None:
    module = Odd()
    module(torch.randn(7, 300))
    shipped = SessionModule.of(session, module.eval())
    (weights,) = tmp_path.iterdir()
    pickled = cloudpickle.dumps(shipped)
    assert len(pickled) < 30_000, "none but the sparse tensor"
    assert weights.stat().st_size < 4 * (90_000 + 60_000 + 6 * 300) + 2_000, "shared ones once"
    arrived, again = (cloudpickle.loads(pickled) for _ in range(2))
    assert arrived.value is again.value, "made once per worker"
    got = arrived.value
    rows = torch.randn(5, 300)
    assert torch.equal(got(rows), module(rows))
    assert got.shared.weight is got.first.weight
    assert [(name, p.requires_grad) for name, p in got.named_parameters()] == [
        (name, p.requires_grad) for name, p in module.named_parameters()
    ]


def test_what_is_trained_is_nobody_elses(session: Any) -> None:
    pickled = cloudpickle.dumps(SessionModule.of(session, Odd()))
    one, other = (cloudpickle.loads(pickled)() for _ in range(2))
    with torch.no_grad():
        one.first.weight.zero_()
    assert other.first.weight.any()


def test_a_module_that_torch_cannot_copy(session: Any, tmp_path: Path) -> None:
    with pytest.warns(FutureWarning, match="weight_norm"):
        module = torch.nn.utils.weight_norm(torch.nn.Linear(300, 300))
    rows = torch.randn(5, 300)
    expected = module(rows)
    arrived = cloudpickle.loads(cloudpickle.dumps(SessionModule.of(session, module))).value
    assert torch.equal(arrived(rows), expected)
    assert module.weight_v.any(), "the module stays as it is"
