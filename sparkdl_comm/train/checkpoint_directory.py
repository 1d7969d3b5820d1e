"""Checkpoint layout on disk: sharded, completed by one atomic rename, verified before use.

::

    step-00000012/                   complete: renamed to this only after all its files were on disk
        manifest.json                step, run description, size and SHA-256 of every file, and the manifest's own SHA-256
        parameters-0.safetensors     ranges of the flat parameters that rank 0 updates; if sharded also -1, ...
        optimizer-0.safetensors      torch's state_dict for these
        common.safetensors           state that is equal on all ranks, such as the best model; rank 0's untrained state
        rank-0.safetensors, ...      each rank's own state: position, random generators, untrained state that differs
    step-00000024.tmp-<attempt>/     being written, or left behind by a gang that has ended

1. Every rank writes its files into the ``.tmp-`` directory of the gang's attempt, and sends their sizes and checksums
   to rank 0.
2. When all ranks have reported, rank 0 writes the manifest and renames the directory.
3. Rank 0 deletes all but the newest complete checkpoints.

Each attempt writes under its own name, so a replaced gang cannot damage its successor's files. Nothing is pickled: the
files hold tensors, and JSON packed into a tensor (see :mod:`sparkdl_comm.gang.tensors`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from sparkdl_comm.errors import ConfError, PersistenceError
from sparkdl_comm.storage.files import FileStorage

FORMAT = 1
MANIFEST = "manifest.json"
_COMPLETE = re.compile(r"step-(\d{8,})")
_PROBE = ".probe-"
_CHUNK = 1 << 20
_UNFINISHED = re.compile(r"step-\d{8,}\.tmp-(.+)")

Tensors = dict[str, torch.Tensor]


def writers_of(manifest: Mapping[str, Any]) -> list[int]:
    """Return the ranks that wrote parameters and optimizer state: every rank if the strategy was sharded, else rank 0."""
    return [rank for rank in range(manifest["run"]["world"]) if _file(f"parameters-{rank}") in manifest["files"]]


def check_unused(directory: str, steps: Sequence[int], resume: bool) -> None:
    """Refuse a directory that has complete checkpoints, unless training is to resume from them.

    :raises ConfError: ``steps`` is not empty, and ``resume`` is not set.
    """
    if steps and not resume:
        raise ConfError(
            f"checkpointDir={directory} already has checkpoints, the newest of step {steps[0]}. Set resume=True to continue"
            " from it, or use another directory."
        )


class CheckpointDirectory:
    """Checkpoints in a directory, as one ``attempt`` of the gang reads and writes them.

    All methods raise PersistenceError, with the path.
    """

    def __init__(self, storage: FileStorage, directory: str, attempt: str) -> None:
        """:param directory: a path of ``storage``."""
        self._storage = storage
        self._directory = directory.rstrip("/")
        self._attempt = attempt

    def steps(self) -> list[int]:
        """Return the steps of the complete checkpoints, newest first."""
        matches = map(_COMPLETE.fullmatch, self._names())
        return sorted((int(match[1]) for match in matches if match), reverse=True)

    def probe(self, rank: int) -> str:
        """Write an empty file to test that this rank can write. Return its name; the caller deletes the file."""
        name = f"{_PROBE}{self._attempt}-{rank}"
        self._storage.create(self._path(name), lambda path: path.touch())
        return name

    def check_shared(self, names: Iterable[str]) -> None:
        """Check on rank 0 that it sees the files that the other ranks wrote.

        :raises PersistenceError: rank 0 does not see one of ``names``.
        """
        self._check_seen("", names)

    def delete(self, name: str) -> None:
        self._storage.delete(self._path(name))

    def write(self, step: int, parts: Mapping[str, Tensors]) -> dict[str, dict[str, Any]]:
        """Write parts of a checkpoint: contiguous CPU tensors by name. Return when they are on disk.

        The result has ``bytes`` and ``sha256`` by file name, for :meth:`complete`.
        """
        return {_file(part): self._put(step, _file(part), tensors) for part, tensors in parts.items()}

    def complete(self, step: int, run: Mapping[str, Any], files: Mapping[str, Any], keep: int) -> None:
        """Make the checkpoint visible, then delete all but the newest ``keep``. Rank 0 calls it when all ranks have
        written.

        :param run: JSON-able description of the run, which a resumed run must match. :meth:`manifest` returns it.
        :param files: the results of :meth:`write` of all ranks.
        :raises PersistenceError: the storage fails, or another fit has written a checkpoint of this step.
        """
        new = self._unfinished_name(step)
        self._check_seen(new, files)
        if _name(step) in self._names():
            # A late rank of the gang that this one replaced has completed it. The contents are the same, bit by bit.
            if self.manifest(step)[0].get("run") != dict(run):
                raise PersistenceError(
                    f"{_name(step)} was written by another fit. Give each fit its own checkpointDir."
                )
            self.delete(new)
            return
        manifest = {"format": FORMAT, "step": step, "run": dict(run), "files": dict(files)}
        text = json.dumps({**manifest, "sha256": _digest(manifest)}, indent=1)
        self._storage.create(self._path(f"{new}/{MANIFEST}"), lambda path: path.write_text(text, encoding="utf-8"))
        self._storage.rename(self._path(new), self._path(_name(step)))
        for old in self.steps()[keep:]:
            self.delete(_name(old))

    def clean(self, last: int) -> None:
        """Delete incomplete checkpoints of other attempts, and checkpoints newer than step ``last``, which were found
        damaged.

        Rank 0 calls it before training resumes from step ``last``.
        """
        for name in self._names():
            complete, unfinished = _COMPLETE.fullmatch(name), _UNFINISHED.fullmatch(name)
            if complete and int(complete[1]) > last:
                self.delete(name)
            probe = name.startswith(_PROBE) and not name.startswith(_PROBE + self._attempt)
            if probe or (unfinished and unfinished[1] != self._attempt):
                with contextlib.suppress(PersistenceError):  # a rank of that gang may still be writing into it
                    self.delete(name)

    def manifest(self, step: int) -> tuple[dict[str, Any], str | None]:
        """Return the manifest, and a description of its damage (None: it is intact)."""
        path = self._storage.local(self._path(f"{_name(step)}/{MANIFEST}"))
        if path is None:
            return {}, f"{_name(step)}/{MANIFEST} is missing"
        try:
            manifest = json.loads(path.read_text(encoding="utf-8"))
            is_intact = manifest.pop("sha256") == _digest(manifest)
        except (ValueError, KeyError, TypeError, AttributeError):
            is_intact = False
        if not is_intact:
            return {}, f"{_name(step)}/{MANIFEST} is damaged: its checksum is wrong"
        if manifest["format"] != FORMAT:
            raise PersistenceError(f"{_name(step)} has format {manifest['format']}. This sparkdl_comm reads {FORMAT}.")
        return manifest, None

    def find_damage(self, step: int, manifest: Mapping[str, Any], parts: Iterable[str]) -> str | None:
        """Return what is wrong with these parts of a checkpoint, or None."""
        for part in parts:
            name = f"{_name(step)}/{_file(part)}"
            path = self._storage.local(self._path(name))
            if path is None:
                return f"{name} is missing"
            if _checksums(path) != manifest["files"].get(_file(part)):
                return f"{name} is damaged: size or checksum differs from the manifest"
        return None

    def read(self, step: int, part: str) -> Tensors:
        """Return the tensors of an intact part, as they were given to :meth:`write`."""
        path = self._storage.local(self._path(f"{_name(step)}/{_file(part)}"))
        try:
            # Copied: safetensors maps the file, which is deleted when there are newer checkpoints.
            return {name: tensor.clone() for name, tensor in safetensors.torch.load_file(str(path)).items()}
        except (OSError, safetensors.SafetensorError) as error:
            raise PersistenceError(f"cannot read {path}: {error}") from error

    def _put(self, step: int, name: str, tensors: Tensors) -> dict[str, Any]:
        sums: dict[str, Any] = {}

        def write(path: Path) -> None:
            try:
                safetensors.torch.save_file(tensors, path)
            except safetensors.SafetensorError as error:
                raise PersistenceError(f"cannot write {path} (checkpointDir): {error}") from error
            sums.update(_checksums(path))

        self._storage.create(self._path(f"{self._unfinished_name(step)}/{name}"), write)
        return sums

    def _check_seen(self, directory: str, names: Iterable[str]) -> None:
        missing = sorted(set(names) - set(self._names(directory)))
        if missing:
            raise PersistenceError(
                f"rank 0 does not see {', '.join(missing)} in {directory or 'checkpointDir'}, which other ranks wrote:"
                " checkpointDir must be a directory that all executors share"
            )

    def _names(self, directory: str = "") -> list[str]:
        return self._storage.names(self._path(directory))

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"

    def _unfinished_name(self, step: int) -> str:
        return f"{_name(step)}.tmp-{self._attempt}"


def _checksums(path: Path) -> dict[str, Any]:
    """Return ``bytes`` and ``sha256`` of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return {"bytes": path.stat().st_size, "sha256": digest.hexdigest()}


def _digest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _file(part: str) -> str:
    return f"{part}.safetensors"
