"""BigDL networks for examples and benchmarks.

Inputs are images of 28 x 28 pixels, one row each. Outputs are log-probabilities of ten classes.
"""

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

from sparkdl_comm.sim.profile import Profile

CLASSES = 10
_PIXELS = 28 * 28


def lenet5() -> Sequential:
    """Return LeNet-5 as in BigDL's own example: 22,278 parameters."""
    network = Sequential().add(Reshape([1, 28, 28]))
    network.add(SpatialConvolution(1, 6, 5, 5)).add(Tanh()).add(SpatialMaxPooling(2, 2, 2, 2))
    network.add(SpatialConvolution(6, 12, 5, 5)).add(Tanh()).add(SpatialMaxPooling(2, 2, 2, 2))
    network.add(Reshape([12 * 4 * 4])).add(Linear(12 * 4 * 4, 100)).add(Tanh())
    return network.add(Linear(100, CLASSES)).add(LogSoftMax())


def vgg() -> Sequential:
    """Return a small VGG: pairs of 3 x 3 convolutions, pooling, and two large linear layers; 1.34 million parameters."""
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


class EmulatedLayer(Layer):  # type: ignore[misc]
    """Layer that has parameters and gradients, but sleeps instead of computing: see ``EmulatedLayer`` in ``scala/bigdl``.

    Inputs are rows by columns. ``index``: number among these layers, from 0. ``parameters``: their count. ``forward``,
    ``backward``: seconds of a pass.
    """

    def __init__(self, index: int, parameters: int, forward: float, backward: float) -> None:
        super().__init__(None, "float", index, parameters, forward, backward)


def emulated(profile: Profile) -> Sequential:
    """Return a network with a small linear layer, followed by an emulated layer for each layer of ``profile``."""
    network = Sequential().add(Reshape([_PIXELS])).add(Linear(_PIXELS, CLASSES))
    for index, layer in enumerate(profile.layers):
        network.add(EmulatedLayer(index, layer.parameters, layer.forward, layer.backward))
    return network.add(LogSoftMax())


NETWORKS = {"lenet": lenet5, "vgg": vgg}
