"""Results as data: what is written of a run, and what is refused when it is read."""

import json
import math
import subprocess
from pathlib import Path
from typing import Any

import pytest
from lab import results
from lab.results import Origin, Results, Row, read

from sparkdl_comm.errors import InputError


@pytest.fixture
def document(tmp_path: Path) -> dict[str, Any]:
    """What a benchmark writes."""
    row = Row(
        suite="ps",
        case="lenet5",
        algorithm="ring",
        topology="star:3",
        rate_mbit=200.0,
        world=3,
        bytes=4096,
        samples=[0.25, 0.5, 0.375],
        theory_seconds=0.25,
        verified=True,
        versions={"torch": "2"},
        extra={"calls": 8},
    )
    return dict(json.loads(Results(Origin.here(), [row]).to_json()))


def saved(folder: Path, document: object) -> Path:
    path = folder / "results.json"
    path.write_text(json.dumps(document))
    return path


def test_what_is_written_is_read_back(document: dict[str, Any], tmp_path: Path) -> None:
    found = read(saved(tmp_path, document))
    assert json.loads(found.to_json()) == document
    assert found.rows[0].seconds == 0.375
    assert found.rows[0].extra == {"calls": 8}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": 2}, "format 1"),
        ({"commit": 7}, "'commit' must be str or NoneType, not 7"),
        ({"cores": True}, "'cores' must be int, not True"),
        ({"colour": "red"}, "unknown fields colour"),
        ({"rows": {}}, "'rows' must be list"),
        ({"rows": [3]}, "row 0 must be an object"),
    ],
)
def test_bad_documents(document: dict[str, Any], tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        read(saved(tmp_path, document | changes))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seconds": 0.3}, "row 0: 'seconds' is 0.3, but its samples make 0.375"),
        ({"ratio": None}, "'ratio' is None"),
        ({"samples": []}, "at least one"),
        ({"samples": ["fast"]}, "'samples' must be numbers"),
        ({"samples": [math.nan]}, "positive"),
        ({"world": 3.5}, "'world' must be int"),
    ],
)
def test_bad_rows(document: dict[str, Any], tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    document["rows"][0] |= changes
    with pytest.raises(InputError, match=said):
        read(saved(tmp_path, document))


@pytest.mark.parametrize("name", ["date", "rows"])
def test_missing_fields(document: dict[str, Any], tmp_path: Path, name: str) -> None:
    del document[name]
    with pytest.raises(InputError, match=f"the field '{name}' is missing"):
        read(saved(tmp_path, document))


def test_what_is_no_json_is_refused_with_its_cause(tmp_path: Path) -> None:
    (tmp_path / "half.json").write_text('{"format":')
    for name in ("half.json", "none.json"):
        with pytest.raises(InputError, match=f"{name}: no results could be read") as caught:
            read(tmp_path / name)
        assert caught.value.__cause__ is not None


def test_the_command_is_as_one_types_it_in_the_repository() -> None:
    program = str(Path(results.__file__).parents[2] / "python" / "benchmarks")
    assert (
        results._command([program, "ps", "--rate", "auto:1", "a b"])
        == "python python/benchmarks ps --rate auto:1 'a b'"
    )
    assert results._command(["/elsewhere/bench.py"]) == "python bench.py"


def git(folder: Path, *arguments: str) -> str:
    options = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *options, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_commit_and_whether_code_differs_from_it(tmp_path: Path) -> None:
    for name in ("python/lab/results.py", "python/bench.py", "python/benchmarks/ps/results/a.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    assert results._checkout(tmp_path) == (None, None), "no checkout"
    git(tmp_path, "init", "-q")
    assert results._checkout(tmp_path) == (None, None), "a checkout, but not of this package"
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    head = git(tmp_path, "rev-parse", "HEAD")
    assert results._checkout(tmp_path) == (head, False)
    (tmp_path / "python/benchmarks/ps/results/a.json").write_text("2")
    assert results._checkout(tmp_path) == (head, False), "results of the run before"
    (tmp_path / "python/more.py").write_text("2")
    assert results._checkout(tmp_path) == (head, True)


def test_without_git_no_commit_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (Origin.here().commit, Origin.here().dirty) == (None, None)


def test_cpu_models(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name\t: A: fast one\nmodel name : B\n")
    assert results._cpu(tmp_path / "cpuinfo") == "A: fast one"
    assert results._cpu(tmp_path / "none")
