"""Space on an executor's disk, in folders that several ranks and fits share."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from sparkdl_comm.data import local_disk
from sparkdl_comm.data.local_disk import LocalDisk
from sparkdl_comm.errors import PersistenceError
from tests.unit.disk_helpers import left

ENOUGH = 1 << 30


def test_the_oldest_that_nobody_uses_is_removed(tmp_path: Path) -> None:
    space = LocalDisk(tmp_path, 100)
    for age, name in enumerate(("new", "used", "old")):
        folder = space.create_folder()
        folder.reserve(30)
        assert folder.keep(name, 0)
        os.utime(folder.path / "bytes", (1000 - age, 1000 - age))
        if name != "used":
            folder.close()
    mine = space.create_folder()
    mine.reserve(10)
    assert left(tmp_path) == sorted(["new-0", "old-0", "used-0", mine.path.name])
    mine.reserve(40)
    assert left(tmp_path) == sorted(["new-0", "used-0", mine.path.name])
    mine.reserve(70)
    assert left(tmp_path) == sorted(["used-0", mine.path.name])
    with pytest.raises(PersistenceError, match=r"110 bytes .*cacheLimit=100, .*\(30 are in use by other"):
        mine.reserve(80)


def test_what_a_killed_rank_left_is_removed_by_the_next(tmp_path: Path) -> None:
    space = LocalDisk(tmp_path, ENOUGH)
    pid = os.fork()
    if pid == 0:
        space.create_folder().reserve(5)
        os._exit(9)
    os.waitpid(pid, 0)
    alive, mine = space.create_folder(), space.create_folder()
    alive.reserve(5)
    assert len(left(tmp_path)) == 2, "the dead one's is gone"
    mine.reserve(5)
    assert left(tmp_path) == sorted([alive.path.name, mine.path.name])


def test_some_of_the_disk_is_left_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1000, 940, 60))
    folder = LocalDisk(tmp_path, ENOUGH).create_folder()
    folder.reserve(10)
    with pytest.raises(PersistenceError, match="has no room for 11 more bytes: 60 are free, and 5% of the disk"):
        folder.reserve(21)


def test_others_that_hold_the_lock_for_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_disk, "_LOCK_SECONDS", 0.0)
    space = LocalDisk(tmp_path, ENOUGH)
    folder = space.create_folder()
    with space.lock(), pytest.raises(PersistenceError, match="other processes held"):
        folder.reserve(1)


def test_the_largest_of_sparks_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {tmp_path / "one": 10, tmp_path / "two": 20, tmp_path / "gone": 30}
    for path in list(sizes)[:2]:
        path.mkdir()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(sizes[path], 0, sizes[path]))
    monkeypatch.setenv("SPARK_LOCAL_DIRS", ",".join(map(str, sizes)))
    found = LocalDisk.of_executor(5).create_folder()
    assert found.path.parent == tmp_path / "two" / "sparkdl-rows"
