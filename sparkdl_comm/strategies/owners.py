"""Which rank owns which bucket, where a bucket has one owner. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def in_turns(sizes: Sequence[int], turn: Sequence[int]) -> list[int]:
    """The owner of each bucket, for buckets of these ``sizes`` in the order in which they are reduced: the next rank of
    ``turn`` after the last one's owner whom it does not give too much.

    So with buckets of one size ranks own one after another in turn. What two ranks own never differs by more than the
    largest bucket: a rank is passed over if it would be ahead of one that owns the least by more than that.
    """
    owned = dict.fromkeys(turn, 0)
    limit = max(sizes, default=0)
    owners: list[int] = []
    place = -1
    for size in sizes:
        while True:
            place = (place + 1) % len(turn)
            rank = turn[place]
            # The one that owns least is never passed over, so this ends.
            if owned[rank] + size <= min(owned.values()) + limit:
                break
        owned[rank] += size
        owners.append(rank)
    return owners
