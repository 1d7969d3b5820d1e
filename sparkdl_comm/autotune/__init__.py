"""Choices that a fit makes by measuring its own steps.

- ``auto_strategy.py``: strategy auto, which runs other strategies in turn, and the strategy of
  ``collective.batching=ibatch``, which tries planned buckets.
- ``choice.py``: candidates, and the decision between them at rank 0.
- ``prediction.py``: predicted step times of candidates, and buckets cut by iBatch's planner.
- ``strategy_switcher.py``: the switch from one strategy to the next.
- ``timing.py``: times of steps, and the overhead of the parameter server.
- ``compression_trial.py``: trials of compressed against whole gradients.

The registry of strategies loads this package by name. So does a collective with ``compression.schedule=auto``.
"""
