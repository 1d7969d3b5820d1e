"""Write the profiles of lab.emulated: parameters of each layer, and seconds from its floating-point operations.

    python python/make_profiles.py

Needs torchvision, which nothing else here needs; the profiles it wrote are in the package. Nothing is computed: the
networks run on torch's "meta" device, which knows shapes only.
"""

from __future__ import annotations

import argparse
import functools
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import nn

from sparkdl_comm.networks import LeNet5
from sparkdl_comm.sim.profile import PROFILES, Layer, Profile

IMAGENET_22K_CLASSES = 21841
TOKENS = 128


class Attention(nn.Module):
    """Multi-head self-attention; scores and weighted sum cost operations, but own no parameters."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.output = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.query(x) @ self.key(x).transpose(1, 2)
        return self.output(scores @ self.value(x))


class Block(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.attention, self.attention_norm = Attention(width), nn.LayerNorm(width)
        self.intermediate, self.output, self.output_norm = (
            nn.Linear(width, inner),
            nn.Linear(inner, width),
            nn.LayerNorm(width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.attention_norm(x + self.attention(x))
        return self.output_norm(x + self.output(self.intermediate(x)))


class Bert(nn.Module):
    """The parameters of BERT base, uncased, with its pooler. Input: token numbers, int64 [rows, tokens]."""

    def __init__(self, vocabulary: int = 30522, positions: int = 512, width: int = 768, blocks: int = 12) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        self.types, self.norm = nn.Embedding(2, width), nn.LayerNorm(width)
        self.blocks = nn.Sequential(*(Block(width, 4 * width) for _ in range(blocks)))
        self.pooler = nn.Linear(width, width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        x = self.norm(x + self.types(torch.zeros_like(tokens)))
        return self.pooler(self.blocks(x)[:, 0])


def images(size: int) -> Callable[[int], torch.Tensor]:
    return lambda rows: torch.empty(rows, 3, size, size)


def tokens(rows: int) -> torch.Tensor:
    return torch.zeros(rows, TOKENS, dtype=torch.long)


models = torchvision.models
#: By file name: title, network, input for a number of rows.
NETWORKS: dict[str, tuple[str, Callable[[], nn.Module], Callable[[int], torch.Tensor]]] = {
    "lenet5": ("LeNet-5", LeNet5, lambda rows: torch.empty(rows, 784)),
    "alexnet": ("AlexNet", models.alexnet, images(224)),
    "googlenet": (
        "GoogLeNet, without auxiliary classifiers",
        functools.partial(models.googlenet, aux_logits=False, init_weights=False),
        images(224),
    ),
    "inception_v3": (
        "Inception-V3, with its auxiliary classifier",
        functools.partial(models.inception_v3, init_weights=False),
        images(299),
    ),
    "resnet50": ("ResNet-50", models.resnet50, images(224)),
    "resnet152": ("ResNet-152", models.resnet152, images(224)),
    "vgg19": ("VGG-19", models.vgg19, images(224)),
    "vgg19_22k": (
        "VGG19-22K: VGG-19 for the 21,841 classes of ImageNet-22K",
        functools.partial(models.vgg19, num_classes=IMAGENET_22K_CLASSES),
        images(224),
    ),
    "bert_base": (f"BERT base, {TOKENS} tokens per row", Bert, tokens),
}


def operations(module: nn.Module, output: torch.Tensor) -> int:
    """Return the number of floating-point operations of a layer's forward pass."""
    if isinstance(module, nn.Conv2d):
        return 2 * output.numel() * module.weight[0].numel() + (output.numel() if module.bias is not None else 0)
    if isinstance(module, nn.Linear):
        return output.numel() * (2 * module.in_features + 1)
    if isinstance(module, nn.Embedding):
        return output.numel()
    if isinstance(module, (nn.BatchNorm2d, nn.LayerNorm)):
        return 2 * output.numel()
    raise TypeError(f"no rule for {type(module).__name__}")


def profile(name: str, rows: int, rate: float) -> Profile:
    """Return the profile of one network. Its layers are in the order in which a training step first computes them."""
    title, make, batch = NETWORKS[name]
    with torch.device("meta"):
        network, data = make().train(), batch(rows)
    counts: dict[str, int] = defaultdict(int)

    def watch(layer: str) -> Callable[[nn.Module, Any, torch.Tensor], None]:
        def note(module: nn.Module, _: Any, output: torch.Tensor) -> None:
            counts[layer] += operations(module, output)

        return note

    def attention(layer: str) -> Callable[[nn.Module, Any, torch.Tensor], None]:
        def note(_: nn.Module, __: Any, output: torch.Tensor) -> None:
            # two products of [tokens, width] by [width, tokens] or the like, for each row
            counts[layer] += 2 * 2 * output.numel() * output.shape[1]

        return note

    modules = dict(network.named_modules())
    for layer, module in modules.items():
        if next(module.parameters(recurse=False), None) is not None:
            module.register_forward_hook(watch(layer))
        if isinstance(module, Attention):
            module.value.register_forward_hook(attention(f"{layer}.value"))
    network(data)
    layers = []
    for index, (layer, count) in enumerate(counts.items()):
        shapes = {key: list(value.shape) for key, value in modules[layer].named_parameters(recurse=False)}
        # Backward: gradients of the parameters, and of the input, which the first layer does not need.
        backward = count * (1 if index == 0 else 2)
        layers.append(Layer(layer, shapes, count / rate, backward / rate))
    return Profile(
        title=title,
        rows=rows,
        source=(
            f"shapes: torch {torch.__version__.split('+')[0]}, torchvision {torchvision.__version__.split('+')[0]}; seconds:"
            f" floating-point operations of {rows} rows at {rate:g} a second (multiply and add are two; two for each"
            " element that a normalisation gives; activations, pooling and dropout are free; backward twice forward, once"
            " for the first layer)"
        ),
        layers=tuple(layers),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=32, help="rows of a batch")
    parser.add_argument("--rate", type=float, default=1e12, help="floating-point operations per second")
    parser.add_argument("--output", type=Path, default=PROFILES)
    options = parser.parse_args()
    for name in NETWORKS:
        made = profile(name, options.rows, options.rate)
        (options.output / f"{name}.json").write_text(made.to_json())
        print(f"{name:14}{made.parameters:>12,} parameters  {len(made.layers):4} layers  {made.seconds:.4g} s a step")


if __name__ == "__main__":
    main()
