"""Steps and epochs of one rank.

``training_loop.py`` takes the steps. What it minimises: ``objective.py``, and ``class_mean.py`` for losses over
classes. What happens around the steps: ``observer.py`` at the end of an epoch, with ``evaluation.py`` and
``metrics.py`` on validation rows, ``early_stopping.py``, and users' ``callbacks.py``. ``diagnosis.py`` explains what
does not fit together; ``rng.py`` holds the random generators, ``output_shape.py`` what the model returned.
"""
