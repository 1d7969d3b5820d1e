"""Figures of the iBatch paper that several tables stand beside."""

#: Speed-up over one node on so many nodes.
IBATCH_NODES = 30
#: With iBatch, by default, one batch per layer.
IBATCH_PAPER = {
    "googlenet": (29, 26, 25),
    "inception_v3": (28, 25, 24),
    "vgg19": (26, 23, 22),
    "vgg19_22k": (25, 22, 21),
}
#: Of VGG19-22K on 72 nodes.
IBATCH_PAPER_72 = (45, 26, 32)
