"""Networks for training tests; executors import them."""

import functools
import os
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch import nn

from sparkdl_comm.autotune import auto_strategy, choice


class Small(nn.Sequential):
    """Two layers, 1,354 parameters, on 28 features."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(28, 34), nn.Tanh(), nn.Linear(34, 10))


class Large(nn.Sequential):
    """Stripes that are served in place (above 16 KiB) and such that are gathered; 3 blocks of them."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(28, 700), nn.ReLU(), nn.Linear(700, 300), nn.ReLU(), nn.Linear(300, 10))


class SeesMemory(Large):
    """Its buffer says how many ranks' shared memory this rank's executor maps."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mapped", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            executor = next(one for one in psutil.Process().parents() if one.name() == "java")
            maps = Path(f"/proc/{executor.pid}/maps").read_text().splitlines()
            self.mapped.fill_(len({line.split()[4] for line in maps if "/memfd:sparkdl" in line}))
        return super().forward(x)


class Odd(nn.Module):
    """What makes bookkeeping hard: a frozen layer, shared weights, a layer no step uses, a buffer, an empty parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(28, 28)
        self.frozen.requires_grad_(False)
        self.encoder = nn.Linear(28, 28, bias=False)
        self.decoder = nn.Linear(28, 28, bias=False)
        self.decoder.weight = self.encoder.weight
        self.norm = nn.BatchNorm1d(28)
        self.unused = nn.Linear(5, 5)
        self.nothing = nn.Parameter(torch.empty(0))
        self.head = nn.Linear(28, 10)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(torch.tanh(self.decoder(torch.tanh(self.encoder(self.frozen(rows)))))))


class Line(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(28, 1))


class Random(nn.Sequential):
    """Dropout draws from each rank's generator; BatchNorm has buffers of floats and of an integer."""

    def __init__(self) -> None:
        super().__init__(
            nn.Linear(28, 300), nn.BatchNorm1d(300), nn.ReLU(), nn.Dropout(0.3), nn.Linear(300, 60), nn.Linear(60, 10)
        )


class Wide(nn.Sequential):
    """Dropout draws for each row of a rank in turn."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(300, 20), nn.Dropout(0.3), nn.Linear(20, 2))


def different_everywhere() -> nn.Module:
    torch.manual_seed(os.getpid())
    return Small()


def named_everywhere() -> nn.Module:
    net = Small()
    net.add_module(f"of_{os.getpid()}", nn.Linear(1, 1))
    return net


class Pictures(nn.Sequential):
    """For one channel of 4 x 7."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(30, 10))


class Recommender(nn.Module):
    """How well 9 items suit 7 users."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(7, 4), nn.Embedding(9, 4)

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        return (self.users(users) * self.items(items)).sum(1)


class Sequences(nn.Module):
    """Of words, 0 to 11, and of vectors of 2, any number of them; what is 0 adds nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(12, 5, padding_idx=0)
        self.head = nn.Linear(7, 3)

    def forward(self, words: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
        return self.head(torch.cat([self.words(words).sum(1), vectors.sum(1)], 1))


class TwoHeads(nn.Module):
    """A class and a value."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.classes, self.value = nn.Linear(28, 12), nn.Linear(12, 10), nn.Linear(12, 1)

    def forward(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.tanh(self.body(rows))
        return self.classes(hidden), self.value(hidden).squeeze(1)


def weighted_mse(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target) ** 2


def synchronized() -> nn.Module:
    """`Odd`, whose statistics are those of all ranks."""
    return nn.SyncBatchNorm.convert_sync_batchnorm(Odd())


def floats(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.float32)


def told_floats(folder: str, data: bytes) -> np.ndarray:
    """:func:`floats`, which leaves in ``folder`` the first value of each array, by process."""
    return _told(folder, floats(data)[None])[0]


def told_rows(folder: str, features: torch.Tensor) -> torch.Tensor:
    """Leaves in ``folder`` the first value of each row, by process."""
    return _told(folder, features)


def _told(folder: str, rows: Any) -> Any:
    with Path(folder, str(os.getpid())).open("a") as file:
        file.writelines(f"{int(row[0])}\n" for row in rows)
    return rows


def weighted_cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """One loss per row."""
    return nn.functional.cross_entropy(output, target, reduction="none")


class Tangled(nn.Module):
    """What makes it hard to say when a parameter is used, and when its gradient is there.

    A residual branch; a layer used twice; weights used without their module being called (an attention's projection, a
    decoder tied to the first layer); a parameter of the outermost module; a frozen layer; one that no step uses; one that
    only some rows use, so that steps differ in which gradients there are.
    """

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(28, 40, bias=False)
        self.frozen = nn.Linear(40, 40)
        self.frozen.requires_grad_(False)
        self.twice = nn.Linear(40, 40)
        self.branch = nn.Sequential(nn.Linear(40, 600), nn.ReLU(), nn.Linear(600, 40))
        self.attention = nn.MultiheadAttention(40, 4, batch_first=True)
        self.unused = nn.Linear(40, 40)
        self.sometimes = nn.Linear(40, 40)
        self.norm = nn.LayerNorm(40)
        self.scale = nn.Parameter(torch.ones(28))
        self.head = nn.Linear(28, 10)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.twice(torch.tanh(self.twice(self.frozen(self.encoder(rows))))))
        hidden = hidden + self.branch(hidden)
        hidden = hidden + self.attention(hidden[:, None], hidden[:, None], hidden[:, None])[0][:, 0]
        if rows[0, 0] > 0:
            hidden = hidden + self.sometimes(hidden)
        decoded = nn.functional.linear(self.norm(hidden), self.encoder.weight.t())
        return self.head(decoded * self.scale)


class Backwards(nn.Module):
    """Layers are used in the reverse of the order in which they are defined."""

    def __init__(self) -> None:
        super().__init__()
        self.third = nn.Linear(300, 10)
        self.second = nn.Linear(700, 300)
        self.first = nn.Linear(28, 700)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.third(torch.relu(self.second(torch.relu(self.first(rows)))))


def noisy(features: torch.Tensor) -> torch.Tensor:
    return features + torch.rand_like(features)


class TakesTurns(Large):
    """Where it is made, strategy auto uses these candidates in turn, for three steps each, until :meth:`untouched`."""

    names = ("ps+whole", "ring+decoupled", "ps+layerwise", "ring", "ps+ibatch", "ps+ibatch", "ring")

    def __init__(self) -> None:
        super().__init__()
        auto_strategy.Choice = functools.partial(InTurn, self.names)  # type: ignore[misc, assignment]

    @staticmethod
    def untouched() -> None:
        auto_strategy.Choice = choice.Choice  # type: ignore[misc]


class InTurn(choice.Choice):
    def __init__(self, names: tuple[str, ...], *given: Any) -> None:
        super().__init__(*given)
        self._names = list(names)
        self.record_turn([], 1)

    def record_turn(self, seconds: Any, step: int) -> bool:
        self.turn = choice.Turn(self._names.pop(0) if self._names else self.turn.candidate, 1, 2)
        return False
