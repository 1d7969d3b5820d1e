"""Losses, optimizers, groups and schedules of recipes, as a user would give them to TorchEstimator and to plain torch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from sparkdl_comm.optim import LAMB, LARS
from tests.optimizers import Lars

from .modules import main_output
from .recipe import Recipe

CLASSES = 3
IGNORED = -100


class Temperature(nn.Module):
    """A loss that has something to learn."""

    def __init__(self) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(0.3))

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output * self.log.exp(), target)


class Scaled(nn.Module):
    """A loss with a state: a running mean of the targets' sizes, by which it divides."""

    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(()))

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.scale.lerp_(target.abs().mean(), 0.5)
        return F.mse_loss(output, target) / (0.5 + self.scale)


def own_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return ((output - target) ** 2 + 0.1 * (output - target).abs()).mean()


def own_row_losses(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target) ** 2 + 0.1 * (output - target).abs()


def class_weights() -> torch.Tensor:
    return torch.tensor([1.0, 0.25, 2.0])


class OfMain(nn.Module):
    """A loss of one of several outputs."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, output: Any, target: torch.Tensor) -> Any:
        output = main_output(output)
        return self.inner(output.squeeze(1) if output.shape[1] == 1 else output, target)


def loss(recipe: Recipe) -> Any:
    """Takes what the model returns, and the target; the mean over the rows, or a loss for each if they have weights."""
    if recipe.returns in ("tensor", "logits"):
        return tensor_loss(recipe)
    return OfMain(row_losses(recipe) if recipe.weights else tensor_loss(recipe))


def tensor_loss(recipe: Recipe) -> Any:
    """Takes a tensor and the target; the mean over the rows."""
    return {
        "mse": nn.MSELoss,
        "mse of two": nn.MSELoss,
        "huber": nn.HuberLoss,
        "own": lambda: own_row_losses if recipe.weights else own_loss,
        "cross entropy": nn.CrossEntropyLoss,
        "ignored labels": lambda: functools.partial(F.cross_entropy, ignore_index=IGNORED),
        "class weights": lambda: nn.CrossEntropyLoss(weight=class_weights(), ignore_index=IGNORED),
        "temperature": Temperature,
        "scaled": Scaled,
    }[recipe.loss]()


def row_losses(recipe: Recipe) -> Any:
    """The same loss without its mean, for plain torch."""
    given = tensor_loss(recipe)
    if isinstance(given, nn.Module):
        given.reduction = "none"  # type: ignore[assignment]
        return given
    return functools.partial(given, reduction="none") if recipe.loss == "ignored labels" else given


def over_classes(recipe: Recipe) -> bool:
    return recipe.loss in ("cross entropy", "ignored labels", "class weights", "temperature")


class Signed(torch.optim.Optimizer):
    """Elementwise, with a state of its own that is no tensor: steps are counted, and grow smaller."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                state["steps"] = state.get("steps", 0) + 1
                parameter.sub_(torch.tanh(parameter.grad * 4) * (group["lr"] / state["steps"]))


OWN = {"Lars": Lars, "Signed": Signed}

#: This package's, which need norms of whole tensors, and get them where these lie in stripes.
LAYERWISE = {"LARS": LARS, "LAMB": LAMB}

#: Optimizers that look at whole tensors.
WHOLE = frozenset({"Lars", "LBFGS", "Adafactor", "Muon"})


def optimizer(recipe: Recipe) -> Callable[..., torch.optim.Optimizer]:
    kind = {**OWN, **LAYERWISE}.get(recipe.optimizer) or getattr(torch.optim, recipe.optimizer)
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in recipe.options.items()}
    return functools.partial(kind, **options)


def by_name(module: nn.Module) -> list[dict[str, Any]]:
    """Biases without decay, as usual."""
    trained = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
    biases = [parameter for name, parameter in trained if name.endswith("bias")]
    rest = [parameter for name, parameter in trained if not name.endswith("bias")]
    return [{"params": rest}, {"params": biases, "weight_decay": 0.0}]


def by_depth(module: nn.Module) -> list[dict[str, Any]]:
    """The head learns slowly; the rest has a group that is empty beside it."""
    trained = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
    head = [parameter for name, parameter in trained if name.startswith("head")]
    rest = [parameter for name, parameter in trained if not name.startswith("head")]
    return [{"params": rest}, {"params": head, "lr": 0.01}]


GROUPS: dict[str, Callable[[nn.Module], list[dict[str, Any]]]] = {"by name": by_name, "by depth": by_depth}


def groups(recipe: Recipe) -> Any:
    return None if recipe.groups is None else GROUPS[recipe.groups]


def _warm(step: int) -> float:
    return min(1.0, (step + 1) / 4)


SCHEDULES: dict[str, Callable[..., Any]] = {
    "step": functools.partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.7),
    "warm": functools.partial(torch.optim.lr_scheduler.LambdaLR, lr_lambda=_warm),
    "cosine": functools.partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=5),
    "one cycle": functools.partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=0.2, total_steps=500),
    "plateau": functools.partial(torch.optim.lr_scheduler.ReduceLROnPlateau, patience=0, factor=0.5),
}


def schedule(recipe: Recipe) -> Any:
    return None if recipe.schedule is None else SCHEDULES[recipe.schedule]
