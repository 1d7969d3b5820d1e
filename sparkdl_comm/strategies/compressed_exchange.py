"""Exchange of compressed gradient buckets, in the steps that the schedule selects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparkdl_comm.collectives.work import Work
from sparkdl_comm.compress.feedback import FlatRange
from sparkdl_comm.compress.stages import StageRunner
from sparkdl_comm.compress.sums import CompressedSum, density_at
from sparkdl_comm.conf import CommConf, Compression
from sparkdl_comm.strategies.base import StepInfo
from sparkdl_comm.strategies.exchange import CollectiveExchange

#: Lower bound of the learning rate that scales residuals. The rate may be 0 in the first step of a warm-up.
_LEAST_RATE = 1e-6


class CompressedExchange(CollectiveExchange):
    """Exchange that sums compressed gradients. Dense steps use the base class's all-reduces, which also carry the residuals.

    With momentum correction the optimizer is plain SGD. A residual is then kept multiplied by the learning rate of its step:
    otherwise it would lose weight while the rate falls. This is Algorithm 2 of Sai Praneeth Karimireddy, Quentin Rebjock,
    Sebastian Stich and Martin Jaggi: "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", 2019. Other
    optimizers keep momentum of gradients or are not linear in them, so their residuals are kept unscaled.
    """

    def __init__(self, compressed: CompressedSum, compression: Compression, conf: CommConf, *dense: Any) -> None:
        """``compression``: that of ``conf``, or the strategy's default. ``dense``: the base class's arguments."""
        super().__init__(*dense)
        self._compressed, self._feedback = compressed, compressed.feedback
        self._compression, self._schedule, self._timeout = compression, conf.compression.schedule, conf.timeout
        self._momentum = conf.compression.momentum
        self._stages = StageRunner("sparkdl-comm-compression")
        self._density: float | None = None
        self._scale = 1.0

    def prepare(self, ranges: Sequence[tuple[int, int]]) -> None:
        super().prepare(ranges)
        self._last_range = ranges[-1]

    def begin_step(self, info: StepInfo) -> None:
        density = density_at(self._schedule, self._compression.density, info.step, info.epoch)
        self._density = None if info.dense else density
        self._scale = info.loss_scale
        if self._momentum:
            self._scale /= max(info.learning_rate, _LEAST_RATE)

    def start(self, start: int, stop: int) -> Work[Any]:
        if self._density is None:
            own = self._compressed.own_range(start, stop)
            if not self._feedback.is_clear(own.start):
                gradient = self._vector[own.start : own.stop]
                self._feedback.flush_into(own.start, gradient, self._scale, own.find_unused(gradient))
            dense = super().start(start, stop)
            return self._update_velocity_after(own, dense) if self._momentum else dense
        stages = self._compressed.stages(start, self._vector[start:stop], self._density, self._scale)
        self._watch.bytes["push"] += self._compressed.arriving_bytes(start, stop, self._density)
        return self._stages.start(stages, is_last=(start, stop) == self._last_range)

    def _update_velocity_after(self, own: FlatRange, dense: Work[Any]) -> Work[Any]:
        """Return ``dense`` with a wait that also passes its sum to momentum correction."""
        scale = self._scale

        def update(_: Any) -> None:
            total = self._vector[own.start : own.stop]
            self._feedback.update_velocity(
                own.start, total, scale, self._compressed.contributor_count, own.find_unused(total)
            )

        return dense.map(update)

    def end_step(self, applied: bool) -> None:
        self._compressed.settle(applied)

    def state(self) -> dict[str, Any]:
        return self._compressed.state()

    def load_state(self, state: dict[str, Any]) -> None:
        device = self._vector.device  # tensors in checkpoints are on the CPU
        on_device = {name: {key: one.to(device) for key, one in tensors.items()} for name, tensors in state.items()}
        self._compressed.load_state(on_device)

    def close(self) -> None:
        self._compressed.close()
        self._stages.close(self._timeout)
