"""Groups of a gang's ranks: the whole gang, or a part of it, made like ``MPI_Comm_split``."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence

from sparkdl_comm.errors import InputError
from sparkdl_comm.gang.gang import Gang


class RankGroup:
    """Group of ranks that includes this rank. All its ranks create the same group.

    :param ranks: ``ranks[r]``: the gang's rank that has number ``r`` in the group.
    :param name: differs from the name of every other group of this rank; "" for the whole gang.
    """

    def __init__(self, gang: Gang, ranks: Sequence[int], name: str) -> None:
        self.gang, self.ranks, self.name = gang, tuple(ranks), name
        #: Number of this rank in the group.
        self.rank = self.ranks.index(gang.rank)
        self.world = len(self.ranks)
        self.members = tuple(gang.members[rank] for rank in self.ranks)
        self._splits = self._gathers = 0
        self._store = gang.store(f"group {name}") if name else None

    @classmethod
    def of_gang(cls, gang: Gang) -> RankGroup:
        return cls(gang, range(gang.world), "")

    def split(self, color: int | None, key: int, timeout: float) -> RankGroup | None:
        """Return the group of the ranks that pass the same ``color``; None if this rank's color is None.

        Ranks are ordered by ``key``, then by their numbers here. All ranks of this group call it, in the same order.

        :param timeout: seconds to wait for the other ranks.
        :raises InputError: color or key is not an integer.
        :raises DeadlineError: a rank did not call it in time.
        """
        if type(color) not in (int, type(None)) or type(key) is not int:
            raise InputError(f"split(color={color!r}, key={key!r}): both must be integers. color=None joins no group")
        number, self._splits = self._splits, self._splits + 1
        messages = [json.loads(theirs) for theirs in self.all_gather(json.dumps([color, key]).encode(), timeout)]
        if color is None:
            return None
        members = sorted((theirs[1], rank) for rank, theirs in enumerate(messages) if theirs[0] == color)
        return RankGroup(self.gang, [self.ranks[rank] for _, rank in members], f"{self.name}/{number}:{color}")

    def all_gather(self, value: bytes, timeout: float) -> list[bytes]:
        """Return the value of each rank of the group, by its number here. Otherwise like :meth:`Gang.all_gather`."""
        if self._store is None:
            return self.gang.all_gather(value, timeout)
        number, self._gathers = self._gathers, self._gathers + 1
        self._store.set_timeout(datetime.timedelta(seconds=timeout))
        self._store.set(f"{number} {self.rank}", value)
        found = self._store.multi_get([f"{number} {rank}" for rank in range(self.world)])
        if number:  # a rank that takes part in this gather has completed the previous one
            self._store.delete_key(f"{number - 1} {self.rank}")
        return found
