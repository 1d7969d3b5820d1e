"""What executors say where they lack a module of the user's."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import cloudpickle

from sparkdl_comm.errors import ModelError
from sparkdl_comm.job.import_check import ImportCheck
from sparkdl_comm.job.shipping import ShippedValue


class Scorer:
    """What is from this package, and has something of the user's."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def score(self, rows: Any) -> Any:
        return self.function(rows)


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The import of a package that is beside the user's script, and what has it forgotten, as an executor lacks it."""
    folder = tmp_path / "beside"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "nets.py").write_text(
        "import torch\n\n\nclass Net(torch.nn.Linear):\n    pass\n\n\ndef halved(rows):\n    return rows / 2\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    def forget() -> None:
        for name in ("beside", "beside.nets"):
            sys.modules.pop(name, None)
        sys.path.remove(str(tmp_path))

    yield SimpleNamespace(load=lambda: __import__("beside.nets").nets, forget=forget)
    for name in ("beside", "beside.nets"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("what", ["module", "function"])
def test_what_executors_lack_is_said_where_it_arrives(beside: Any, tmp_path: Path, what: str) -> None:
    nets = beside.load()
    if what == "module":
        pickled = pickle.dumps(ShippedValue.of(nets.Net(2, 3)))  # as Spark pickles a broadcast
        assert isinstance(pickle.loads(pickled), nets.Net)  # noqa: S301 - made here
    else:
        pickled = cloudpickle.dumps(ImportCheck(Scorer(nets.halved).score, is_rank=False))
        assert cloudpickle.loads(pickled)(6) == 3
    beside.forget()
    problem = rf"executors have no module 'beside.*Give them a zip of {tmp_path / 'beside'}.*addPyFile"
    with pytest.raises(ModelError, match=problem):
        pickle.loads(pickled)  # noqa: S301 - made here
