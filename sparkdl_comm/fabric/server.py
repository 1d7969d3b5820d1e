"""What a server, and its replica, does: applies updates in the order that the scheduler says, and sends the model.

The replica does the same with the same updates; if the server is lost, the scheduler has what follows sent to the replica,
and the model sent from there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from sparkdl_comm.errors import GangError, InputError
from sparkdl_comm.fabric.message import Kind
from sparkdl_comm.fabric.momentum import MomentumModel
from sparkdl_comm.fabric.part import Part, Values
from sparkdl_comm.fabric.protocol import Cancel, Ended, Expect, Fence, Message, Reorder, Send, Skip
from sparkdl_comm.fabric.receiver import Arrival

#: ``update_callback(model, update, count)`` puts the sum of ``count`` updates into ``model``, in place; float32 ``[n]`` both.
UpdateCallback = Callable[[np.ndarray, np.ndarray, int], None]
#: ``request_callback(model)``: what a worker that asks for the model gets, float32 ``[n]``.
RequestCallback = Callable[[np.ndarray], np.ndarray]
#: Batches of gets of which the server keeps the snapshot that it sends.
_SNAPSHOTS = 4


class ServerPart(Part):
    """A server's or replica's. ``model``: float32 ``[n]``, which it owns from then on.

    :param delay_bound: the most updates, an update itself included, that may have been applied since the version that the
        update was computed from; None: no bound.
    :param version: how many updates the model has had.
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
        #: Of transfers that were announced and not applied: when it is their turn.
        self._turns: dict[int, int] = {}
        self._waiting: dict[int, Arrival] = {}
        #: Turns that are nobody's -> updates by which the version rises all the same.
        self._skipped: dict[int, int] = {}
        self._turn = 0
        self._snapshots: dict[int, Values] = {}
        #: Transfers of the state that were ordered -> the turn before which it is copied, then the copy and its version.
        self._states: dict[int, int | Values] = {}
        self._copy: Expect | None = None  # its server's state, which a replica waits for
        self.largest_delay = 0

    def register_update_callback(self, callback: UpdateCallback) -> None:
        """Before :meth:`serve`: ``callback`` is what applies updates, in place of SGD with momentum."""
        self._update_callback = callback

    def register_request_callback(self, callback: RequestCallback) -> None:
        """Before :meth:`serve`: ``callback`` makes what a worker gets of the model, in place of the model itself."""
        self._request_callback = callback

    @property
    def version(self) -> int:
        """Updates that are in the model."""
        return self._model.version

    def snapshot(self) -> tuple[np.ndarray, int]:
        """A copy of the model, float32 ``[n]``, and its version."""
        with self._changed:
            return self._model.values.copy(), self._model.version

    def state(self) -> np.ndarray:
        """A copy of the model, float32 ``[n]``; with momentum ``[2 n]``, its last step behind it."""
        with self._changed:
            return self._model.state()

    def load(self, state: np.ndarray) -> None:
        """Before :meth:`begin`: the model goes on from what :meth:`state` returned of another one."""
        self._model.load(state, self.version)

    def serve(self, timeout: float | None = None) -> None:
        """Applies updates and sends the model until the job has ended. Arguments and errors are those of :meth:`await_end`."""
        self.begin()
        self.await_end(timeout)

    def begin(self) -> None:
        """From now on it applies updates and sends the model."""
        with self._changed:
            self._serving = True
            self._changed.notify_all()
        self._apply_due()

    # ---- the daemon's part

    def arrived(self, arrival: Arrival) -> None:
        if arrival.expected.content == Kind.STATE:
            self._load(arrival)
            return
        with self._changed:
            turn = self._turns.get(arrival.expected.transfer)
            if turn is not None:
                self._waiting[turn] = arrival
        self._apply_due()

    def values(self, order: Send) -> Values | None:
        with self._changed:
            self._changed.wait_for(lambda: self._serving or self._over)
            if order.content == Kind.STATE:
                self._changed.wait_for(lambda: not isinstance(self._states.get(order.transfer), int) or self._over)
                state = self._states.pop(order.transfer, None)
                return state if isinstance(state, Values) else None
            if self._over:
                return None
            made = self._snapshots.get(order.batch)
            if made is None:
                made = self._snapshots[order.batch] = Values(self._asked(), self._model.version)
                for old in sorted(self._snapshots)[:-_SNAPSHOTS]:  # also this one, if it comes late
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
        """What has not been applied of these is thrown away, and a copy of the state among them is not waited for."""
        with self._changed:
            for transfer in transfers:
                self._waiting.pop(self._turns.pop(transfer, -1), None)
                self._states.pop(transfer, None)
            if self._copy is not None and self._copy.transfer in transfers:
                self._copy = None
            self._changed.notify_all()
        self._apply_due()

    # ---- inside

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
        if before is None:  # it was applied
            self._skip(message.turn)

    def _asked(self) -> np.ndarray:
        """A copy of what workers get of the model."""
        model = self._model.values
        if self._request_callback is None:
            return model.copy()
        made = np.array(self._request_callback(model), np.float32)
        if made.shape != model.shape:
            raise InputError(f"request_callback returned {list(made.shape)} elements of a model of {list(model.shape)}")
        return made

    def _apply_due(self) -> None:
        """Applies all whose turn it is; one thread at a time."""
        with self._changed:
            while self._serving and self._copy is None:
                for transfer in [transfer for transfer, turn in self._states.items() if turn == self._turn]:
                    self._states[transfer] = Values(self._model.state(), self._model.version)
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
        """The server's state has come, and takes the place of this one's."""
        with self._changed:
            if self._copy is None or self._copy.transfer != arrival.expected.transfer:
                return  # it was cancelled meanwhile
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
            why = f"transfer {expected.transfer} would have a delay of {delay} updates: more than {self._bound}"
            raise GangError(why)
        self.largest_delay = max(self.largest_delay, delay)
        if self._update_callback is None:
            model.apply(arrival.values, count)
        else:
            self._update_callback(model.values, arrival.values, count)
            model.version += count
        self.tell(Ended(expected.transfer, model.version))
