"""Role of a server and of its replica: applies updates in the scheduler's order, and sends the model.

The replica applies the same updates. If the server is lost, the scheduler redirects later updates to the replica, and
the replica sends the model.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
from numpy.typing import NDArray

from sparkdl_comm.errors import GangError, InputError
from sparkdl_comm.fabric.params import FabricParams
from sparkdl_comm.fabric.protocol import Cancel, Ended, Expect, Fence, Kind, Message, Reorder, Send, Skip
from sparkdl_comm.fabric.roles import NodeRole, Payload
from sparkdl_comm.fabric.transport import Arrival

UpdateCallback = Callable[[NDArray[np.float32], NDArray[np.float32], int], None]
RequestCallback = Callable[[NDArray[np.float32]], NDArray[np.float32]]
#: Number of batches of requests for which the server keeps the model snapshot.
_MAX_SNAPSHOTS = 4


class Server(NodeRole):
    """Rank or process that owns the model, or its replica.

    By default it applies updates by SGD with momentum. A sum of several updates is one step, and raises the version by
    their number. MLfabric, section 2, equation 2: ``w[t+1] = w[t] + u[t] + momentum * (w[t] - w[t-1])``.

    :param model: float32 ``[n]``, owned by the role from then on.
    """

    def __init__(self, model: NDArray[np.float32], params: FabricParams) -> None:
        if model.dtype != np.float32 or model.ndim != 1 or not model.flags.c_contiguous:
            raise InputError(f"a server's model must be flat and float32, not {model.dtype} of shape {model.shape}")
        super().__init__()
        self._model, self._momentum, self._delay_bound = model, np.float32(params.momentum), params.delay_bound
        self._last_step = np.zeros_like(model) if params.momentum else None
        #: Number of updates that the model contains.
        self.version = params.version
        self._update_callback: UpdateCallback = self._take_step
        self._request_callback: RequestCallback = np.asarray
        self._is_serving = False
        #: Turn of each transfer that was announced and is not applied.
        self._turns: dict[int, int] = {}
        self._waiting_arrivals: dict[int, Arrival] = {}
        #: Skipped turns -> updates that they add to the version all the same.
        self._skipped_turns: dict[int, int] = {}
        self._next_turn = 0
        self._snapshots: dict[int, Payload] = {}
        #: State transfers that were ordered -> the turn before which to copy the state, later the copy.
        self._states: dict[int, int | Payload] = {}
        self._awaited_copy: Expect | None = None  # server's state that a replica waits for
        #: Largest delay of an update applied here. A delay counts the updates applied since the version that the update
        #: was computed from, itself included.
        self.largest_delay = 0

    def register_update_callback(self, callback: UpdateCallback) -> None:
        """Replace SGD with momentum by ``callback(model, update, count)``. Call this before :meth:`serve`.

        The callback applies the sum of ``count`` updates to ``model`` in place; both are float32 ``[n]``.
        """
        self._update_callback = callback

    def register_request_callback(self, callback: RequestCallback) -> None:
        """Send ``callback(model)``, float32 ``[n]``, to workers in place of the model. Call this before :meth:`serve`."""
        self._request_callback = callback

    def snapshot(self) -> tuple[NDArray[np.float32], int]:
        """Return a copy of the model, float32 ``[n]``, and its version, the number of updates that it contains."""
        with self._changed:
            return self._model.copy(), self.version

    def copy_state(self) -> NDArray[np.float32]:
        """Return a copy of all that later steps depend on: the model, float32 ``[n]``; with momentum ``[2 n]``, the model
        followed by its last step."""
        with self._changed:
            return self._model.copy() if self._last_step is None else np.concatenate([self._model, self._last_step])

    def load_state(self, state: NDArray[np.float32]) -> None:
        """Load what :meth:`copy_state` of another server returned."""
        np.copyto(self._model, state[: len(self._model)])
        if self._last_step is not None:
            np.copyto(self._last_step, state[len(self._model) :])

    def serve(self, timeout: float | None = None) -> None:
        """Apply updates and send the model until all workers have left.

        :raises DeadlineError: the workers have not left within ``timeout`` seconds.
        :raises GangError: the job cannot continue.
        """
        self.begin()
        self.await_end(timeout)

    def begin(self) -> None:
        """Start applying updates and sending the model."""
        with self._changed:
            self._is_serving = True
            self._changed.notify_all()
        self._apply_due()

    # ---- called by the daemon

    def on_arrival(self, arrival: Arrival) -> None:
        if arrival.expected.content == Kind.STATE:
            self._load_copy(arrival)
            return
        with self._changed:
            turn = self._turns.get(arrival.expected.transfer)
            if turn is not None:
                self._waiting_arrivals[turn] = arrival
        self._apply_due()

    def await_payload(self, order: Send) -> Payload | None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_serving or self._has_ended)
            if order.content == Kind.STATE:
                self._changed.wait_for(lambda: not isinstance(self._states.get(order.transfer), int) or self._has_ended)
                state = self._states.pop(order.transfer, None)
                return state if isinstance(state, Payload) else None
            if self._has_ended:
                return None
            snapshot = self._snapshots.get(order.batch)
            if snapshot is None:
                snapshot = self._snapshots[order.batch] = Payload(self._copy_for_workers(), self.version)
                for batch in sorted(self._snapshots)[:-_MAX_SNAPSHOTS]:  # may delete the new one, if its batch is old
                    del self._snapshots[batch]
            return snapshot

    def on_message(self, message: Message) -> None:
        if isinstance(message, Skip):
            self._skip(message.turn, message.count)
        elif isinstance(message, Reorder):
            self._reorder(message)
        elif isinstance(message, Cancel):
            self.forget([message.transfer])
        elif isinstance(message, Expect) and message.content == Kind.UPDATE:
            with self._changed:
                self._turns[message.transfer] = message.turn
        elif isinstance(message, Send) and message.content == Kind.STATE:
            with self._changed:
                self._states[message.transfer] = message.turn
            self._apply_due()
        elif isinstance(message, Expect) and message.content == Kind.STATE:
            with self._changed:
                self._awaited_copy = message

    def on_fence(self, message: Fence) -> None:
        self.forget(message.transfers)
        super().on_fence(message)

    def forget(self, transfers: Collection[int]) -> None:
        """Discard these transfers unless they were applied. Stop waiting for a state copy among them."""
        with self._changed:
            for transfer in transfers:
                self._waiting_arrivals.pop(self._turns.pop(transfer, -1), None)
                self._states.pop(transfer, None)
            if self._awaited_copy is not None and self._awaited_copy.transfer in transfers:
                self._awaited_copy = None
            self._changed.notify_all()
        self._apply_due()

    # ---- private

    def _skip(self, turn: int, count: int = 0) -> None:
        with self._changed:
            if turn >= self._next_turn:
                self._skipped_turns[turn] = count
        self._apply_due()

    def _reorder(self, message: Reorder) -> None:
        with self._changed:
            old_turn = self._turns.get(message.transfer)
            if old_turn is not None:
                self._turns[message.transfer] = message.turn
                if old_turn in self._waiting_arrivals:
                    self._waiting_arrivals[message.turn] = self._waiting_arrivals.pop(old_turn)
        if old_turn is None:  # it was applied already
            self._skip(message.turn)

    def _copy_for_workers(self) -> NDArray[np.float32]:
        """Return a copy of the model as workers receive it."""
        answer = np.array(self._request_callback(self._model), np.float32)
        if answer.shape != self._model.shape:
            raise InputError(
                f"request_callback returned shape {list(answer.shape)}, but the model has shape {list(self._model.shape)}"
            )
        return answer

    def _apply_due(self) -> None:
        """Apply all updates whose turn has come. Any thread may call this; one at a time applies."""
        with self._changed:
            while self._is_serving and self._awaited_copy is None:
                for transfer in [transfer for transfer, turn in self._states.items() if turn == self._next_turn]:
                    self._states[transfer] = Payload(self.copy_state(), self.version)
                    self._changed.notify_all()
                arrival = self._waiting_arrivals.pop(self._next_turn, None)
                if arrival is None and self._next_turn not in self._skipped_turns:
                    return
                self.version += self._skipped_turns.pop(self._next_turn, 0)
                self._next_turn += 1
                if arrival is not None:
                    del self._turns[arrival.expected.transfer]
                    self._apply(arrival)

    def _load_copy(self, arrival: Arrival) -> None:
        """Replace the model's state by the server's state that has arrived."""
        with self._changed:
            if self._awaited_copy is None or self._awaited_copy.transfer != arrival.expected.transfer:
                return  # cancelled meanwhile
            self.load_state(arrival.values)
            self.version = arrival.header.base_version
            self.report(Ended(arrival.expected.transfer, self.version))
            self._next_turn, self._awaited_copy = arrival.expected.turn, None
            self._waiting_arrivals = {
                turn: waiting for turn, waiting in self._waiting_arrivals.items() if turn >= self._next_turn
            }
        self._apply_due()

    def _apply(self, arrival: Arrival) -> None:
        transfer, count = arrival.expected.transfer, arrival.header.count
        delay = self.version + 1 - arrival.header.base_version
        if self._delay_bound is not None and delay > self._delay_bound:
            raise GangError(
                f"transfer {transfer} would have a delay of {delay} updates, above the bound {self._delay_bound}"
            )
        self.largest_delay = max(self.largest_delay, delay)
        self._update_callback(self._model, arrival.values, count)
        self.version += count
        self.report(Ended(transfer, self.version))

    def _take_step(self, model: NDArray[np.float32], update: NDArray[np.float32], count: int) -> None:
        if self._last_step is None:
            model += update
        else:
            self._last_step *= self._momentum
            self._last_step += update
            model += self._last_step
