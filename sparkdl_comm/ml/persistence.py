"""Writers and readers of models and estimators: JSON metadata as in pyspark.ml, weights as safetensors.

A model is saved as::

    path/metadata/part-00000       one line of JSON: Params, summary, how to rebuild the module
    path/metadata/_SUCCESS
    path/model.safetensors         tensors that share memory (tied weights) are stored once
    path/extra_state.safetensors   results of ``get_extra_state`` of the module's parts, if any define it
    path/ingredients.safetensors   tensors among the arguments of the function that makes the module, if any

An estimator has the same metadata and, if they were given, ``model.safetensors`` of a module, or ``model/``, a saved model.

Nothing is pickled. Components that Params cannot hold are rebuilt by name (see :mod:`sparkdl_comm.ml.rebuild`). For a
model, they are the class or function that makes the module, ``decode`` and ``collate_fn``. If that is impossible,
saving warns, and the caller of ``load`` must give the component.

A save writes to a directory next to ``path`` and then renames it. So ``path`` is complete or does not exist. The
exception is an interrupted rename on object stores, where renaming is copying. See :mod:`sparkdl_comm.storage`.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import safetensors.torch
import torch
from pyspark.ml.param import Params
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReadable, MLReader, MLWriter
from pyspark.sql import SparkSession

from sparkdl_comm.conf import CommConf
from sparkdl_comm.errors import PersistenceError
from sparkdl_comm.job.session import is_classic, session_conf
from sparkdl_comm.ml.rebuild import blueprint_of, rebuild
from sparkdl_comm.ml.weights import read_tensors
from sparkdl_comm.storage.files import Storage
from sparkdl_comm.storage.session import ConnectStorage, DriverStorage

T = TypeVar("T", bound="MLReadable[Any]")

FORMAT = 1
_METADATA = "metadata/part-00000"
_COMPONENTS = "ingredients.safetensors"


def session_storage(spark: SparkSession) -> Storage:
    """Return the storage of models, for any path that Hadoop reaches with the session's settings."""
    if is_classic(spark):
        return DriverStorage(spark)
    return ConnectStorage(spark, CommConf.from_mapping(session_conf(spark)).timeout)


class FolderWriter(MLWriter):
    """Writer with ``overwrite()`` and ``save(path)``, as ``x.write()`` returns it. Subclasses decide the contents."""

    def __init__(self, instance: Params) -> None:
        super().__init__()
        self._instance = instance

    def save(self, path: str) -> None:
        """Save to ``path``, any path that Spark can write. Warns if ``load`` will require components.

        With ``overwrite()``, an existing directory is deleted last.

        :raises PersistenceError: ``path`` exists, or cannot be written. In that case nothing is left behind.
        """
        # MLWriter.save would delete the old directory first
        missing: dict[str, str] = {}

        def write(folder: Path) -> None:
            folder.mkdir()
            missing.update(self.write_to(folder))

        with session_storage(self.sparkSession) as storage:
            if not self.shouldOverwrite and storage.exists(path):
                raise PersistenceError(f"{path} already exists; to replace it, x.write().overwrite().save(path)")
            storage.replace(path, write, self.shouldOverwrite)
        if missing:
            warnings.warn(f"{path}: {_describe_missing(missing)}", stacklevel=2)

    def write_to(self, folder: Path) -> dict[str, str]:
        """Write to a local directory. Return the components that ``load`` will require: reasons by name."""
        raise NotImplementedError

    def write_metadata(self, folder: Path, components: Mapping[str, Any], **extra: Any) -> dict[str, str]:
        """Write Params, ``components`` and the JSON values of ``extra``. Return as :meth:`write_to`."""
        tensors: dict[str, torch.Tensor] = {}
        blueprints, missing = {}, {}
        for name, value in components.items():
            try:
                blueprints[name] = blueprint_of(value, tensors, name)
            except PersistenceError as error:
                missing[name] = str(error)
        extra = {"formatVersion": FORMAT, "ingredients": blueprints, "missing": missing, **extra}
        metadata = DefaultParamsWriter._get_metadata_to_save(
            self._instance,
            self.sparkSession,  # type: ignore[arg-type]  # only its version is used; Spark Connect has no context
            extraMetadata=extra,
        )
        (folder / _METADATA).parent.mkdir(parents=True)
        (folder / _METADATA).write_text(metadata + "\n", encoding="utf-8")
        (folder / "metadata/_SUCCESS").touch()
        if tensors:
            safetensors.torch.save_file(tensors, folder / _COMPONENTS)
        return missing


class FolderReader(MLReader[T]):
    """Reader with ``load(path)``, as ``X.read()`` returns it. Subclasses build the instance."""

    def __init__(self, cls: type[T], given: Mapping[str, Any]) -> None:
        """:param given: components by name, in place of the saved ones."""
        super().__init__()
        self._cls = cls
        self._given = given

    def load(self, path: str) -> T:
        """Load the instance at ``path``; see ``load`` of the class."""
        with session_storage(self.sparkSession) as storage:
            folder = storage.local(f"{path.rstrip('/')}/")
            if folder is None:
                raise PersistenceError(f"{path}: there is nothing at {storage.qualify(path)}")
            return self.read_from(folder, path)

    def read_from(self, folder: Path, path: str) -> T:
        """Return the instance saved in the local directory ``folder``.

        :param path: original location of ``folder``, for error messages.
        """
        raise NotImplementedError

    def read_metadata(self, folder: Path, path: str) -> dict[str, Any]:
        """Return the saved metadata.

        :raises PersistenceError: there is no readable metadata.
        """
        try:
            metadata: dict[str, Any] = json.loads((folder / _METADATA).read_text(encoding="utf-8"))
            version = metadata["formatVersion"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise PersistenceError(f"{path}: not a saved {self._cls.__name__}: {error!r}") from error
        if version > FORMAT:
            raise PersistenceError(
                f"{path}: format {version}, and this sparkdl_comm reads up to {FORMAT}. Use a newer version"
            )
        return metadata

    def rebuild_components(self, metadata: Mapping[str, Any], folder: Path, path: str) -> dict[str, Any]:
        """Return all components: the given ones, and the others rebuilt.

        :raises PersistenceError: a component must be given; names it.
        """
        missing = {name: why for name, why in metadata["missing"].items() if name not in self._given}
        tensors = read_tensors(folder / _COMPONENTS, path) if (folder / _COMPONENTS).exists() else {}
        components = dict(self._given)
        for name, blueprint in metadata["ingredients"].items():
            if name not in self._given:
                try:
                    components[name] = rebuild(blueprint, tensors)
                except PersistenceError as error:
                    missing[name] = f"{name}: {error}"
        if missing:
            raise PersistenceError(f"{path}: {_describe_missing(missing)}")
        return components

    def restore(self, instance: T, metadata: Mapping[str, Any]) -> T:
        """Set the saved uid and Params of ``instance``, and return it."""
        params: Any = instance
        params._resetUid(metadata["uid"])
        DefaultParamsReader.getAndSetParams(params, dict(metadata))
        return instance


def _describe_missing(missing: Mapping[str, str]) -> str:
    keywords = ", ".join(f"{name}=..." for name in missing)
    return (
        f"{'; '.join(missing.values())}. Give what is missing: load(path, {keywords}). Importable classes and functions, and "
        "functools.partials of them, need not be given"
    )
