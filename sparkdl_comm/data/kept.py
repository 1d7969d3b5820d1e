"""Rows that a fit leaves on executors' disks for the next one on the same data.

A fit's rows are a *row set*, a folder for each rank. A rank *seals* its folder when its rows are in it; it is kept under the
set's name and the rank's number when the fit has ended well, if all ranks have sealed theirs. In the next fit, tasks *claim*
what lies on their executor: each takes one folder, and is the rank whose rows these are. What is damaged, or was written for
another format, is not claimed.
"""

from __future__ import annotations

import json
import zlib
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from sparkdl_comm.data.arrow_file import MappedFile
from sparkdl_comm.data.builders import ArrayBuilder, Builder, RaggedBuilder
from sparkdl_comm.data.cache import Reading
from sparkdl_comm.data.fields import Field, RowFormat
from sparkdl_comm.data.local_disk import Folder, LocalDisk
from sparkdl_comm.data.received import FILE, Columns

_SEAL = "seal.json"
_PIECE = 1 << 20


def described(rows: RowFormat) -> list[Any]:
    """All of a format that decides what a rank keeps of a row, and which rows it refuses; JSON-able."""
    fields = [
        [
            field.dtype,
            None if field.shape is None else list(field.shape),
            field.embeds,
            None if field.limits is None else list(field.limits),
            field.decode is not None,
            field.is_ragged,
            field.width,
        ]
        for _, field in rows.named()
    ]
    return [fields, len(rows.inputs), rows.weight is not None, rows.validation is not None]


def seal(reading: Reading, rows: RowFormat) -> bool:
    """Writes down what is in the folder of ``reading``, which may then be kept. False: there is none, or it cannot be."""
    if reading.folder is None:
        return False
    path = reading.folder.path
    account = reading.account
    count = account["training"]["rows"] + account["validation"]["rows"]
    try:
        told = {
            "format": described(rows),
            "account": account,
            "rows": count,
            "training": account["training"]["rows"],
            "crc32": _crc(path / FILE) if count else 0,
        }
        (path / _SEAL).write_text(json.dumps(told))
    except OSError:
        return False
    return True


def claim(disk: LocalDisk, name: str, attempt: str, rows: RowFormat) -> tuple[int, KeptRows] | None:
    """One rank's rows out of what is left of the row set ``name`` on this executor, and the rank. Each of the tasks of a
    gang's ``attempt`` gets another; None: there is nothing left that is whole.

    :raises OSError: the disk cannot be used.
    """
    with ExitStack() as unusable:  # claimed until another is found, so that each is looked at once
        while (folder := disk.claim(name, attempt)) is not None:
            try:
                told = json.loads((folder.path / _SEAL).read_text())
                if told["format"] == described(rows) and (
                    not told["rows"] or _crc(folder.path / FILE) == told["crc32"]
                ):
                    return int(folder.path.name.rpartition("-")[2]), KeptRows(folder, told, rows)
            except (OSError, ValueError, KeyError):
                pass  # it is damaged
            unusable.callback(folder.close)
    return None


class KeptRows(Reading):
    """The rows of an earlier fit's rank."""

    def __init__(self, folder: Folder, told: dict[str, Any], rows: RowFormat) -> None:
        """``told``: what was sealed, for the same format.

        :raises OSError: the file cannot be mapped.
        """
        self._format, self._folder = rows, folder
        self.account = told["account"]
        self._use(_columns(folder.path / FILE, told, rows))

    @property
    def folder(self) -> Folder | None:
        return self._folder


def _columns(path: Path, told: dict[str, Any], rows: RowFormat) -> Columns:
    count = told["rows"]
    file = MappedFile(path) if count else None
    builders: dict[str, Any] = {}
    for name, field in rows.named():
        if field.is_ragged:
            lengths = np.zeros(0, np.int64) if file is None else np.diff(file.offsets[name])
            builders[name] = RaggedBuilder(field, lengths)
        else:
            builders[name] = ArrayBuilder(field, count)
    targets: list[Builder] = list(builders.values())
    weights = None
    if rows.weight is not None:
        weights = builders["weight"] = ArrayBuilder(Field("weightCol", rows.weight, "float64", ()), count)
    if file is not None:
        for name, builder in builders.items():
            builder.array = file.arrays[name]
    return Columns(count, told["training"], told["account"]["sha256"], targets, weights, file)


def _crc(path: Path) -> int:
    found = 0
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            found = zlib.crc32(piece, found)
    return found
