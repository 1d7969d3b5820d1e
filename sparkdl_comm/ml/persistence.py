"""Writers and readers of models and estimators: JSON metadata as in pyspark.ml, weights as safetensors.

A model is saved as::

    path/metadata/part-00000       one line of JSON: Params, summary, how to rebuild the module
    path/metadata/_SUCCESS
    path/model.safetensors         tensors that share memory (tied weights) are stored once
    path/extra_state.safetensors   results of ``get_extra_state`` of the module's parts, if any define it
    path/ingredients.safetensors   tensors among the arguments of the function that makes the module, if any

An estimator has the same metadata and, if they were given, ``model.safetensors`` of a module, or ``model/``, a saved model.

Nothing is pickled. Components that Params cannot hold are rebuilt by name. For a model, they are the class or function
that makes the module, ``decode`` and ``collate_fn``. If that is impossible, saving warns, and the caller of ``load``
must give the component. The instructions to rebuild a value are a *blueprint*. It refers to classes and functions by
import name. It is JSON, with tensors in a separate dict. It is one of::

    null  true  1  1.5  "text"                                     itself
    {"list": [blueprint, ...]}  {"tuple": [...]}  {"dict": {"name": blueprint, ...}}
    {"tensor": "0"}                                                the tensor of that name
    {"import": "torch.optim.adam:Adam"}                            a class or function
    {"partial": blueprint, "args": [...], "keywords": {...}}       a functools.partial
    {"loss": "torch.nn.modules.loss:HuberLoss", "keywords": {...}} an instance of a loss of torch.nn

A save writes to a directory next to ``path`` and then renames it. So ``path`` is complete or does not exist. The
exception is an interrupted rename on object stores, where renaming is copying. See :mod:`sparkdl_comm.storage`.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import safetensors.torch
import torch
from pyspark.ml.param import Params
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReadable, MLReader, MLWriter
from pyspark.sql import SparkSession
from torch.nn.modules import loss as losses

from sparkdl_comm.conf import CommConf
from sparkdl_comm.errors import PersistenceError
from sparkdl_comm.job.session import is_classic, session_conf
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

        :raises PersistenceError: a component must be given. The message names the component.
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


#: JSON; see this module's docstring.
Blueprint: TypeAlias = Any

#: Deprecated arguments of losses, replaced by ``reduction``.
_DEPRECATED = ("size_average", "reduce")


def blueprint_of(value: Any, tensors: dict[str, torch.Tensor], name: str) -> Blueprint:
    """Return a blueprint of ``value``.

    :param tensors: receives the tensors in ``value``.
    :param name: of ``value``, for the error.
    :raises PersistenceError: an object in ``value`` cannot be imported by name. The message names the object.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, torch.Tensor):
        key = str(len(tensors))
        tensors[key] = value.detach().cpu().contiguous()
        return {"tensor": key}
    if type(value) in (list, tuple):
        return {type(value).__name__: _items(value, tensors, name)}
    if type(value) is dict and all(type(key) is str for key in value):
        return {"dict": _entries(value, tensors, name)}
    if type(value) is functools.partial:
        return {
            "partial": blueprint_of(value.func, tensors, f"{name}.func"),
            "args": _items(value.args, tensors, f"{name}.args"),
            "keywords": _entries(value.keywords, tensors, f"{name}.keywords"),
        }
    imported = import_name(value)
    if imported is not None:
        return {"import": imported}
    if type(value).__module__ == losses.__name__:  # these classes keep their arguments as attributes
        arguments = [argument for argument in inspect.signature(type(value)).parameters if argument not in _DEPRECATED]
        keywords = {argument: getattr(value, argument) for argument in arguments}
        return {"loss": import_name(type(value)), "keywords": _entries(keywords, tensors, name)}
    raise PersistenceError(f"{name} ({describe_value(value)}) cannot be imported by name")


def rebuild(blueprint: Blueprint, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return the value that :func:`blueprint_of` got.

    :raises PersistenceError: something in it cannot be imported, or is not a blueprint.
    """
    try:
        return _rebuild(blueprint, tensors)
    except (ImportError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise PersistenceError(f"cannot rebuild {blueprint}: {error!r}") from error


def import_name(value: Any) -> str | None:
    """Return ``package.module:qualname`` of a class or function that another process can import, or None."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not module or not name or module == "__main__":
        return None
    try:
        return f"{module}:{name}" if _import_by_name(f"{module}:{name}") is value else None
    except (ImportError, AttributeError):
        return None


def describe_value(value: Any) -> str:
    """Describe ``value`` for messages: ``function tests.nets:<lambda>``, ``instance of
    torch.nn.modules.linear:Linear``."""
    named = value if hasattr(value, "__qualname__") else type(value)
    kind = type(value).__name__ if named is value else "instance of"
    return f"{kind} {named.__module__}:{named.__qualname__}"


def _items(values: list[Any] | tuple[Any, ...], tensors: dict[str, torch.Tensor], name: str) -> list[Blueprint]:
    return [blueprint_of(value, tensors, f"{name}[{index}]") for index, value in enumerate(values)]


def _entries(values: dict[str, Any], tensors: dict[str, torch.Tensor], name: str) -> dict[str, Blueprint]:
    return {key: blueprint_of(value, tensors, f"{name}[{key!r}]") for key, value in values.items()}


def _rebuild(blueprint: Blueprint, tensors: Mapping[str, torch.Tensor]) -> Any:
    if not isinstance(blueprint, dict):
        return blueprint
    if "list" in blueprint:
        return [_rebuild(item, tensors) for item in blueprint["list"]]
    if "tuple" in blueprint:
        return tuple(_rebuild(item, tensors) for item in blueprint["tuple"])
    if "dict" in blueprint:
        return {key: _rebuild(item, tensors) for key, item in blueprint["dict"].items()}
    if "tensor" in blueprint:
        return tensors[blueprint["tensor"]]
    if "import" in blueprint:
        return _import_by_name(blueprint["import"])
    keywords = {key: _rebuild(item, tensors) for key, item in blueprint["keywords"].items()}
    if "loss" in blueprint:
        return _import_by_name(blueprint["loss"])(**keywords)
    args = [_rebuild(item, tensors) for item in blueprint["args"]]
    return functools.partial(_rebuild(blueprint["partial"], tensors), *args, **keywords)


def _import_by_name(name: str) -> Any:
    module, path = name.split(":", 1)
    value: Any = importlib.import_module(module)
    for part in path.split("."):
        value = getattr(value, part)
    return value
