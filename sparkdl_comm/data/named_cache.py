"""Caches of rows that the user names, on the executors' disks, for later fits and applications.

A rank writes its rows to a folder. When all ranks have their rows, each keeps its folder, with a *seal*, as its part of
the cache. In a later fit, each task takes a part on its host, and that part's rank.

Parts belong together if their seals have the same *set id*. It is a hash of all ranks' rows, so parts that different
fits have written are used together only if these fits had the same rows on each rank. A seal also has the
*fingerprint* of the rows: what can be known of them without reading them. A cache with another fingerprint is refused.
"""

from __future__ import annotations

import hashlib
import json
import socket
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkdl_comm.data.arrow_file import MappedFile
from sparkdl_comm.data.batch_collector import COLUMNS_FILE, SortedColumns
from sparkdl_comm.data.builders import make_builders
from sparkdl_comm.data.cache import RowReader
from sparkdl_comm.data.fields import RowFormat
from sparkdl_comm.data.local_disk import Folder, LocalDisk
from sparkdl_comm.errors import ConfError

NAME_KEY = "spark.sparkdl.comm.data.cacheName"
#: Why a fit that names no cache reads its rows.
NO_NAME = f"{NAME_KEY} is not set"

_SEAL = "seal.json"
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class NamedCache:
    """Cache of the rows of a fit.

    :param name: of the cache.
    :param facts: the driver's part of the fingerprint, as JSON: by name, numbers and texts. ``rows``: number of rows.
    :param is_read: True: ranks read the rows from the cache, and get none from Spark. False: ranks get the rows from
        Spark and keep them.
    """

    name: str
    facts: Mapping[str, int | str]
    is_read: bool

    def fingerprint(self, rows: RowFormat) -> dict[str, int | str]:
        """Return the fingerprint of rows that ranks keep in the format ``rows``."""
        return {**self.facts, "columns": _describe_columns(rows)}

    def check(self, disk: LocalDisk, rows: RowFormat) -> None:
        """Check that no part on this host has another fingerprint.

        :raises ConfError: one has. The message names the differences.
        :raises OSError: the disk cannot be used.
        """
        expected = self.fingerprint(rows)
        for path in disk.parts().get(self.name, {}).values():
            seal = _read_seal(path)
            found = expected if seal is None else seal["fingerprint"]
            names = [name for name in {**expected, **found} if expected.get(name) != found.get(name)]
            if names:
                changes = (f"{name} ({expected.get(name)}, in the cache {found.get(name)})" for name in names)
                raise ConfError(
                    f"{NAME_KEY}={self.name}: the cache of this name on {socket.gethostname()} has other rows. It differs"
                    f" in {'; '.join(changes)}. Set another name, or remove the cache on all executors' hosts:"
                    f" sparkdl-comm cache --dir {disk.root.parent} remove {self.name}"
                )


def _describe_columns(rows: RowFormat) -> str:
    """Return everything in the format that decides how a rank keeps rows and which it refuses."""
    columns = []
    for _, field in rows.named_fields():
        kept = [field.dtype, field.shape, field.embeds, field.limits, field.is_ragged, field.width]
        columns.append(f"{field} {kept}")
    return ", ".join([*columns, *([] if rows.weight is None else [f"weightCol {rows.weight}"])])


def keep(
    reading: RowReader,
    cache: NamedCache,
    disk: LocalDisk,
    rows: RowFormat,
    rank: int,
    accounts: Sequence[dict[str, Any]],
) -> str:
    """Keep the rows of ``reading`` as the part of ``rank``. Return why that is not possible, or an empty text.

    :param accounts: the accounts of all ranks.
    :raises ConfError: another fit has meanwhile used the cache's name for other rows.
    """
    counts = [account["training"]["rows"] + account["validation"]["rows"] for account in accounts]
    if sum(counts) != cache.facts["rows"]:
        return f"the DataFrame had {cache.facts['rows']} rows at first, and {sum(counts)} rows when ranks read it"
    if reading.folder is None:
        return str(reading.account["problem"])
    path = reading.folder.path
    seal: dict[str, Any] = {
        "fingerprint": cache.fingerprint(rows),
        "set": hashlib.sha256(json.dumps([account["sha256"] for account in accounts]).encode()).hexdigest(),
        "account": reading.account,
        "rows": counts[rank],
        "training": reading.account["training"]["rows"],
    }
    try:
        seal["crc32"] = _file_crc32(path / COLUMNS_FILE) if counts[rank] else 0
        (path / _SEAL).write_text(json.dumps(seal))
        cache.check(disk, rows)
        if reading.folder.keep(cache.name, rank):
            return ""
        used = _read_seal(disk.parts()[cache.name][rank])
        return "" if used is not None and used["set"] == seal["set"] else "another fit is using the cache"
    except (OSError, KeyError) as error:  # KeyError: the other fit has ended, and its part is gone
        return str(error)


