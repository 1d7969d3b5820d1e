"""Steps and epochs of one rank.

``training_loop.py`` runs the steps. ``asynchronous_loop.py`` is the loop for
strategies without common steps. ``row_assignment.py`` assigns rows to ranks and reads the rows of a step ahead.
``row_exchange.py`` fetches rows from other ranks. ``objective.py`` computes the loss, and ``class_mean.py`` the mean of
losses over classes.

``observer.py`` runs the end of an epoch: evaluation with ``metrics.py`` on validation rows, early stopping, and the
users' ``callbacks.py``. ``diagnosis.py`` explains mismatches of model, loss and rows, and finds the output's shape.
``rng.py`` handles the random generators, and calls the user's ``augment``.
"""
