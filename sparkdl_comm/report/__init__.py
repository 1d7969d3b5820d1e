"""What a person sees of a run: ``progress.py`` while it lasts, ``loggers.py`` for TensorBoard and MLflow,
``timeline.py`` what the ranks did when. ``plan_command.py`` and ``plan_plot.py`` are ``sparkdl-comm plan``,
``explain_command.py`` is ``sparkdl-comm explain``.
"""
