"""Ranks on GPUs; skipped where there is none. Ranks share one GPU if they must, which NCCL does not allow."""

import pytest
import torch

from tests.integration.nets import Large
from tests.integration.test_training import distance, fit, frame, in_one_process

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("strategy", ["ps", "gloo"])
def test_same_mathematics_as_one_process(spark, strategy):
    model = fit(frame(spark), model=Large, strategy=strategy, device="cuda")
    assert distance(model.module.state_dict(), in_one_process(Large, "sgd", 20)) <= 1e-4
    assert all(tensor.device.type == "cpu" for tensor in model.module.state_dict().values())


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL needs a device per rank")
def test_nccl(spark):
    model = fit(frame(spark), model=Large, strategy="nccl", device="cuda", num_workers=2)
    assert distance(model.module.state_dict(), in_one_process(Large, "sgd", 20)) <= 1e-4
