"""The shapes of ResNet-50's parameters, for benchmarks that need no more of it."""

from __future__ import annotations

#: Blocks of the four stages.
_BLOCKS = (3, 4, 6, 3)


def resnet50(width: int = 64) -> list[tuple[int, ...]]:
    """Shapes of its 161 parameters (He et al. 2016), for 1000 classes; ``width``: channels of the first convolution."""

    def convolution(out: int, into: int, kernel: int) -> list[tuple[int, ...]]:
        return [(out, into, kernel, kernel), (out,), (out,)]  # and the norm after it

    shapes, into = convolution(width, 3, 7), width
    for stage, blocks in enumerate(_BLOCKS):
        inner = width << stage
        for block in range(blocks):
            shapes += [*convolution(inner, into, 1), *convolution(inner, inner, 3), *convolution(4 * inner, inner, 1)]
            if block == 0:
                shapes += convolution(4 * inner, into, 1)
            into = 4 * inner
    return [*shapes, (1000, into), (1000,)]