def choose_part(disk: LocalDisk, cache: NamedCache, partition: int, local: Sequence[int]) -> int | None:
    """Return the rank whose part of the cache the task of ``partition`` takes. None: there is none left on this host.

    A task takes the part of its partition if it is here. The tasks of a gang on this host take different parts.

    :param local: partitions of all tasks of the gang on this host, in order.
    :raises OSError: the disk cannot be used.
    """
    parts = disk.parts().get(cache.name, {})
    if partition in parts:
        return partition
    spare = zip(
        (each for each in local if each not in parts), (rank for rank in parts if rank not in local), strict=False
    )
    return dict(spare).get(partition)


def load(disk: LocalDisk, cache: NamedCache, rank: int, rows: RowFormat) -> CachedRows | None:
    """Return the rows of the part of ``rank``. None: it is damaged.

    :raises OSError: the disk cannot be used.
    """
    folder = disk.open_part(cache.name, rank)
    seal = _read_seal(folder.path)
    if seal is not None and seal["fingerprint"] == cache.fingerprint(rows):
        with suppress(OSError, ValueError):  # the part is damaged
            if not seal["rows"] or _file_crc32(folder.path / COLUMNS_FILE) == seal["crc32"]:
                return CachedRows(folder, seal, rows)
    folder.close()
    return None


def _read_seal(path: Path) -> dict[str, Any] | None:
    """Return the seal of a part. None: it is damaged, or not there."""
    try:
        seal = json.loads((path / _SEAL).read_text())
        return seal if {"fingerprint", "set", "account", "rows", "training", "crc32"} == seal.keys() else None
    except (OSError, ValueError, AttributeError):
        return None


class CachedRows(RowReader):
    """Rows of a rank from a cache. ``set_id``: the set id of the part."""

    def __init__(self, folder: Folder, seal: dict[str, Any], rows: RowFormat) -> None:
        """Open the rows that one rank has kept in ``folder``, its part of the cache.

        :param seal: metadata of the part: fingerprint, set id, row counts and checksum.
        :param rows: format of the rows.
        :raises OSError: the file cannot be mapped.
        """
        self._format, self._folder = rows, folder
        self.account, self.set_id = seal["account"], seal["set"]
        self._set_columns(_load_columns(folder.path / COLUMNS_FILE, seal, rows))

    @property
    def folder(self) -> Folder | None:
        return self._folder


def _load_columns(path: Path, seal: dict[str, Any], rows: RowFormat) -> SortedColumns:
    count = seal["rows"]
    file = MappedFile(path) if count else None
    vectors = {name for name, field in rows.named_fields() if field.width is not None}

    def lengths(name: str) -> NDArray[np.int64] | None:
        if name in vectors and (file is None or name not in file.offsets):
            return None
        return np.zeros(0, np.int64) if file is None else np.diff(file.offsets[name])

    builders = make_builders(rows, count, lengths)
    if file is not None:
        for name, builder in builders.items():
            builder.array = file.arrays[name]
    return SortedColumns(count, seal["training"], seal["account"]["sha256"], builders, file)


def _file_crc32(path: Path) -> int:
    crc = 0
    with open(path, "rb") as file:
        while piece := file.read(_CHUNK_BYTES):
            crc = zlib.crc32(piece, crc)
    return crc
