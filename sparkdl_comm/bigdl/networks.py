"""Networks in BigDL, for examples and benchmarks. Inputs are images of 28 x 28 pixels, one row each; outputs are logarithms of
the probabilities of ten classes."""

from __future__ import annotations

from bigdl.dllib.nn.layer import (
    Layer,
    Linear,
    LogSoftMax,
    ReLU,
    Reshape,
    Sequential,
    SpatialConvolution,
    SpatialMaxPooling,
    Tanh,
)

from sparkdl_comm.lab.profile import Profile

CLASSES = 10
_PIXELS = 28 * 28


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


class EmulatedLayer(Layer):
    """A layer that owns parameters and gives gradients, but only waits instead of computing: see ``EmulatedLayer`` in
    ``scala/bigdl``. Inputs are rows by columns.

    ``index``: of these layers, from 0; ``parameters``: how many; ``forward``, ``backward``: seconds that a pass takes."""

    def __init__(self, index: int, parameters: int, forward: float, backward: float) -> None:
        super().__init__(None, "float", index, parameters, forward, backward)


def emulated(profile: Profile) -> Sequential:
    """The layers of a profile, which only wait, behind a small one that computes."""
    network = Sequential().add(Reshape([_PIXELS])).add(Linear(_PIXELS, CLASSES))
    for index, layer in enumerate(profile.layers):
        network.add(EmulatedLayer(index, layer.parameters, layer.forward, layer.backward))
    return network.add(LogSoftMax())


NETWORKS = {"lenet": lenet5, "vgg": vgg}
