"""Steps and epochs of one rank.

``training_loop.py`` takes the steps; ``progress.py`` says how many it has taken. Which rows they have: ``dealing.py``, with
``row_exchange.py`` for those of other ranks; ``step_rows.py`` reads them ahead, and ``augmentation.py`` changes them. What it
minimises: ``objective.py``, and ``class_mean.py`` for losses over classes. What happens around the steps: ``observer.py`` at
the end of an epoch, with ``evaluation.py`` and ``metrics.py`` on validation rows, ``early_stopping.py``, and users'
``callbacks.py``. ``diagnosis.py`` explains what does not fit together; ``rng.py`` holds the random generators,
``output_shape.py`` what the model returned.
"""
