"""Emulated computing: layers with real parameters and gradients, which wait instead of computing.

A machine with few cores cannot compute for many ranks at once: times would show the queue for its cores. Here a layer's
forward and backward pass wait as long as its profile says, and every byte is still sent::

    TorchEstimator(model=functools.partial(EmulatedNetwork, "resnet50", scale=0.5, stragglers="C1"), …)

Results obtained so say ``compute: emulated``.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sparkdl_comm.errors import InputError
from sparkdl_comm.sim.profile import Layer, Profile

#: Parameters begin as evenly spaced values from minus to plus this.
_LARGEST_PARAMETER = 0.01


@dataclass(frozen=True)
class Stragglers:
    """Stragglers: with this ``chance`` (0 to 1) a rank computes a step ``factor`` times as long."""

    chance: float
    factor: float

    def draw(self, generator: torch.Generator | None = None) -> float:
        """Return the factor of the waits of a step. None: torch's own generator."""
        return self.factor if torch.rand((), generator=generator).item() < self.chance else 1.0


#: The settings of the MLfabric paper, section 7.
STRAGGLERS = {"C1": Stragglers(0.10, 2.0), "C2": Stragglers(0.10, 4.0), "C3": Stragglers(0.04, 2.0)}


class Pace:
    """Pace of work. A wait that ends late shortens the next one, so errors do not add up.

    ``slowdown`` multiplies every wait. ``late``: seconds by which the last wait ended late. They grow if the machine
    cannot keep up with the profile.
    """

    def __init__(self, clock: Callable[[], float], sleep: Callable[[float], object]) -> None:
        self._clock, self._sleep = clock, sleep
        self.slowdown = 1.0
        self.late = 0.0

    @contextlib.contextmanager
    def lasting(self, seconds: float) -> Iterator[None]:
        """Run the body, then wait until ``seconds`` have passed since its beginning."""
        deadline = self._clock() + seconds * self.slowdown - self.late
        yield
        remaining = deadline - self._clock()
        if remaining > 0:
            self._sleep(remaining)
        self.late = max(0.0, self._clock() - deadline)


class EmulatedLayer(nn.Module):
    """Layer of a profile, which returns its input. ``index`` counts from 0."""

    def __init__(self, index: int, layer: Layer, scale: float, pace: Pace) -> None:
        super().__init__()
        self.index = index
        self.forward_seconds, self.backward_seconds = layer.forward * scale, layer.backward * scale
        self.pace = pace
        for name, shape in layer.shapes.items():
            self.register_parameter(name, nn.Parameter(_ramp(torch.empty(tuple(shape)), _LARGEST_PARAMETER)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x
        output: torch.Tensor = _Wait.apply(x, self, *self.parameters())
        return output

    def gradient(self, parameter: torch.Tensor, signal: float) -> torch.Tensor:
        """Return a parameter's gradient, if the gradient of the layer's output sums up to ``signal``.

        It has evenly spaced values, from minus to plus ``signal / (index + 1)``. They differ between layers, positions,
        steps and ranks, so a wrong byte shows. They are linear in ``signal``, so sums over ranks are known.
        """
        return _ramp(torch.empty_like(parameter), signal / (self.index + 1))


class EmulatedNetwork(nn.Module):
    """Layers of a profile, one after another. Input float32 [rows, width], output float32 [rows, ``outputs``].

    The output depends on the input only, so the loss does not fall. Gradients are deterministic (see
    :meth:`EmulatedLayer.gradient`). In eval mode nothing waits.

    :param profile: name of a shipped profile, or a :class:`~sparkdl_comm.sim.profile.Profile`.
    :param outputs: number of classes, if the loss has classes.
    :param scale: multiplies the profile's times, which hold for a batch of any number of rows.
    :param stragglers: "C1", "C2", "C3" (see STRAGGLERS) or other Stragglers. They are drawn for each step
        and rank, from torch's own generator, which ``fit`` seeds differently on each rank.
    :raises InputError: an unknown name, ``outputs`` or ``scale`` out of range.
    """

    def __init__(
        self,
        profile: str | Profile,
        outputs: int = 10,
        scale: float = 1.0,
        stragglers: str | Stragglers | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        super().__init__()
        if outputs < 1 or not 0 <= scale < float("inf"):
            raise InputError(f"outputs={outputs}, scale={scale}: must be at least 1, and a finite number from 0 on")
        if isinstance(stragglers, str):
            if stragglers not in STRAGGLERS:
                raise InputError(f"stragglers={stragglers!r} is not known; there are {', '.join(STRAGGLERS)}")
            stragglers = STRAGGLERS[stragglers]
        profile = Profile.load(profile) if isinstance(profile, str) else profile
        self._stragglers = stragglers
        self.pace = Pace(clock, sleep)
        # Numbered: names of a ModuleDict must differ from its methods', and may have no dots.
        self.layers = nn.ModuleDict(
            {
                f"{index}_{layer.name.replace('.', '_')}": EmulatedLayer(index, layer, scale, self.pace)
                for index, layer in enumerate(profile.layers)
            }
        )
        self.directions: torch.Tensor
        self.register_buffer("directions", torch.linspace(1.0, -1.0, outputs), persistent=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if self.training and self._stragglers is not None:
            self.pace.slowdown = self._stragglers.draw()
        x = rows.mean(1, keepdim=True)
        for layer in self.layers.values():
            x = layer(x)
        return x * self.directions


class _Wait(torch.autograd.Function):
    """Identity that waits in both directions, and gives the layer's parameters their gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, layer: EmulatedLayer, *parameters: torch.Tensor) -> torch.Tensor:
        ctx.layer = layer
        with layer.pace.lasting(layer.forward_seconds):
            return x.clone()

    @staticmethod
    def backward(ctx: Any, *outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        layer, needed = ctx.layer, ctx.needs_input_grad
        with layer.pace.lasting(layer.backward_seconds):
            signal = outputs[0].sum().item()
            gradients = [
                layer.gradient(parameter, signal) if wanted else None
                for parameter, wanted in zip(layer.parameters(), needed[2:], strict=True)
            ]
            return (outputs[0] if needed[0] else None, None, *gradients)


def _ramp(empty: torch.Tensor, largest: float) -> torch.Tensor:
    """Fill a tensor with evenly spaced values from -``largest`` to ``largest``."""
    torch.linspace(-largest, largest, empty.numel(), out=empty.view(-1))
    return empty
