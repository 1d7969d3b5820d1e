"""Networks in BigDL, for examples and benchmarks. Inputs are images of 28 x 28 pixels, one row each; outputs are logarithms of
the probabilities of ten classes."""

from __future__ import annotations

from bigdl.dllib.nn.layer import (
    Linear,
    LogSoftMax,
    ReLU,
    Reshape,
    Sequential,
    SpatialConvolution,
    SpatialMaxPooling,
    Tanh,
)

CLASSES = 10


def lenet5() -> Sequential:
    """LeNet-5 as BigDL's own example has it: 22,278 parameters."""
    network = Sequential().add(Reshape([1, 28, 28]))
    network.add(SpatialConvolution(1, 6, 5, 5)).add(Tanh()).add(SpatialMaxPooling(2, 2, 2, 2))
    network.add(SpatialConvolution(6, 12, 5, 5)).add(Tanh()).add(SpatialMaxPooling(2, 2, 2, 2))
    network.add(Reshape([12 * 4 * 4])).add(Linear(12 * 4 * 4, 100)).add(Tanh())
    return network.add(Linear(100, CLASSES)).add(LogSoftMax())


def vgg() -> Sequential:
    """Pairs of 3 x 3 convolutions with pooling between them, and two large layers, as in VGG: 1.34 million parameters."""
    network = Sequential().add(Reshape([1, 28, 28]))
    planes = 1
    for width in (32, 64, 128):
        for _ in range(2):
            network.add(SpatialConvolution(planes, width, 3, 3, 1, 1, 1, 1)).add(ReLU())
            planes = width
        network.add(SpatialMaxPooling(2, 2, 2, 2))
    pixels = 3 * 3 * planes
    network.add(Reshape([pixels])).add(Linear(pixels, 904)).add(ReLU())
    return network.add(Linear(904, CLASSES)).add(LogSoftMax())


NETWORKS = {"lenet": lenet5, "vgg": vgg}
