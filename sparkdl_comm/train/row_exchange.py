"""Row exchange between ranks: each rank serves its own rows, and fetches rows of other ranks in pieces.

A rank connects to the owner of the rows with a proof of the gang's secret. Its request is a frame with the number of
rows, then their positions among the owner's rows (int64). The reply comes column by column: the lengths of the rows if
they differ (int64), then the elements. Types and shapes are those of the requesting rank's own rows.

A piece is a few megabytes, and each rank sends one piece at a time to a peer. So serving others needs little memory.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from sparkdl_comm.data.cache import Column, RowCache, concatenate
from sparkdl_comm.data.ragged import Ragged, offsets_of
from sparkdl_comm.errors import DeadlineError, GangError, InputError, ProtocolError, RankLostError
from sparkdl_comm.gang.control import VERDICT_SECONDS
from sparkdl_comm.gang.exchange import gather_json
from sparkdl_comm.gang.frames import await_message, hang_up, recv_frame, recv_into, send_all, send_frame
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.gang.tensors import pieces, raw

_KIND = "rows"
#: Approximate bytes of rows per request.
_PIECE = 4 << 20
#: Maximum rows per request.
_MOST_ROWS = 1 << 16
#: Maximum bytes of a request's JSON.
_MAX_HEADER = 256


class RowExchange:
    """End of the row exchange on one rank. Thread-safe: concurrent picks wait for each other.

    Close it when no rank needs rows any more.
    """

    needs_read_ahead = True

    def __init__(self, gang: Gang, rows: RowCache, counts: Sequence[int], timeout: float) -> None:
        """Start serving this rank's rows. Return when all ranks serve theirs.

        :param rows: the rows of this rank.
        :param counts: number of rows of each rank.
        :raises InputError: the ranks' rows have different types or shapes.
        """
        self._gang, self._rows, self._timeout = gang, rows, timeout
        self._starts = torch.from_numpy(offsets_of(np.array(counts)))
        self._lock, self._pick_lock = threading.Lock(), threading.Lock()
        self._is_closed = False
        self._outgoing: dict[int, socket.socket] = {}
        self._incoming: set[socket.socket] = set()
        gang.close_in_children(self._sockets)
        gang.on_failure(lambda _: self._hang_up())
        gang.serve(_KIND, self._serve)
        descriptions = gather_json(gang, [_column_types(rows), _row_sizes(rows)], timeout)
        for rank, (kinds, _) in enumerate(descriptions):
            if kinds != descriptions[0][0]:
                raise InputError(
                    f"rows of rank {rank} are {kinds}, rows of rank 0 are {descriptions[0][0]}: cannot exchange them"
                )
        #: Rows per request to each rank.
        self._rows_per_request = []
        #: Elements of the longest row of any rank, by column.
        self._longest_rows = [0 for _ in rows.columns]
        for _, sizes in descriptions:
            mean = sum(size for size, _ in sizes)
            self._rows_per_request.append(max(1, min(_MOST_ROWS, int(_PIECE / max(1, mean)))))
            self._longest_rows = [
                max(longest, own) for longest, (_, own) in zip(self._longest_rows, sizes, strict=True)
            ]

    def pick(self, index: torch.Tensor) -> RowCache:
        """Return the rows at ``index`` (int64 ``[n]``, positions among the rows of all ranks), in its order.

        :raises RankLostError: a rank that owns some of them has ended.
        :raises DeadlineError: a rank does not send them in time.
        :raises SparkdlCommError: the gang's failure.
        """
        with self._pick_lock:
            self._check_open()
            return self._pick(index)

    def close(self) -> None:
        """End all connections, and a pick that another thread is waiting in. May be called more than once."""
        self._hang_up()
        with self._pick_lock:
            for sock in self._outgoing.values():
                sock.close()
            self._outgoing.clear()

    def _pick(self, index: torch.Tensor) -> RowCache:
        rank, world = self._gang.rank, self._gang.world
        owners = torch.bucketize(index, self._starts[1:], right=True)
        own_positions = (owners == rank).nonzero().flatten()
        places, parts = [own_positions], [self._rows.pick(index[own_positions] - self._starts[rank])]
        order = [(rank + each) % world for each in range(1, world)]  # ranks begin with different peers
        requests = [torch.split((owners == peer).nonzero().flatten(), self._rows_per_request[peer]) for peer in order]
        for turn in itertools.zip_longest(*requests, fillvalue=own_positions[:0]):
            sent_requests = [(peer, where) for peer, where in zip(order, turn, strict=True) if len(where)]
            for peer, where in sent_requests:
                with self._peer_errors(peer):
                    self._ask(peer, index[where] - self._starts[peer])
            for peer, where in sent_requests:
                with self._peer_errors(peer):
                    parts.append(self._receive(self._outgoing[peer], len(where)))
                places.append(where)
        return concatenate(parts).pick(torch.cat(places).argsort())

    def _ask(self, peer: int, index: torch.Tensor) -> None:
        if peer not in self._outgoing:
            sock = self._gang.dial(peer, _KIND, self._deadline())
            with self._lock:
                self._outgoing[peer] = sock
            self._check_open()
        sock = self._outgoing[peer]
        send_frame(sock, {"rows": len(index)}, _MAX_HEADER, self._deadline())
        send_all(sock, raw(index), self._deadline())

    def _receive(self, sock: socket.socket, count: int) -> RowCache:
        columns: list[Column] = []
        for column, longest in zip(self._rows.columns, self._longest_rows, strict=True):
            if not isinstance(column, Ragged):
                columns.append(self._receive_into(sock, torch.empty(count, *column.shape[1:], dtype=column.dtype)))
                continue
            lengths = self._receive_into(sock, torch.empty(count, dtype=torch.int64))
            if int(lengths.min()) < 0 or int(lengths.max()) > longest:
                raise ProtocolError(f"peer announced rows of {lengths.tolist()!s:.60} elements: at most {longest}")
            values = column.values.new_empty(int(lengths.sum()), *column.values.shape[1:])
            columns.append(
                Ragged(column.field, self._receive_into(sock, values), torch.from_numpy(offsets_of(lengths.numpy())))
            )
        return self._rows.with_columns(columns)

    def _receive_into(self, sock: socket.socket, tensor: torch.Tensor) -> torch.Tensor:
        for piece in pieces(raw(tensor)):
            recv_into(sock, piece, self._deadline())
        return tensor

    def _serve(self, sock: socket.socket, rank: int) -> None:
        """Send ``rank`` the rows that it requests, until it closes. Runs in the connection's thread."""
        with self._lock:
            self._incoming.add(sock)
        try:
            self._check_open()
            while True:
                await_message(sock)
                self._answer(sock, recv_frame(sock, _MAX_HEADER, self._deadline()))
        finally:
            with self._lock:
                self._incoming.discard(sock)
            sock.close()

    def _answer(self, sock: socket.socket, request: dict[str, Any]) -> None:
        count = request.get("rows")
        if type(count) is not int or not 0 < count <= _MOST_ROWS:
            raise ProtocolError(f"peer asks for {count!r:.40} rows: must be 1 to {_MOST_ROWS}")
        index = self._receive_into(sock, torch.empty(count, dtype=torch.int64))
        if int(index.min()) < 0 or int(index.max()) >= self._rows.rows:
            raise ProtocolError(f"peer asks for rows outside the {self._rows.rows} rows of rank {self._gang.rank}")
        for column in self._rows.pick(index).columns:
            for tensor in [column.lengths, column.values] if isinstance(column, Ragged) else [column]:
                for piece in pieces(raw(tensor)):
                    send_all(sock, piece, self._deadline())

    @contextlib.contextmanager
    def _peer_errors(self, peer: int) -> Iterator[None]:
        """Turn connection errors into typed errors that name the peer, as a context."""
        own_rank = self._gang.rank
        try:
            yield
        except DeadlineError as exc:
            self._gang.check()
            raise DeadlineError(f"rank {own_rank} waited for rows of rank {peer}: {exc.message}", rank=peer) from exc
        except GangError:
            raise
        except OSError as exc:
            self._gang.check(VERDICT_SECONDS)
            raise RankLostError(f"rank {own_rank} lost rank {peer}, which serves rows to it: {exc}", rank=peer) from exc

    def _deadline(self) -> float:
        return time.monotonic() + self._timeout

    def _check_open(self) -> None:
        if self._is_closed:
            self._gang.check()
            raise GangError(f"rank {self._gang.rank} no longer exchanges rows")

    def _hang_up(self) -> None:
        with self._lock:
            self._is_closed = True
            for sock in self._sockets():
                hang_up(sock)

    def _sockets(self) -> list[socket.socket]:
        return [*self._outgoing.values(), *self._incoming]


def _column_types(rows: RowCache) -> list[Any]:
    """Return a JSON-able description of each column: type, shape of a row or of its elements, whether rows differ in
    length.
    """
    return [
        [str(_values(column).dtype), list(_values(column).shape[1:]), isinstance(column, Ragged)]
        for column in rows.columns
    ]


def _row_sizes(rows: RowCache) -> list[tuple[float, int]]:
    """Return for each column the mean bytes of a row, and the elements of the longest row; JSON-able."""
    sizes_by_column = []
    for column in rows.columns:
        lengths = column.lengths if isinstance(column, Ragged) else torch.ones(len(column), dtype=torch.int64)
        size = math.prod(_values(column).shape[1:]) * _values(column).element_size()
        sizes_by_column.append((size * lengths.sum().item() / max(1, len(lengths)), max(lengths.tolist(), default=0)))
    return sizes_by_column


def _values(column: Column) -> torch.Tensor:
    return column.values if isinstance(column, Ragged) else column
