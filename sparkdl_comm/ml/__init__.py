"""What a user of Spark ML touches.

``estimator.py`` and ``model.py`` are the two classes; ``params/`` their Params, one file per concern. ``fit.py`` is a fit,
from the checks to the model. On the way into it: ``recipe.py`` holds what the user gave, ``components.py`` checks model, loss
and optimizer, ``columns.py`` the DataFrame's columns. On the way out: ``scoring.py`` says what becomes of a model's outputs,
``prediction.py`` computes it on executors. Kept for later: ``persistence.py`` and ``estimator_persistence.py`` write and read,
at any path that Hadoop reaches (``storage.py``), what ``rebuild.py`` can name, and ``weights.py`` its tensors; ``export.py``
writes TorchScript and ONNX.
"""
