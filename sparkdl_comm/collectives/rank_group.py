"""Which of a gang's ranks do something together: all of them, or a part, made as ``MPI_Comm_split`` makes it."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence

from sparkdl_comm.errors import InputError
from sparkdl_comm.gang.gang import Gang


class RankGroup:
    """This rank and those with which it makes a group. All of them make it alike.

    :param ranks: ``ranks[r]``: the gang's rank that has number ``r`` in the group.
    :param name: of the group, unlike that of any other that this rank is in; "": all of the gang.
    """

    def __init__(self, gang: Gang, ranks: Sequence[int], name: str) -> None:
        self.gang, self.ranks, self.name = gang, tuple(ranks), name
        #: This rank's number in the group.
        self.rank = self.ranks.index(gang.rank)
        self.world = len(self.ranks)
        self.members = tuple(gang.members[rank] for rank in self.ranks)
        self._splits = self._gathers = 0
        self._store = gang.store(f"group {name}") if name else None

    @classmethod
    def of_all(cls, gang: Gang) -> RankGroup:
        return cls(gang, range(gang.world), "")

    def split(self, color: int | None, key: int, timeout: float) -> RankGroup | None:
        """The group of those that give the same ``color``, ordered by ``key``, then by their numbers here; None for a rank
        whose color is None. All ranks of this group call it, in the same order.

        :param timeout: seconds to wait for the others.
        :raises InputError: color or key is not a whole number. DeadlineError: a rank did not call it in time.
        """
        if type(color) not in (int, type(None)) or type(key) is not int:
            raise InputError(f"split(color={color!r}, key={key!r}): whole numbers, or None as color to be in no group")
        number, self._splits = self._splits, self._splits + 1
        told = [json.loads(theirs) for theirs in self.all_gather(json.dumps([color, key]).encode(), timeout)]
        if color is None:
            return None
        members = sorted((theirs[1], rank) for rank, theirs in enumerate(told) if theirs[0] == color)
        return RankGroup(self.gang, [self.ranks[rank] for _, rank in members], f"{self.name}/{number}:{color}")

    def all_gather(self, value: bytes, timeout: float) -> list[bytes]:
        """What each rank of the group gave, by its number here. Otherwise as :meth:`Gang.all_gather`."""
        if self._store is None:
            return self.gang.all_gather(value, timeout)
        number, self._gathers = self._gathers, self._gathers + 1
        self._store.set_timeout(datetime.timedelta(seconds=timeout))
        self._store.set(f"{number} {self.rank}", value)
        found = self._store.multi_get([f"{number} {rank}" for rank in range(self.world)])
        if number:  # whoever is in this gathering has all of the one before
            self._store.delete_key(f"{number - 1} {self.rank}")
        return found
