"""Fences: hold back the report of a lost node until its receivers confirm what they got. No input or output."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sparkdl_comm.fabric.core.nodes import Node


@dataclass
class _Fence:
    """Lost node, and the nodes that still have to confirm what they received from it. ``deadline``: clock time in
    seconds."""

    lost: Node
    awaited: set[Node]
    deadline: float


class Fences:
    """Pending fences. A fence begins when a node is lost, and passes when all its possible receivers have answered."""

    def __init__(self) -> None:
        self._fences: dict[int, _Fence] = {}
        self._next_number = 0

    def begin(self, lost: Node, awaited: Iterable[Node], deadline: float) -> int:
        """Begin a fence for a lost node, and return its number, which the answers carry.

        Earlier fences no longer wait for the lost node.

        :param awaited: the nodes that must answer.
        :param deadline: clock time in seconds by which they must answer.
        """
        for fence in self._fences.values():
            fence.awaited.discard(lost)
        number, self._next_number = self._next_number, self._next_number + 1
        self._fences[number] = _Fence(lost, set(awaited), deadline)
        return number

    def record_answer(self, number: int, node: Node) -> None:
        """Record a node's answer to a fence."""
        if number in self._fences:
            self._fences[number].awaited.discard(node)

    def find_overdue(self, now: float) -> tuple[Node, Node] | None:
        """Return a lost node and one node that should have answered about it before ``now``; None if no answer is
        overdue."""
        for fence in self._fences.values():
            if fence.awaited and now > fence.deadline:
                return fence.lost, min(fence.awaited, key=str)
        return None

    def pop_passed(self) -> list[Node]:
        """Remove the fences that all receivers have answered, and return their lost nodes."""
        passed = [number for number, fence in self._fences.items() if not fence.awaited]
        return [self._fences.pop(number).lost for number in passed]
