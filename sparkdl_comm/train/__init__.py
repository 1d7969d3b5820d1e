"""Training of one rank.

``loop/`` runs the steps and epochs. ``checkpoint/`` saves and restores the training state. ``spec.py`` defines what the
driver sends to every rank. How gradients become the next parameters is in :mod:`sparkdl_comm.strategies`.
"""
