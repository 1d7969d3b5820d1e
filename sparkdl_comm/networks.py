"""Networks for the programs, benchmarks and tests of this project.

They are in the package so that executors can import them, and a saved model can name its class.
"""

from __future__ import annotations

import torch
from torch import nn


class LeNet5(nn.Sequential):
    """The LeNet-5 of the BML paper: 3,274,634 parameters. Input [rows, 784] (28 x 28, flat), output [rows, 10]."""

    def __init__(self) -> None:
        super().__init__(
            nn.Unflatten(1, (1, 28, 28)),
            nn.Conv2d(1, 32, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(3136, 1024),
            nn.ReLU(),
            nn.Linear(1024, 10),
        )


class SmallLeNet(nn.Sequential):
    """BigDL's LeNet example: 22,278 parameters. Input [rows, 784] (28 x 28, flat), output [rows, 10]."""

    def __init__(self) -> None:
        super().__init__(
            nn.Unflatten(1, (1, 28, 28)),
            nn.Conv2d(1, 6, 5),
            nn.Tanh(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 12, 5),
            nn.Tanh(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(192, 100),
            nn.Tanh(),
            nn.Linear(100, 10),
        )


class WidePerceptron(nn.Sequential):
    """59,862,826 parameters in five layers: much communication for little computation. Input [rows, 784], output [rows,
    10].
    """

    def __init__(self) -> None:
        width = 4336
        super().__init__(
            nn.Linear(784, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 10),
        )


def parameter_count(module: nn.Module) -> int:
    """Return the number of elements of all parameters of ``module``."""
    return sum(parameter.numel() for parameter in module.parameters())


def digits_28x28() -> tuple[torch.Tensor, torch.Tensor]:
    """Return :func:`digits` in the size of MNIST's images."""
    return digits(28)


def digits(side: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the 1,797 handwritten digits that scikit-learn ships, scaled to ``side`` x ``side`` pixels.

    Images are float32 [1797, side * side] in [0, 1], labels int64 [1797].
    """
    from sklearn.datasets import load_digits

    found = load_digits()
    images = torch.from_numpy(found.images).float().div(16).unsqueeze(1)
    scaled = nn.functional.interpolate(images, size=(side, side), mode="bilinear", align_corners=False)
    return scaled.flatten(1), torch.from_numpy(found.target).long()
