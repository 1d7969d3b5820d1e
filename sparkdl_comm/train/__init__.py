"""Training of one rank: steps, epochs and checkpoints.

- ``spec.py`` defines what the driver sends to every rank. How gradients become the next parameters is in
  :mod:`sparkdl_comm.strategies`.
- ``training_loop.py`` runs the steps. ``asynchronous_loop.py`` is the loop for strategies without common steps.
- ``row_assignment.py`` assigns rows to ranks and reads the rows of a step ahead. ``row_exchange.py`` fetches rows from
  other ranks.
- ``objective.py`` computes the loss, and ``class_mean.py`` the mean of losses over classes. ``diagnosis.py`` explains
  mismatches of model, loss and rows, and finds the output's shape.
- ``observer.py`` runs the end of an epoch: evaluation on validation rows, early stopping, and the users'
  ``callbacks.py``. ``rng.py`` handles the random generators, and calls the user's ``augment``.
- ``checkpoint.py`` decides when to write a checkpoint and what, and resumes from one.
  ``checkpoint_directory.py`` defines the layout. The files are in a :mod:`sparkdl_comm.storage`, at a local path or a
  Hadoop URI.
"""
