"""Compressed sums over the ranks: the density of a step, a rank's selection as bytes, and the interface of the sums.

The sum in this module all-gathers all selections (NaiveAG).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from sparkdl_comm.compress.feedback import Feedback, FlatRange, RangeFactory
from sparkdl_comm.compress.selection import Operator, operator
from sparkdl_comm.compress.wire import VALUE_TYPES, SparseFormat
from sparkdl_comm.conf import Compression, CompressionSchedule
from sparkdl_comm.conf.groups import CompressionConf

if TYPE_CHECKING:
    from typing_extensions import Self

    from sparkdl_comm.collectives.group import CollectiveGroup  # a rank of the parameter server has none

#: Factor by which the density falls at each stage of a warm-up, as in Deep Gradient Compression (Lin et al. 2018).
_DENSITY_FACTOR = 4

#: Function that returns a context for selecting and for adding up, such as one that measures their time.
SpanFactory = Callable[[], AbstractContextManager[object]]


def density_at(schedule: CompressionSchedule, density: float, step: int, epoch: int) -> float | None:
    """Return the density of a step; None if it is dense.

    The first ``schedule.warmup`` sparse steps are a warm-up with the densities 1/4, 1/16, ... that exceed ``density``.
    Each of them has equally many steps.

    :param density: density after the warm-up.
    :param step: number of the step, from 1, over all epochs.
    :param epoch: number of the epoch, from 1.
    """
    if not (schedule.steps[0] <= step <= schedule.steps[1] and schedule.epochs[0] <= epoch <= schedule.epochs[1]):
        return None
    stages: list[float] = []
    while (stage := _DENSITY_FACTOR ** -(len(stages) + 1.0)) > density:
        stages.append(stage)
    steps_before = step - int(schedule.steps[0])
    number = steps_before * len(stages) // schedule.warmup if schedule.warmup else len(stages)
    return stages[number] if number < len(stages) else density


class Sparsifier(Feedback):
    """Selection and error feedback of one rank: its largest elements as bytes, and the sum of all ranks' bytes.

    :param random: CPU generator for the operator's random choices.
    :param dtype: type of the values on the network.
    :param momentum, keeps_residual: see :class:`Feedback`.
    """

    def __init__(
        self,
        select: Operator,
        random: torch.Generator,
        dtype: torch.dtype,
        momentum: float = 0.0,
        keeps_residual: bool = True,
        span: SpanFactory = nullcontext,
    ) -> None:
        super().__init__(momentum, keeps_residual)
        self._select, self._random, self._dtype, self._span = select, random, dtype, span

    @classmethod
    def of(cls, compression: Compression, conf: CompressionConf, rank: int, span: SpanFactory = nullcontext) -> Self:
        """Return the sparsifier for these settings. Ranks have different seeds, so random choices differ between them."""
        return cls(
            operator(compression.operator),
            torch.Generator().manual_seed(rank),
            VALUE_TYPES[conf.values],
            conf.momentum,
            conf.feedback,
            span,
        )

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint: the residual, and the state of the random generator.

        The tensors of the residual are not copied.
        """
        return {**super().state(), "random": {"generator": self._random.get_state()}}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from a result of :meth:`state`, whose tensors may be on any device.

        :raises PersistenceError: as :meth:`Feedback.load_state`.
        """
        super().load_state(state)
        self._random.set_state(state["random"]["generator"].cpu())

    def make_format(self, part: FlatRange, density: float) -> SparseFormat:
        """Return the format of the part's bytes. One flag per parameter tells whether this rank used it."""
        return SparseFormat.of_density(part.elements, density, self._dtype, len(part.pieces))

    def encode(self, part: FlatRange, gradient: torch.Tensor, density: float, scale: float) -> torch.Tensor:
        """Select elements, keep the residual, and return the selection as uint8 ``[format.nbytes]``.

        :param gradient: float32, of the part, already multiplied by ``scale``; not changed. -0.0 marks unused parameters.
        """
        with self._span():
            indices, values, used = self._select_elements(part, gradient, density, scale)
            return self.make_format(part, density).encode(indices, values, used)

    def sparsify(self, part: FlatRange, gradient: torch.Tensor, density: float, scale: float) -> None:
        """Select elements, keep the residual, and set the gradient to 0, in place, where elements are not selected.

        :param gradient: float32, of the part, already multiplied by ``scale``. Unused parameters, marked by -0.0, stay so.
        """
        indices, values, used = self._select_elements(part, gradient, density, scale)
        gradient.zero_()
        gradient[indices] = values + 0.0
        for piece in part.select(~used):
            gradient[piece] = -0.0

    def _select_elements(
        self, part: FlatRange, gradient: torch.Tensor, density: float, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the indices and the values (with the scale) of the selection, and which parameters were used."""
        sparse_format = self.make_format(part, density)
        used = part.find_used(gradient)
        unused = part.select(~used)
        gathered = self.add_residual(part.start, gradient, scale, unused)
        indices = self._select(gathered, sparse_format.entries, self._random)
        values = gathered[indices] * scale
        self.record_sent(part.start, indices, sparse_format.round_values(values), scale, unused)
        return indices, values, used

    def sum_selections(
        self, part: FlatRange, packed: Sequence[torch.Tensor], density: float, result: torch.Tensor
    ) -> None:
        """Overwrite ``result``, float32 of the part, with the sum of the encoded selections, added in their order.

        Parameters that no rank used are -0.0. No other element is -0.0.

        :param packed: for each rank, uint8 with at least ``format.nbytes`` elements.
        :raises ProtocolError: an entry does not encode this part.
        """
        sparse_format = self.make_format(part, density)
        with self._span():
            result.zero_()
            used = torch.zeros(len(part.pieces), dtype=torch.bool, device=result.device)
            for one in packed:
                indices, values, flags = sparse_format.decode(one[: sparse_format.nbytes])
                # A rank's indices are distinct, so terms are added in the order of the ranks.
                result.index_add_(0, indices, values)
                used |= flags
            for piece in part.select(~used):
                result[piece] = -0.0


class CompressedSum(ABC):
    """Sums over the ranks of ranges of a flat vector, with less traffic than the vector itself, for one rank.

    Implementations that select elements receive ``density``, the fraction of elements to select.
    """

    def __init__(self, feedback: Feedback, make_range: RangeFactory, contributor_count: int) -> None:
        self.feedback = feedback
        self._make_range = make_range
        #: Number of ranks that compress the same part.
        self.contributor_count = contributor_count

    def own_range(self, start: int, stop: int) -> FlatRange:
        """Return the part of a range that this rank compresses."""
        return self._make_range(start, stop)

    @abstractmethod
    def stages(self, start: int, vector: torch.Tensor, density: float, scale: float) -> Iterator[None]:
        """Run the stages of a sum, for :class:`~sparkdl_comm.compress.stages.StageRunner`. ``vector`` becomes the sum, in
        place.

        :param vector: float32 ``[n]``: the range from ``start`` on, multiplied by ``scale``.
        """

    @abstractmethod
    def arriving_bytes(self, start: int, stop: int, density: float) -> int:
        """Return the number of bytes that this rank receives for the sum of elements ``start`` to ``stop``."""

    def settle(self, applied: bool) -> None:
        """End the step. ``applied`` is False if it was skipped, which all ranks do together."""
        self.feedback.settle(applied)

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, from which the next step's sums continue. Tensors are not copied."""
        return self.feedback.state()

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from a result of :meth:`state`.

        :raises PersistenceError: the checkpoint was written with other settings of compression.
        """
        self.feedback.load_state(state)

    def close(self) -> None:  # noqa: B027 - an implementation may own nothing
        """Release the resources that this object created."""


class NaiveAllGather(CompressedSum):
    """Compressed sum for which every rank selects from its own gradient, gathers all selections and adds them up.

    Steps: those of the all-gather.
    Bytes on the wire: (N-1) s into each rank, where s is the bytes of one rank's elements.

    NaiveAG in Shaohuai Shi, Xianhao Zhou, Shutao Song and others: "Towards Scalable Distributed Training of Deep
    Learning on Public Cloud Clusters", 2021.

    :param group: runs the all-gathers of all ``world`` ranks. The caller closes it.
    """

    def __init__(self, sparsifier: Sparsifier, make_range: RangeFactory, group: CollectiveGroup, world: int) -> None:
        super().__init__(sparsifier, make_range, world)
        self._sparsifier, self._group = sparsifier, group

    def stages(self, start: int, vector: torch.Tensor, density: float, scale: float) -> Iterator[None]:
        part = self.own_range(start, start + vector.numel())
        packed = self._sparsifier.encode(part, vector, density, scale)
        gathered = packed.new_empty((self.contributor_count, packed.numel()))
        work = self._group.all_gather(packed, gathered)
        yield
        work.wait()
        self._sparsifier.sum_selections(part, list(gathered), density, vector)

    def arriving_bytes(self, start: int, stop: int, density: float) -> int:
        return (self.contributor_count - 1) * self._sparsifier.make_format(self.own_range(start, stop), density).nbytes
