"""Row sets that a fit leaves on the executors' disks for the next fit on the same data.

A *row set* is the rows of a fit: one folder per rank. A rank *seals* its folder when its rows are in it. If the fit
succeeds and all ranks have sealed, each folder is kept under the set's name and the rank's number. In the next fit,
tasks *claim* the folders on their executor. Each task claims one folder and takes that folder's rank. Folders that are
damaged or have another format are not claimed.
"""

from __future__ import annotations

import json
import zlib
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from sparkdl_comm.data.arrow_file import MappedFile
from sparkdl_comm.data.batch_collector import COLUMNS_FILE, SortedColumns
from sparkdl_comm.data.builders import ArrayBuilder, Builder, RaggedBuilder
from sparkdl_comm.data.cache import RowReader
from sparkdl_comm.data.fields import Field, RowFormat
from sparkdl_comm.data.local_disk import Folder, LocalDisk

_SEAL = "seal.json"
_CHUNK_BYTES = 1 << 20


def describe_format(rows: RowFormat) -> list[Any]:
    """Return everything in the format that decides how a rank keeps rows and which it refuses; JSON-able."""
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
        for _, field in rows.named_fields()
    ]
    return [fields, len(rows.inputs), rows.weight is not None, rows.validation is not None]


def seal(reading: RowReader, rows: RowFormat) -> bool:
    """Write the seal of the folder of ``reading``, so that it may be kept.

    Return False if there is no folder or the seal cannot be written.
    """
    if reading.folder is None:
        return False
    path = reading.folder.path
    account = reading.account
    count = account["training"]["rows"] + account["validation"]["rows"]
    try:
        contents = {
            "format": describe_format(rows),
            "account": account,
            "rows": count,
            "training": account["training"]["rows"],
            "crc32": _file_crc32(path / COLUMNS_FILE) if count else 0,
        }
        (path / _SEAL).write_text(json.dumps(contents))
    except OSError:
        return False
    return True


def claim(disk: LocalDisk, name: str, attempt: str, rows: RowFormat) -> tuple[int, KeptRows] | None:
    """Claim an intact folder of the row set ``name`` on this executor, and return its rank and rows.

    Each task of a gang's ``attempt`` gets another folder. None: there is no intact folder left.

    :raises OSError: the disk cannot be used.
    """
    with ExitStack() as unusable:  # bad folders stay claimed until the end, so none is tried twice
        while (folder := disk.claim(name, attempt)) is not None:
            try:
                contents = json.loads((folder.path / _SEAL).read_text())
                if contents["format"] == describe_format(rows) and (
                    not contents["rows"] or _file_crc32(folder.path / COLUMNS_FILE) == contents["crc32"]
                ):
                    return int(folder.path.name.rpartition("-")[2]), KeptRows(folder, contents, rows)
            except (OSError, ValueError, KeyError):
                pass  # the folder is damaged
            unusable.callback(folder.close)
    return None


class KeptRows(RowReader):
    """Rows of a rank of an earlier fit."""

    def __init__(self, folder: Folder, contents: dict[str, Any], rows: RowFormat) -> None:
        """``contents``: contents of the seal, which has the same format as ``rows``.

        :raises OSError: the file cannot be mapped.
        """
        self._format, self._folder = rows, folder
        self.account = contents["account"]
        self._set_columns(_load_columns(folder.path / COLUMNS_FILE, contents, rows))

    @property
    def folder(self) -> Folder | None:
        return self._folder


def _load_columns(path: Path, contents: dict[str, Any], rows: RowFormat) -> SortedColumns:
    count = contents["rows"]
    file = MappedFile(path) if count else None
    builders: dict[str, Any] = {}
    for name, field in rows.named_fields():
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
    return SortedColumns(count, contents["training"], contents["account"]["sha256"], targets, weights, file)


def _file_crc32(path: Path) -> int:
    crc = 0
    with open(path, "rb") as file:
        while piece := file.read(_CHUNK_BYTES):
            crc = zlib.crc32(piece, crc)
    return crc
