"""Checkpoints on disk: sharded, atomic, checked before they are believed.

::

    step-00000012/                   complete: it got this name by one rename, after everything in it was on disk
        manifest.json                step, what the run is, size and SHA-256 of every file, and its own
        parameters-0.safetensors     the stretches of the flat parameters that rank 0 updates; also -1, ... if sharded
        optimizer-0.safetensors      torch's state_dict for these
        common.safetensors           what is the same on all ranks, such as the best model so far; rank 0's untrained state
        rank-0.safetensors, ...      what each rank has for itself: position, random generators, untrained state that differs
    step-00000024.tmp-<attempt>/  being written, or left behind by a gang that is gone

1. Every rank writes its files into the gang's own ``.tmp-`` directory and tells rank 0 their sizes and sums.
2. When it has them of all ranks, rank 0 writes the manifest and renames the directory.
3. Rank 0 deletes all but the newest complete ones.

A gang that was replaced writes under another name, so it cannot spoil what its successor writes. Nothing is pickled: the
files hold tensors, one of which is JSON (see :mod:`sparkdl_comm.gang.values`).
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
from sparkdl_comm.train.checkpoint.storage import CheckpointStorage, sums

FORMAT = 1
MANIFEST = "manifest.json"
_COMPLETE = re.compile(r"step-(\d{8,})")
_PROBE = ".probe-"
_UNFINISHED = re.compile(r"step-\d{8,}\.tmp-(.+)")

Tensors = dict[str, torch.Tensor]


def complete_steps(names: Iterable[str]) -> list[int]:
    """Steps of the complete checkpoints among what is in a directory, newest first."""
    found = map(_COMPLETE.fullmatch, names)
    return sorted((int(match[1]) for match in found if match), reverse=True)


def writers_of(manifest: Mapping[str, Any]) -> list[int]:
    """The ranks that wrote parameters and the optimizer's state: each its own part, if the strategy was sharded then, or rank
    0 alone."""
    return [rank for rank in range(manifest["run"]["world"]) if _file(f"parameters-{rank}") in manifest["files"]]


def check_unused(directory: str, steps: Sequence[int], resume: bool) -> None:
    """Refuses a directory with complete checkpoints, unless training is to go on from them.

    :raises ConfError: there are some, and ``resume`` is not set.
    """
    if steps and not resume:
        raise ConfError(
            f"checkpointDir={directory} has checkpoints already, the newest of step {steps[0]}: set resume=True to go on from"
            " it, or name another directory"
        )


class CheckpointDirectory:
    """The checkpoints in a directory, as this ``attempt`` of the gang sees them. All methods raise PersistenceError, with the
    path."""

    def __init__(self, storage: CheckpointStorage, attempt: str) -> None:
        self._storage = storage
        self._attempt = attempt

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, newest first."""
        return complete_steps(self._storage.names())

    def probe(self, rank: int) -> str:
        """Writes a small file, as this rank will have to write large ones; returns its name, to be deleted."""
        name = f"{_PROBE}{self._attempt}-{rank}"
        self._storage.create(name, lambda path: path.touch())
        return name

    def check_shared(self, names: Iterable[str]) -> None:
        """Rank 0: PersistenceError unless it sees what the others have written."""
        self._check_seen("", names)

    def delete(self, name: str) -> None:
        self._storage.delete(name)

    def write(self, step: int, parts: Mapping[str, Tensors]) -> dict[str, dict[str, Any]]:
        """Write parts of a checkpoint, contiguous CPU tensors by name. Returns when they are on disk: for :meth:`complete`,
        ``bytes`` and ``sha256`` by file name."""
        return {_file(part): self._put(step, _file(part), tensors) for part, tensors in parts.items()}

    def complete(self, step: int, run: Mapping[str, Any], files: Mapping[str, Any], keep: int) -> None:
        """Rank 0, when all ranks have written: make the checkpoint visible, then delete all but the newest ``keep``.

        :param run: JSON-able, what a run must be to go on from here; :meth:`manifest` gives it back.
        :param files: what :meth:`write` returned, of all ranks.
        """
        new = self._new(step)
        self._check_seen(new, files)
        if _name(step) in self._storage.names():
            # By the gang that this one replaced, whose last rank took its time: it is what this gang has, bit by bit.
            if self.manifest(step)[0].get("run") != dict(run):
                raise PersistenceError(
                    f"{_name(step)} was written by another fit: each needs a checkpointDir of its own"
                )
            self._storage.delete(new)
            return
        manifest = {"format": FORMAT, "step": step, "run": dict(run), "files": dict(files)}
        text = json.dumps({**manifest, "sha256": _digest(manifest)}, indent=1)
        self._storage.create(f"{new}/{MANIFEST}", lambda path: path.write_text(text, encoding="utf-8"))
        self._storage.rename(new, _name(step))
        for old in self.steps()[keep:]:
            self._storage.delete(_name(old))

    def clean(self, last: int) -> None:
        """Rank 0, before training goes on from step ``last``: delete what other gangs did not complete, and what is newer,
        because it was found damaged."""
        for name in self._storage.names():
            complete, unfinished = _COMPLETE.fullmatch(name), _UNFINISHED.fullmatch(name)
            if complete and int(complete[1]) > last:
                self._storage.delete(name)
            probe = name.startswith(_PROBE) and not name.startswith(_PROBE + self._attempt)
            if probe or (unfinished and unfinished[1] != self._attempt):
                with contextlib.suppress(PersistenceError):  # a rank of that gang may be writing into it still
                    self._storage.delete(name)

    def manifest(self, step: int) -> tuple[dict[str, Any], str | None]:
        """The manifest, and what is wrong with it, None if nothing is."""
        path = self._storage.local(f"{_name(step)}/{MANIFEST}")
        if path is None:
            return {}, f"{_name(step)}/{MANIFEST} is not there"
        try:
            manifest = json.loads(path.read_text(encoding="utf-8"))
            whole = manifest.pop("sha256") == _digest(manifest)
        except (ValueError, KeyError, TypeError, AttributeError):
            whole = False
        if not whole:
            return {}, f"{_name(step)}/{MANIFEST} is damaged: not what was written"
        if manifest["format"] != FORMAT:
            raise PersistenceError(f"{_name(step)}: format {manifest['format']}, and this sparkdl_comm reads {FORMAT}")
        return manifest, None

    def damage(self, step: int, manifest: Mapping[str, Any], parts: Iterable[str]) -> str | None:
        """What is wrong with these parts of a checkpoint, None if nothing is."""
        for part in parts:
            name = f"{_name(step)}/{_file(part)}"
            path = self._storage.local(name)
            if path is None:
                return f"{name} is not there"
            if sums(path) != manifest["files"].get(_file(part)):
                return f"{name} is damaged: not the bytes that its manifest tells"
        return None

    def read(self, step: int, part: str) -> Tensors:
        """What was given to :meth:`write`; of a part that is not damaged."""
        path = self._storage.local(f"{_name(step)}/{_file(part)}")
        try:
            # Copied: the library maps the file, which is deleted when there are newer ones.
            return {name: tensor.clone() for name, tensor in safetensors.torch.load_file(str(path)).items()}
        except (OSError, safetensors.SafetensorError) as error:
            raise PersistenceError(f"cannot read {path}: {error}") from error

    def _put(self, step: int, name: str, tensors: Tensors) -> dict[str, Any]:
        def write(path: Path) -> None:
            try:
                safetensors.torch.save_file(tensors, path)
            except safetensors.SafetensorError as error:
                raise PersistenceError(f"cannot write {path} (checkpointDir): {error}") from error

        return self._storage.create(f"{self._new(step)}/{name}", write)

    def _check_seen(self, directory: str, names: Iterable[str]) -> None:
        absent = sorted(set(names) - set(self._storage.names(directory)))
        if absent:
            raise PersistenceError(
                f"rank 0 does not see {', '.join(absent)} in {directory or 'checkpointDir'}, which other ranks wrote:"
                " checkpointDir must be a directory that all executors share"
            )

    def _new(self, step: int) -> str:
        return f"{_name(step)}.tmp-{self._attempt}"


def _digest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _file(part: str) -> str:
    return f"{part}.safetensors"
