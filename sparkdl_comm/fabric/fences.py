"""Which lost nodes the core has not heard of yet, as who got something of them has not said what. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sparkdl_comm.fabric.core.roles import Node


@dataclass
class _Fence:
    lost: Node
    awaited: set[Node]
    deadline: float


class Fences:
    """A fence is put up when a node is lost, and is passed when all whom it may have sent something have answered."""

    def __init__(self) -> None:
        self._fences: dict[int, _Fence] = {}
        self._next = 0

    def begin(self, lost: Node, awaited: Iterable[Node], deadline: float) -> int:
        """A node is lost; ``awaited`` are to answer until ``deadline``, seconds. The number by which they do. Nobody waits for
        the lost node any more."""
        for fence in self._fences.values():
            fence.awaited.discard(lost)
        number, self._next = self._next, self._next + 1
        self._fences[number] = _Fence(lost, set(awaited), deadline)
        return number

    def answered(self, number: int, node: Node) -> None:
        if number in self._fences:
            self._fences[number].awaited.discard(node)

    def overdue(self, now: float) -> tuple[Node, Node] | None:
        """A lost node, and one that should have answered about it before ``now``, if there is one."""
        for fence in self._fences.values():
            if fence.awaited and now > fence.deadline:
                return fence.lost, min(fence.awaited, key=str)
        return None

    def passed(self) -> list[Node]:
        """The lost nodes of which all is known, each once."""
        done = [number for number, fence in self._fences.items() if not fence.awaited]
        return [self._fences.pop(number).lost for number in done]
