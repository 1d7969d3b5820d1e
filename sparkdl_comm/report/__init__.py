"""Output of a run for people: progress bar, loggers, timelines and the reports of CLI commands.

- ``progress.py``: progress bar during a run. ``loggers.py``: TensorBoard and MLflow.
- ``timeline.py``: trace of all ranks.
- ``plan_command.py``: ``sparkdl-comm plan``. ``explain_command.py``: ``sparkdl-comm explain``.
  ``predict_command.py``: ``sparkdl-comm predict``. ``drawing.py``: their figures.
"""
