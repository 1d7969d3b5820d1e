"""How the ranks of a benchmark on the lab become a gang, without Spark: by files in a folder."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path

from lab import Place

from sparkdl_comm.errors import DeadlineError
from sparkdl_comm.gang.gang import Gang


def join_gang(folder: str, place: Place, seconds: float, host: str | None = None) -> Gang:
    """The gang of all ranks that were told the same folder.

    :param host: address for what is no data; None: that of the lab's control network.
    :raises DeadlineError: not all ranks came within ``seconds``.
    """
    return Gang.join(
        rank=place.rank,
        world=place.world,
        host=host or place.control,
        exchange=_exchange_by_files(Path(folder), place, seconds),
        secret=hashlib.sha256(folder.encode()).digest(),
        attempt="bench",
        timeout=seconds,
        rails=place.addresses,
    )


def _exchange_by_files(folder: Path, place: Place, seconds: float) -> Callable[[str], list[str]]:
    """What the rendezvous at the driver does in training: every rank learns what each of them said."""

    def exchange(text: str) -> list[str]:
        (folder / f"{place.rank}.new").write_text(text)
        (folder / f"{place.rank}.new").rename(folder / f"{place.rank}.json")
        paths = [folder / f"{rank}.json" for rank in range(place.world)]
        deadline = time.monotonic() + seconds
        while not all(path.exists() for path in paths):
            if time.monotonic() > deadline:
                raise DeadlineError(f"not all of {place.world} ranks wrote to {folder}")
            time.sleep(0.01)
        return [path.read_text() for path in paths]

    return exchange
