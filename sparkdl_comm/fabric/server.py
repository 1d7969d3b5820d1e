"""Role of a server and of its replica: applies updates in the scheduler's order, and sends the model.

The replica applies the same updates. If the server is lost, the scheduler redirects later updates to the replica, and
the replica sends the model.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from sparkdl_comm.errors import GangError, InputError
from sparkdl_comm.fabric.message import Kind
from sparkdl_comm.fabric.momentum import MomentumModel
from sparkdl_comm.fabric.node_role import NodeRole, Payload
from sparkdl_comm.fabric.protocol import Cancel, Ended, Expect, Fence, Message, Reorder, Send, Skip
from sparkdl_comm.fabric.receiver import Arrival

#: ``update_callback(model, update, count)`` applies the sum of ``count`` updates to ``model`` in place; both float32
#: ``[n]``.
UpdateCallback = Callable[[np.ndarray, np.ndarray, int], None]
#: ``request_callback(model)`` returns what a requesting worker receives, float32 ``[n]``.
RequestCallback = Callable[[np.ndarray], np.ndarray]
#: Number of batches of requests for which the server keeps the model snapshot.
_SNAPSHOTS = 4


class ServerRole(NodeRole):
    """Role of a server or replica.

    :param model: float32 ``[n]``, owned by the role from then on.
    :param delay_bound: largest allowed delay: how many updates, an update itself included, may be applied since the
        version that the update was computed from. None: no bound.
    :param version: number of updates that the model contains.
    """

    def __init__(self, model: np.ndarray, momentum: float, delay_bound: int | None, version: int = 0) -> None:
        if model.dtype != np.float32 or model.ndim != 1 or not model.flags.c_contiguous:
            raise InputError(f"a server's model must be flat and float32, not {model.dtype} of shape {model.shape}")
        super().__init__()
        self._model = MomentumModel(model, momentum, version)
        self._bound = delay_bound
        self._update_callback: UpdateCallback | None = None
        self._request_callback: RequestCallback | None = None
        self._serving = False
        #: Turn of each transfer that was announced and is not applied.
        self._turns: dict[int, int] = {}
        self._waiting: dict[int, Arrival] = {}
        #: Skipped turns -> updates that they add to the version all the same.
        self._skipped: dict[int, int] = {}
        self._turn = 0
        self._snapshots: dict[int, Payload] = {}
        #: State transfers that were ordered -> the turn before which to copy the state, later the copy.
        self._states: dict[int, int | Payload] = {}
        self._copy: Expect | None = None  # server's state that a replica waits for
        self.largest_delay = 0

    def register_update_callback(self, callback: UpdateCallback) -> None:
        """Apply updates with ``callback`` instead of SGD with momentum. Call this before :meth:`serve`."""
        self._update_callback = callback

    def register_request_callback(self, callback: RequestCallback) -> None:
        """Send workers the result of ``callback`` instead of the model. Call this before :meth:`serve`."""
        self._request_callback = callback

    @property
    def version(self) -> int:
        """Number of updates that the model contains."""
        return self._model.version

    def snapshot(self) -> tuple[np.ndarray, int]:
        """Return a copy of the model, float32 ``[n]``, and its version."""
        with self._changed:
            return self._model.values.copy(), self._model.version

    def state(self) -> np.ndarray:
        """Return a copy of the model, float32 ``[n]``; with momentum ``[2 n]``, the model followed by its last step."""
        with self._changed:
            return self._model.state()

    def load(self, state: np.ndarray) -> None:
        """Restore what :meth:`state` returned for another model. Call this before :meth:`begin`."""
        self._model.load(state, self.version)

    def serve(self, timeout: float | None = None) -> None:
        """Apply updates and send the model until the job has ended. Arguments and errors are those of
        :meth:`await_end`."""
        self.begin()
        self.await_end(timeout)

    def begin(self) -> None:
        """Start applying updates and sending the model."""
        with self._changed:
            self._serving = True
            self._changed.notify_all()
        self._apply_due()

    # ---- called by the daemon

    def arrived(self, arrival: Arrival) -> None:
        if arrival.expected.content == Kind.STATE:
            self._load(arrival)
            return
        with self._changed:
            turn = self._turns.get(arrival.expected.transfer)
            if turn is not None:
                self._waiting[turn] = arrival
        self._apply_due()

    def values(self, order: Send) -> Payload | None:
        with self._changed:
            self._changed.wait_for(lambda: self._serving or self._over)
            if order.content == Kind.STATE:
                self._changed.wait_for(lambda: not isinstance(self._states.get(order.transfer), int) or self._over)
                state = self._states.pop(order.transfer, None)
                return state if isinstance(state, Payload) else None
            if self._over:
                return None
            made = self._snapshots.get(order.batch)
            if made is None:
                made = self._snapshots[order.batch] = Payload(self._asked(), self._model.version)
                for old in sorted(self._snapshots)[:-_SNAPSHOTS]:  # may delete the new one, if its batch is old
                    del self._snapshots[old]
            return made

    def hear(self, message: Message) -> None:
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
                self._copy = message

    def fence(self, message: Fence) -> None:
        self.forget(message.transfers)
        super().fence(message)

    def forget(self, transfers: Collection[int]) -> None:
        """Discard these transfers unless they were applied. Stop waiting for a state copy among them."""
        with self._changed:
            for transfer in transfers:
                self._waiting.pop(self._turns.pop(transfer, -1), None)
                self._states.pop(transfer, None)
            if self._copy is not None and self._copy.transfer in transfers:
                self._copy = None
            self._changed.notify_all()
        self._apply_due()

    # ---- private

    def _skip(self, turn: int, count: int = 0) -> None:
        with self._changed:
            if turn >= self._turn:
                self._skipped[turn] = count
        self._apply_due()

    def _reorder(self, message: Reorder) -> None:
        with self._changed:
            before = self._turns.get(message.transfer)
            if before is not None:
                self._turns[message.transfer] = message.turn
                if before in self._waiting:
                    self._waiting[message.turn] = self._waiting.pop(before)
        if before is None:  # it was applied already
            self._skip(message.turn)

    def _asked(self) -> np.ndarray:
        """Return a copy of the model as workers receive it."""
        model = self._model.values
        if self._request_callback is None:
            return model.copy()
        made = np.array(self._request_callback(model), np.float32)
        if made.shape != model.shape:
            raise InputError(
                f"request_callback returned shape {list(made.shape)}, but the model has shape {list(model.shape)}"
            )
        return made

    def _apply_due(self) -> None:
        """Apply all updates whose turn has come. Any thread may call this; one at a time applies."""
        with self._changed:
            while self._serving and self._copy is None:
                for transfer in [transfer for transfer, turn in self._states.items() if turn == self._turn]:
                    self._states[transfer] = Payload(self._model.state(), self._model.version)
                    self._changed.notify_all()
                arrival = self._waiting.pop(self._turn, None)
                if arrival is None and self._turn not in self._skipped:
                    return
                self._model.version += self._skipped.pop(self._turn, 0)
                self._turn += 1
                if arrival is not None:
                    del self._turns[arrival.expected.transfer]
                    self._apply(arrival)

    def _load(self, arrival: Arrival) -> None:
        """Replace the model's state by the server's state that has arrived."""
        with self._changed:
            if self._copy is None or self._copy.transfer != arrival.expected.transfer:
                return  # cancelled meanwhile
            self._model.load(arrival.values, arrival.header.base_version)
            self.tell(Ended(arrival.expected.transfer, self._model.version))
            self._turn, self._copy = arrival.expected.turn, None
            self._waiting = {turn: waiting for turn, waiting in self._waiting.items() if turn >= self._turn}
        self._apply_due()

    def _apply(self, arrival: Arrival) -> None:
        expected, model = arrival.expected, self._model
        count = arrival.header.count
        delay = model.version + 1 - arrival.header.base_version
        if self._bound is not None and delay > self._bound:
            why = f"transfer {expected.transfer} would have a delay of {delay} updates, above the bound {self._bound}"
            raise GangError(why)
        self.largest_delay = max(self.largest_delay, delay)
        if self._update_callback is None:
            model.apply(arrival.values, count)
        else:
            self._update_callback(model.values, arrival.values, count)
            model.version += count
        self.tell(Ended(expected.transfer, model.version))
