"""Output of a run for people: progress bar, loggers, timelines and the reports of CLI commands.

- ``progress.py``: progress bar during a run. ``loggers.py``: TensorBoard and MLflow.
- ``timeline.py``: trace of all ranks.
- ``commands.py``: the commands ``explain``, ``plan`` and ``predict`` of ``sparkdl-comm``. ``drawing.py``: their figures.
"""
