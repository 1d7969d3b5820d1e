"""How the layers of a model are cut into batches that travel one after another."""

from __future__ import annotations

from collections.abc import Sequence


class Batches:
    """Batches of consecutive layers, numbered from 0 in the order in which they travel.

    ``pairs``: first and last layer of each, counted from 1, as planner and executor have them. ``layers``: of each batch,
    counted from 0. ``of``: the batch of each layer.
    """

    def __init__(self, pairs: Sequence[Sequence[int]]) -> None:
        self.pairs = [list(pair) for pair in pairs]
        self.layers = [range(first - 1, last) for first, last in self.pairs]
        numbers = {layer: number for number, batch in enumerate(self.layers) for layer in batch}
        self.of = [numbers[layer] for layer in range(len(numbers))]

    def __len__(self) -> int:
        return len(self.pairs)


class Countdown:
    """Of what each batch still waits for. ``parts``: the layers of what is awaited, such as of each parameter."""

    def __init__(self, batches: Batches, parts: Sequence[int]) -> None:
        self._of = batches.of
        self._left = [0] * len(batches)
        for layer in parts:
            self._left[self._of[layer]] += 1

    def arrived(self, layer: int) -> int | None:
        """Another part of `layer` is there. The batch that is complete with it, if one is."""
        batch = self._of[layer]
        self._left[batch] -= 1
        return None if self._left[batch] else batch
