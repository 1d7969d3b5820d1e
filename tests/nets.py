"""Small networks for tests; in a module of their own, so that executors can import them."""

from collections.abc import Callable

import torch


class TwoClasses(torch.nn.Module):
    """Two features, two classes; class 1 where the first feature is larger. Exact, and without arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2, bias=False)
        with torch.no_grad():
            self.linear.weight.copy_(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.linear(rows)


class Sum(torch.nn.Module):
    """The sum of the features, ``[rows, 1]``, with a factor to learn."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor(factor))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.factor * rows.sum(1, keepdim=True)


class Double(torch.nn.Module):
    """Twice the features: a vector for each row."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.factor * rows


class Tied(torch.nn.Module):
    """Encoder and decoder share their weight, and there is a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = torch.nn.Linear(3, 3, bias=False)
        self.decoder = torch.nn.Linear(3, 3, bias=False)
        self.decoder.weight = self.encoder.weight
        self.register_buffer("offset", torch.zeros(3))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.encoder(rows)) + self.offset


def make_two_classes() -> torch.nn.Module:
    return TwoClasses()


def not_a_module() -> int:
    return 3


class Logarithms(torch.nn.Module):
    """Two features, two classes, as logarithms of probabilities."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.log_softmax(1)


class Scaled(torch.nn.Module):
    """A layer for two features, made by what is given, and then a scale for each."""

    def __init__(self, scale: torch.Tensor, layer: Callable[[int], torch.nn.Module]) -> None:
        super().__init__()
        self.layer = layer(2)
        self.register_buffer("scale", scale)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.layer(rows) * self.scale


class Counting(torch.nn.Module):
    """Sums its features, times a factor; remembers, as extra state, what it was called with in training."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor(1.0))
        self.seen: dict[str, object] = {"calls": 0, "rows": [], "raw": b"\x00"}
        self.last = torch.zeros(0)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen = {"calls": self.seen["calls"] + 1, "rows": [*self.seen["rows"], len(rows)], "raw": b"\xff"}
            self.last = rows[:1].clone()
        return self.factor * rows.sum(1, keepdim=True)

    def get_extra_state(self) -> object:
        return {**self.seen, "last": self.last}

    def set_extra_state(self, state: dict[str, object]) -> None:
        self.last = state.pop("last")
        self.seen = state


class LateSparse(torch.nn.Module):
    """Registers a sparse buffer, which cannot be sent, in its forward pass ``call``, and a dense one with it."""

    def __init__(self, features: int = 2, call: int = 1) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(features, 1)
        self.calls, self.call = 0, call

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.calls += self.training
        if self.calls == self.call and not hasattr(self, "mix"):
            self.register_buffer("mix", torch.eye(2).to_sparse())
            self.register_buffer("seen", torch.ones(2))
        return self.layer(rows)


class Fresh(torch.nn.Module):
    """Its extra state is a tensor made anew each time."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor(1.0))
        self.steps = 0

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.steps += self.training
        return self.factor * rows.sum(1, keepdim=True)

    def get_extra_state(self) -> torch.Tensor:
        return torch.tensor(self.steps)

    def set_extra_state(self, state: torch.Tensor) -> None:
        self.steps = int(state)
