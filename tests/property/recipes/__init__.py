"""Whole recipes of training, trained by ``TorchEstimator.fit`` on real ranks, and by plain torch in one process."""
