"""Checkpoints on disk: what is written comes back bit by bit, and nothing half-written is ever believed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from sparkdl_comm.errors import PersistenceError
from sparkdl_comm.storage.files import LocalStorage
from sparkdl_comm.train import checkpoint_directory as checkpoint
from sparkdl_comm.train.checkpoint_directory import CheckpointDirectory, Tensors
from tests.forkserver import context

RUN = {"world": 2, "strategy": "ps"}


def parts(seed: int) -> dict[str, Tensors]:
    values = torch.full((3, 2), seed + 0.1)
    return {
        f"rank-{rank}": {"0": rank + values, "1": torch.tensor(seed), "nothing": torch.empty(0)} for rank in range(2)
    }


def directory(path: Path, attempt: str = "a") -> CheckpointDirectory:
    return CheckpointDirectory(LocalStorage("checkpointDir"), str(path), attempt)


def save(there: CheckpointDirectory, step: int, keep: int = 3, run: dict[str, Any] = RUN) -> None:
    there.complete(step, run, there.write(step, parts(step)), keep)


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    there = directory(tmp_path / "new")
    assert there.steps() == []
    save(there, 12)
    assert there.steps() == [12]
    manifest, fault = there.manifest(12)
    assert (manifest["run"], fault) == (RUN, None)
    assert there.find_damage(12, manifest, ["rank-0", "rank-1"]) is None
    for part, given in parts(12).items():
        back = there.read(12, part)
        assert set(back) == set(given)
        assert all(torch.equal(back[name], given[name]) and back[name].dtype == given[name].dtype for name in given)


def test_the_newest_are_kept(tmp_path: Path) -> None:
    there = directory(tmp_path)
    for step in (1, 2, 3, 4):
        save(there, step, keep=2)
    assert there.steps() == [4, 3]
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("damage", ["flip", "cut", "delete"])
def test_a_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    there = directory(tmp_path)
    save(there, 5)
    hurt(tmp_path / "step-00000005" / "rank-1.safetensors", damage)
    manifest, fault = there.manifest(5)
    assert fault is None
    assert "step-00000005/rank-1.safetensors" in (there.find_damage(5, manifest, ["rank-0", "rank-1"]) or "")
    assert there.find_damage(5, manifest, ["rank-0"]) is None


@pytest.mark.parametrize("damage", ["flip", "cut", "delete"])
def test_a_damaged_manifest_is_named(tmp_path: Path, damage: str) -> None:
    there = directory(tmp_path)
    save(there, 5)
    hurt(tmp_path / "step-00000005" / "manifest.json", damage)
    assert "step-00000005/manifest.json" in (there.manifest(5)[1] or "")


def hurt(path: Path, damage: str) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink() if damage == "delete" else path.write_bytes(data if damage == "flip" else data[:-1])


def test_another_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = directory(tmp_path)
    save(there, 5)
    monkeypatch.setattr(checkpoint, "FORMAT", 2)
    with pytest.raises(PersistenceError, match="step-00000005 has format 1. This sparkdl_comm reads 2"):
        there.manifest(5)


def test_a_directory_that_is_not_shared(tmp_path: Path) -> None:
    there, elsewhere = directory(tmp_path / "a"), directory(tmp_path / "b")
    files = {**there.write(1, {"rank-0": {}}), **elsewhere.write(1, {"rank-1": {}})}
    with pytest.raises(PersistenceError, match=r"rank-1\.safetensors .*checkpointDir must be a directory that all"):
        there.complete(1, RUN, files, 2)
    assert there.steps() == []


def test_what_another_gang_did_not_complete_is_deleted(tmp_path: Path) -> None:
    old, new = directory(tmp_path, "a"), directory(tmp_path, "b")
    save(old, 2)
    save(old, 3)
    old.write(4, parts(4))
    new.write(3, parts(3))
    assert new.steps() == [3, 2]
    new.clean(2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002", "step-00000003.tmp-b"]


def test_the_gang_before_was_late(tmp_path: Path) -> None:
    old, new = directory(tmp_path, "a"), directory(tmp_path, "b")
    files = new.write(3, parts(3))
    save(old, 3)
    new.complete(3, RUN, files, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000003"]
    save(old, 4, run={"world": 3})
    with pytest.raises(PersistenceError, match="another fit"):
        save(new, 4)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PersistenceError, match=r"file.*checkpointDir"):
        directory(tmp_path / "file").write(1, parts(1))


def _write_for_ever(path: Path) -> None:
    step = 1
    while True:
        save(directory(path), step)
        step += 1


@pytest.mark.parametrize("delay", [0.0, 0.003, 0.011, 0.023])
def test_killed_while_it_writes(tmp_path: Path, delay: float) -> None:
    process = context.Process(target=_write_for_ever, args=(tmp_path,), daemon=True)
    process.start()
    there, until = directory(tmp_path, "b"), time.monotonic() + 30
    while len(there.steps()) < 2 and time.monotonic() < until:
        time.sleep(0.001)
    time.sleep(delay)
    os.kill(process.pid, signal.SIGKILL)
    process.join(10)
    assert process.exitcode == -signal.SIGKILL
    steps = there.steps()
    assert steps
    # the oldest may have been under way to its deletion
    for step in steps[:2]:
        manifest, fault = there.manifest(step)
        assert fault is None
        assert there.find_damage(step, manifest, parts(step)) is None
