"""Optimizers of a user's own; in a module of their own, so that executors can import them."""

from typing import Any

import torch


class Mine(torch.optim.Optimizer):
    """Elementwise: momentum by signs."""

    def __init__(self, params: Any, lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                mean.lerp_(p.grad, 0.1)
                p.sub_(mean.sign() * group["lr"])


class Lars(torch.optim.Optimizer):
    """Layer-wise rates: steps as long as ``trust`` times the whole tensor's norm; in groups that are ``scaled``."""

    def __init__(self, params: Any, lr: float = 0.1, trust: float = 1.0, scaled: bool = True) -> None:
        super().__init__(params, {"lr": lr, "trust": trust, "scaled": scaled})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    ratio = group["trust"] * (p.norm() + 1e-3) / (p.grad.norm() + 1e-3) if group["scaled"] else 1.0
                    p.sub_(p.grad * (group["lr"] * ratio))


class GlobalNorm(torch.optim.SGD):
    """Scales by the norm of all gradients that it has."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, lr)

    def step(self, closure: Any = None) -> Any:
        torch.nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 1.0)
        return super().step(closure)


class Blended(Mine):
    """As its base, but matrices move towards their mean at the tenth step."""

    steps = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        super().step(closure)
        self.steps += 1
        for group in self.param_groups if self.steps == 10 else ():
            for p in group["params"]:
                p.lerp_(p.mean(), 0.1)


class Odd(Mine):
    """Needs what nobody gives."""

    def step(self, closure: Any = None) -> None:
        raise TypeError("no closure")
