"""The registry of strategies: every name has a class, and a rank imports only what its strategy needs."""

import json
import re
import subprocess
import sys

import pytest

from sparkdl_comm.conf import KEYS, CommConf
from sparkdl_comm.strategies.base import Strategy
from sparkdl_comm.strategies.registry import STRATEGIES, load_strategy

_PROGRAM = """
import json, sys
import sparkdl_comm.job.rank
from sparkdl_comm.conf import CommConf
from sparkdl_comm.strategies.registry import load_strategy
load_strategy(CommConf.from_mapping({}, strategy=sys.argv[1]))
print(json.dumps([name for name in sys.modules if name.startswith("sparkdl_comm.")]))
"""


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_name_has_a_class(name: str) -> None:
    assert issubclass(load_strategy(CommConf.from_mapping({}, strategy=name)), Strategy)
    assert STRATEGIES[name].description.endswith(".")


def test_the_key_lists_every_name() -> None:
    key = next(key for key in KEYS if key.name == "strategy")
    listed = re.findall(r"[a-z0-9-]+", key.meaning.split(". ")[0].partition(":")[2])
    assert set(listed) - {"or", "a", "collective"} == set(STRATEGIES)


def _imported(name: str) -> list[str]:
    """Return our modules that a rank of the strategy ``name`` imports."""
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM, name], capture_output=True, text=True, check=True, timeout=120
    )
    modules = json.loads(ran.stdout)
    assert "sparkdl_comm.strategies.registry" in modules
    return list(modules)


@pytest.mark.parametrize(("name", "limit"), [("gloo", 72), ("ring", 84), ("ps", 81)])
def test_a_rank_imports_what_its_strategy_needs(name: str, limit: int) -> None:
    modules = _imported(name)
    rooms = {module.split(".")[1] for module in modules}
    assert not rooms & {"autotune", "fabric", "sim", "ml", "report"}
    others = {"gloo": "all_reduce", "ring": "collective", "ps": "ps.parameter_server"}
    loaded = {other for other, file in others.items() if f"sparkdl_comm.strategies.{file}" in modules}
    assert loaded == {name}
    assert len(modules) <= limit, sorted(modules)


def test_auto_imports_its_candidates_when_it_joins_them() -> None:
    modules = _imported("auto")
    assert not {module.split(".")[1] for module in modules} & {"compress", "fabric", "ml", "report"}
    assert "sparkdl_comm.strategies.ps.parameter_server" not in modules
    assert len(modules) <= 98, sorted(modules)
