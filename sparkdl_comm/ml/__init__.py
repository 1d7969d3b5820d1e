"""Spark ML interface: estimator, model and their Params.

- ``estimator.py`` and ``model.py`` are the two classes. ``params.py`` has their Params.
- Fit: ``estimator.py`` runs it, from the checks to the model. ``recipe.py`` holds the user's settings,
  ``components.py`` checks model, loss and optimizer, and ``columns.py`` checks the DataFrame's columns.
- Transform: ``scoring.py`` turns a model's outputs into columns. ``prediction.py`` runs it on executors.
- Save and load: ``persistence.py`` writes and reads metadata and components, ``weights.py`` tensors.
"""
