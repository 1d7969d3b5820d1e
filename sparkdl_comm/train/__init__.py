"""One rank's training: ``loop/`` computes its steps and epochs, ``checkpoint/`` keeps what it would need to go on.

``spec.py`` is what the driver tells it. How gradients become the next parameters is the business of
:mod:`sparkdl_comm.strategies`.
"""
