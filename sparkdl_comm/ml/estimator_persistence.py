"""Writer and reader of a TorchEstimator. The rules are those of :mod:`sparkdl_comm.ml.persistence`.

::

    path/metadata/…               Params, how to rebuild each component, and the components that ``load`` requires
    path/ingredients.safetensors  tensors in components, such as a loss's class weights
    path/model.safetensors        weights of a model that was given as a module; ``load`` requires such a module
    path/model/                   a saved TorchModel, if that was given
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from sparkdl_comm.ml.model import TorchModel
from sparkdl_comm.ml.persistence import FolderReader, FolderWriter, TorchModelReader, TorchModelWriter
from sparkdl_comm.ml.weights import WEIGHTS, read_weights, write_weights

if TYPE_CHECKING:
    from sparkdl_comm.ml.estimator import TorchEstimator

_MODEL = "model"


class TorchEstimatorWriter(FolderWriter):
    """Writer of a :class:`~sparkdl_comm.ml.estimator.TorchEstimator`."""

    _instance: TorchEstimator

    def write_to(self, folder: Path) -> dict[str, str]:
        estimator = self._instance
        components = {name: getattr(estimator, name) for name in estimator.ingredient_names()}
        missing = {}
        if isinstance(estimator.model, TorchModel):
            del components[_MODEL]
            (folder / _MODEL).mkdir()
            missing = TorchModelWriter(estimator.model).write_to(folder / _MODEL)
        elif isinstance(estimator.model, torch.nn.Module):
            write_weights(estimator.model, folder)
        return {**missing, **self.write_metadata(folder, components)}


class TorchEstimatorReader(FolderReader["TorchEstimator"]):
    """Reader of a :class:`~sparkdl_comm.ml.estimator.TorchEstimator`."""

    def read_from(self, folder: Path, path: str) -> TorchEstimator:
        metadata = self.read_metadata(folder, path)
        components = self.rebuild_components(metadata, folder, path)
        if (folder / _MODEL).exists():
            given = {_MODEL: self._given[_MODEL]} if _MODEL in self._given else {}
            components[_MODEL] = TorchModelReader(TorchModel, given).read_from(folder / _MODEL, path)
        elif (folder / WEIGHTS).exists():
            components[_MODEL] = read_weights(components[_MODEL], folder, path)
        return self.restore(self._cls(**components), metadata)
