"""Sum of gradients as products of two narrow matrices, which are all-reduced one after the other (PowerSGD).

Steps: those of two all-reduces.
Bytes on the wire: those of two all-reduces, of r n and of r m elements for a parameter of n x m. Small parameters and
parameters of one dimension are sent whole, with the first all-reduce.

M, n x m, is a parameter's gradient plus its residual. Q, m x r, is from the previous step, or random at first::

    P = sum over ranks of M Q, its columns then made orthonormal;  Q = sum over ranks of M^T P;  the sum of M is P Q^T

Algorithms 1 and 2 in Thijs Vogels, Sai Praneeth Karimireddy and Martin Jaggi: "PowerSGD: Practical Low-Rank Gradient
Compression for Distributed Optimization", 2019. The new residual of a rank is its M minus its share of the sum. All
shares are equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from sparkdl_comm.collectives.group import CollectiveGroup
from sparkdl_comm.compress.feedback import Feedback, FlatRange, RangeFactory
from sparkdl_comm.compress.sums import CompressedSum
from sparkdl_comm.errors import PersistenceError


class _Matrix(NamedTuple):
    """Parameter that is sent as two narrow matrices.

    ``start``: its start in the flat vector. ``rows``, ``columns``: n and m. ``rank``: r.
    """

    start: int
    rows: int
    columns: int
    rank: int


class PowerSgd(CompressedSum):
    """Sum of all ranks' gradients, compressed by PowerSGD.

    :param rank: rank r of the matrices that are sent, at least 1.
    :param shapes: shapes of the parameters, by their start in the flat vector.
    :param group: runs the all-reduces of all ``world`` ranks. The caller closes it.
    """

    def __init__(
        self,
        rank: int,
        shapes: Mapping[int, tuple[int, ...]],
        make_range: RangeFactory,
        group: CollectiveGroup,
        world: int,
    ) -> None:
        super().__init__(Feedback(), make_range, world)
        self._rank, self._shapes, self._group = rank, shapes, group
        #: Q of the last applied step, and of the step under way, by the parameter's start in the flat vector.
        self._factors: dict[int, torch.Tensor] = {}
        self._next_factors: dict[int, torch.Tensor] = {}

    def stages(self, start: int, vector: torch.Tensor, density: float, scale: float) -> Iterator[None]:
        part = self.own_range(start, start + vector.numel())
        matrices, whole_pieces = self._split_pieces(part)
        used = part.find_used(vector)
        unused = part.select(~used)
        gathered = self.feedback.add_residual(start, vector, scale, unused)
        matrix_gradients = [
            gathered[part.pieces[number]].view(matrix.rows, matrix.columns) for number, matrix in matrices.items()
        ]

        factors = [self._factor(matrix, vector) for matrix in matrices.values()]
        products = [gradient @ factor for gradient, factor in zip(matrix_gradients, factors, strict=True)]
        first = torch.cat(
            [
                *(product.view(-1) for product in products),
                *(gathered[part.pieces[number]] for number in whole_pieces),
                used.float(),
            ]
        )
        work = self._group.start("all_reduce", first)
        yield
        work.wait()
        *summed, users = torch.split(
            first, [*map(torch.numel, products), *self._lengths(part, whole_pieces), len(part.pieces)]
        )
        left = [orthonormal(one.view(p.shape)) for one, p in zip(summed, products, strict=False)]
        right = [gradient.T @ one for gradient, one in zip(matrix_gradients, left, strict=True)]
        if right:
            second = torch.cat([one.reshape(-1) for one in right])
            work = self._group.start("all_reduce", second)
            yield
            work.wait()
            right = [
                one.view(p.shape) for one, p in zip(torch.split(second, [*map(torch.numel, right)]), right, strict=True)
            ]
        total = torch.empty_like(vector)
        sent = gathered.clone()  # parameters that are sent whole leave no residual
        for (number, matrix), one, factor in zip(matrices.items(), left, right, strict=True):
            self._next_factors[matrix.start] = factor
            piece = part.pieces[number]
            torch.mm(one, factor.T, out=total[piece].view(matrix.rows, matrix.columns))
            torch.div(total[piece], users[number].clamp(min=1), out=sent[piece])
        for number, one in zip(whole_pieces, summed[len(matrices) :], strict=True):
            total[part.pieces[number]] = one
        torch.mul(total, scale, out=vector).add_(0.0)
        for stretch in part.select(users == 0):
            vector[stretch] = -0.0
        self.feedback.record_sent_values(start, sent, unused)

    def arriving_bytes(self, start: int, stop: int, density: float) -> int:
        matrices, whole_pieces = self._split_pieces(part := self.own_range(start, stop))
        first = (
            sum(m.rows * m.rank for m in matrices.values()) + sum(self._lengths(part, whole_pieces)) + len(part.pieces)
        )
        second = sum(m.columns * m.rank for m in matrices.values())
        counts = filter(None, (first, second))
        return sum(sum(self._group.arriving_bytes("all_reduce", count, torch.float32)) for count in counts)

    def settle(self, applied: bool) -> None:
        super().settle(applied)
        if applied:
            self._factors |= self._next_factors
        self._next_factors = {}

    def state(self) -> dict[str, Any]:
        return {**super().state(), "factors": {str(start): factor for start, factor in self._factors.items()}}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from a result of :meth:`state`.

        :raises PersistenceError: the saved factors have another matrix rank than this object's, or the state has
            momentum and this object has none, or the reverse.
        """
        super().load_state(state)
        self._factors = {int(start): factor.clone() for start, factor in state.get("factors", {}).items()}
        for start, factor in self._factors.items():
            matrix = self._matrix(start)
            if matrix is None or factor.shape != (matrix.columns, matrix.rank):
                raise PersistenceError("the checkpoint has another spark.sparkdl.comm.compression. Do not change it")

    def _split_pieces(self, part: FlatRange) -> tuple[dict[int, _Matrix], list[int]]:
        """Return the pieces to send as narrow matrices by their indices, and the indices of all other pieces."""
        found = {number: self._matrix(part.start + piece.start) for number, piece in enumerate(part.pieces)}
        matrices = {number: matrix for number, matrix in found.items() if matrix is not None}
        return matrices, [number for number in found if number not in matrices]

    def _matrix(self, start: int) -> _Matrix | None:
        """Return the parameter at ``start`` if it is smaller as two narrow matrices, else None."""
        shape = self._shapes[start]
        rows, columns = shape[0] if shape else 1, math.prod(shape[1:])
        rank = min(self._rank, rows, columns)
        return _Matrix(start, rows, columns, rank) if rank * (rows + columns) < rows * columns else None

    def _lengths(self, part: FlatRange, numbers: list[int]) -> list[int]:
        return [part.pieces[number].stop - part.pieces[number].start for number in numbers]

    def _factor(self, matrix: _Matrix, like: torch.Tensor) -> torch.Tensor:
        """Return Q, the same on all ranks. Zero columns would stay zero, so they get random values."""
        known = self._factors.get(matrix.start)
        if known is not None and bool(known.any(dim=0).all()):
            return known
        random = torch.Generator().manual_seed(matrix.start)
        random_factor = torch.randn(matrix.columns, matrix.rank, generator=random).to(like.device)
        return random_factor if known is None else torch.where(known.any(dim=0), known, random_factor)


def orthonormal(columns: torch.Tensor) -> torch.Tensor:
    """Make the columns of ``columns``, float32 ``[n, r]``, orthonormal in place by Gram-Schmidt, and return it.

    A column that depends on others may become 0.
    """
    for number in range(columns.shape[1]):
        column = columns[:, number]
        column /= column.norm().clamp(min=torch.finfo(columns.dtype).tiny)
        rest = columns[:, number + 1 :]
        rest -= torch.outer(column, column @ rest)
    return columns
