"""The registry of strategies: every name has a class, and a rank imports only what its strategy needs."""

import json
import re
import subprocess
import sys

import pytest

from sparkdl_comm.conf import KEYS, CommConf
from sparkdl_comm.strategies.base import Strategy
from sparkdl_comm.strategies.registry import STRATEGIES, load_strategy

#: Prints the modules of ours that a rank imports, by the strategy's name. What all ranks import is imported once.
_PROGRAM = """
import json, os, sys
import sparkdl_comm.job.rank
from sparkdl_comm.conf import CommConf
from sparkdl_comm.strategies.registry import load_strategy
for name in sys.argv[1:]:
    if os.fork() == 0:
        load_strategy(CommConf.from_mapping({}, strategy=name))
        print(json.dumps([name, [module for module in sys.modules if module.startswith("sparkdl_comm.")]]), flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_name_has_a_class(name: str) -> None:
    assert issubclass(load_strategy(CommConf.from_mapping({}, strategy=name)), Strategy)
    assert STRATEGIES[name].description.endswith(".")


def test_the_key_lists_every_name() -> None:
    key = next(key for key in KEYS if key.name == "strategy")
    listed = re.findall(r"[a-z0-9-]+", key.meaning.split(";")[0].partition(":")[2])
    assert set(listed) - {"or", "a", "collective"} == set(STRATEGIES)


@pytest.fixture(scope="module")
def imported() -> dict[str, list[str]]:
    """Modules of ours that a rank imports, by the strategy's name."""
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM, "gloo", "ring", "ps", "auto"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    found: dict[str, list[str]] = dict(map(json.loads, ran.stdout.splitlines()))
    assert all("sparkdl_comm.strategies.registry" in modules for modules in found.values())
    return found


@pytest.mark.parametrize(("name", "limit"), [("gloo", 72), ("ring", 84), ("ps", 81)])
def test_a_rank_imports_what_its_strategy_needs(imported: dict[str, list[str]], name: str, limit: int) -> None:
    modules = imported[name]
    rooms = {module.split(".")[1] for module in modules}
    assert not rooms & {"autotune", "fabric", "sim", "ml", "report"}
    others = {"gloo": "all_reduce", "ring": "collective", "ps": "ps.parameter_server"}
    loaded = {other for other, file in others.items() if f"sparkdl_comm.strategies.{file}" in modules}
    assert loaded == {name}
    assert len(modules) <= limit, sorted(modules)


def test_auto_imports_its_candidates_when_it_joins_them(imported: dict[str, list[str]]) -> None:
    modules = imported["auto"]
    assert not {module.split(".")[1] for module in modules} & {"compress", "fabric", "ml", "report"}
    assert "sparkdl_comm.strategies.ps.parameter_server" not in modules
    assert len(modules) <= 98, sorted(modules)
