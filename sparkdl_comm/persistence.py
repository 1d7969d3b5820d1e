"""Saving and loading a TorchModel: JSON metadata as pyspark.ml has it, and the weights as safetensors.

::

    path/metadata/part-00000    one line of JSON: Params, summary, how to rebuild the module
    path/metadata/_SUCCESS
    path/model.safetensors      tensors that share memory (tied weights) are stored once

Nothing is pickled. The module is rebuilt by importing the class or function that the estimator was given, or that a
``functools.partial`` with arguments of JSON calls; where that is not possible, whoever loads the model gives it. The same
holds for ``decode``.

A save writes to a directory next to ``path`` and renames that, so that ``path`` is complete or not there at
all (on object stores, where renaming is copying, an interrupted rename can leave a part).
"""

from __future__ import annotations

import copy
import functools
import importlib
import json
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReader, MLWriter
from pyspark.sql import SparkSession

from .data.fields import Decode
from .errors import ModelError, PersistenceError

if TYPE_CHECKING:
    from .model import TorchModel

#: How to get a callable: ``package.module:qualname``, or what :func:`recipe_of` makes of a partial. JSON.
Recipe = str | dict[str, Any]

FORMAT = 1
_METADATA = "metadata/part-00000"
_WEIGHTS = "model.safetensors"


def importable(factory: Any) -> str | None:
    """``package.module:qualname`` of a class or function that another process can import, or None."""
    module, name = getattr(factory, "__module__", None), getattr(factory, "__qualname__", None)
    if not module or not name or module == "__main__":
        return None
    try:
        return f"{module}:{name}" if _import(module, name) is factory else None
    except (ImportError, AttributeError):
        return None


def recipe_of(factory: Any) -> Recipe | None:
    """How another process gets the callable ``factory``: by importing it, or None. Of a ``functools.partial`` with
    arguments that JSON keeps as they are, a dict: ``call``, ``args`` and ``keywords``."""
    if not isinstance(factory, functools.partial):
        return importable(factory)
    name, arguments = importable(factory.func), {"args": list(factory.args), "keywords": factory.keywords}
    try:
        kept = json.loads(json.dumps(arguments)) == arguments
    except (TypeError, ValueError):
        return None
    return {"call": name, **arguments} if name is not None and kept else None


def _callable(recipe: Recipe) -> Any:
    """The inverse of :func:`recipe_of`."""
    if isinstance(recipe, str):
        return _import(*recipe.split(":", 1))
    return functools.partial(_import(*recipe["call"].split(":", 1)), *recipe["args"], **recipe["keywords"])


def _import(module: str, name: str) -> Any:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


class TorchModelWriter(MLWriter):
    """``model.write()``: ``overwrite()``, then ``save(path)``."""

    def __init__(self, model: TorchModel) -> None:
        super().__init__()
        self._model = model

    def save(self, path: str) -> None:
        """Save to ``path``, any path that Spark can write. What was there, if ``overwrite()``, goes last.

        :raises PersistenceError: ``path`` exists, or cannot be written; nothing is left behind.
        """
        # not MLWriter.save, which would delete the old model first
        store = Store(self.sparkSession, path)
        if not self.shouldOverwrite and store.exists():
            raise PersistenceError(f"{path} already exists; to replace it, model.write().overwrite().save(path)")
        with tempfile.TemporaryDirectory(prefix="sparkdl-save-") as folder:
            self._write(Path(folder))
            store.put(Path(folder), replace=self.shouldOverwrite)

    def _write(self, folder: Path) -> None:
        model = self._model
        extra = {
            "formatVersion": FORMAT,
            "classification": model.classification,
            "activation": model.activation,
            "outputShape": model.output_shape,
            "summary": model.summary,
            "module": {
                "factory": model.factory,
                "class": f"{type(model.module).__module__}:{type(model.module).__qualname__}",
            },
            "decode": None if model.decode is None else {"recipe": recipe_of(model.decode)},
        }
        (folder / "metadata").mkdir()
        metadata = DefaultParamsWriter._get_metadata_to_save(model, self.sc, extraMetadata=extra)
        (folder / _METADATA).write_text(metadata + "\n", encoding="utf-8")
        (folder / "metadata/_SUCCESS").touch()
        try:
            safetensors.torch.save_model(model.module, str(folder / _WEIGHTS))
        except (RuntimeError, ValueError, AttributeError) as error:
            raise ModelError(f"the weights cannot be stored as safetensors: {error}") from error


class TorchModelReader(MLReader["TorchModel"]):
    """``TorchModel.read()``: ``load(path)``."""

    def __init__(self, cls: type[TorchModel], model: Any = None, decode: Decode | None = None) -> None:
        super().__init__()
        self._cls = cls
        self._given = model
        self._decode = decode

    def load(self, path: str) -> TorchModel:
        """See :meth:`sparkdl_comm.model.TorchModel.load`."""
        with Store(self.sparkSession, path).local() as folder:
            try:
                metadata = json.loads((folder / _METADATA).read_text(encoding="utf-8"))
                version, factory = metadata["formatVersion"], metadata["module"]["factory"]
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise PersistenceError(f"{path}: not a saved TorchModel: {error!r}") from error
            if version > FORMAT:
                raise PersistenceError(
                    f"{path}: format {version}, and this sparkdl_comm reads up to {FORMAT}; use a newer one"
                )
            module = _rebuild(self._given, factory, metadata["module"]["class"], path)
            decode = _decode(self._decode, metadata.get("decode"), path)
            try:
                safetensors.torch.load_model(module, str(folder / _WEIGHTS))
            except RuntimeError as error:  # names the tensors
                raise ModelError(f"{path}: the weights are not those of {type(module).__name__}: {error}") from error
            except (OSError, safetensors.SafetensorError) as error:
                raise PersistenceError(f"{path}: cannot read {_WEIGHTS}: {error}") from error
        model = self._cls(
            module.eval(),
            metadata["classification"],
            metadata["summary"],
            metadata["outputShape"],
            factory,
            metadata.get("activation"),
            decode,
        )
        model._resetUid(metadata["uid"])
        DefaultParamsReader.getAndSetParams(model, metadata)
        return model


def _rebuild(given: Any, factory: Recipe | None, kind: str, path: str) -> torch.nn.Module:
    """A module to load weights into: from what the caller gave, else from the recipe in the metadata."""
    if given is not None:
        module = copy.deepcopy(given) if isinstance(given, torch.nn.Module) else given()
    elif factory is None:
        raise PersistenceError(
            f"{path}: the module, a {kind}, was given to the estimator as an instance, or came from "
            "__main__, a notebook or a local function, so it cannot be rebuilt by name. Give it: "
            "TorchModel.load(path, model=...), with the module, its class or a function that returns it"
        )
    else:
        try:
            module = _callable(factory)()
        except Exception as error:
            raise PersistenceError(
                f"{path}: cannot rebuild the module from {factory}: {error!r}. Put it on the Python path, or "
                "give it: TorchModel.load(path, model=...)"
            ) from error
    if not isinstance(module, torch.nn.Module):
        raise PersistenceError(f"{path}: {factory or given} made a {type(module).__name__}, not a torch.nn.Module")
    return module


def _decode(given: Decode | None, saved: dict[str, Any] | None, path: str) -> Decode | None:
    """What the caller gave, else what the metadata name."""
    if given is not None or saved is None:
        return given
    if saved["recipe"] is None:
        raise PersistenceError(
            f"{path}: decode came from __main__, a notebook or a local function, so it cannot be found by name. Give it:"
            " TorchModel.load(path, decode=...)"
        )
    try:
        return _callable(saved["recipe"])
    except (ImportError, AttributeError) as error:
        raise PersistenceError(
            f"{path}: cannot find decode, {saved['recipe']}: {error!r}. Put it on the Python path, or give it:"
            " TorchModel.load(path, decode=...)"
        ) from error


class Store:
    """A directory at any path that Hadoop can reach with the session's settings. Raises PersistenceError."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._path = path
        self._jvm: Any = spark.sparkContext._jvm
        with self._named("open"):
            self._target = self._at(path)
            hadoop = spark.sparkContext._jsc.hadoopConfiguration()
            self._fs = self._target.getFileSystem(hadoop)
            self._target = self._fs.makeQualified(self._target)

    def exists(self) -> bool:
        with self._named("look at"):
            return bool(self._fs.exists(self._target))

    def put(self, folder: Path, replace: bool) -> None:
        """Copy a local directory here, all or nothing; ``replace``: instead of what is here now."""
        parent, name = self._target.getParent(), self._target.getName()
        new, old = (self._at(f"{parent}/.{name}.{uuid.uuid4().hex[:12]}.{kind}") for kind in ("new", "old"))
        with self._named("write"):
            try:
                self._fs.mkdirs(parent)
                self._fs.copyFromLocalFile(False, True, self._at(folder.as_uri()), new)
                if replace and self._fs.exists(self._target):
                    self._rename(self._target, old)
                try:
                    self._rename(new, self._target)
                except BaseException:
                    if self._fs.exists(old):
                        self._fs.rename(old, self._target)
                    raise
                self._fs.delete(old, True)
            finally:
                self._fs.delete(new, True)

    @contextmanager
    def local(self) -> Iterator[Path]:
        """The directory on a local disk: itself if it is there already, else a temporary copy."""
        if not self.exists():
            raise PersistenceError(f"{self._path}: there is nothing at {self._target.toString()}")
        if self._fs.getUri().getScheme() == "file":
            yield Path(self._target.toUri().getPath())
            return
        with tempfile.TemporaryDirectory(prefix="sparkdl-load-") as folder:
            copied = Path(folder) / "model"
            with self._named("read"):
                self._fs.copyToLocalFile(False, self._target, self._at(copied.as_uri()), True)
            yield copied

    def _at(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def _rename(self, source: Any, target: Any) -> None:
        if not self._fs.rename(source, target):
            raise PersistenceError(f"{self._path}: cannot rename {source.toString()} to {target.toString()}")

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        try:
            yield
        except Py4JJavaError as error:
            raise PersistenceError(f"cannot {what} {self._path}: {error.java_exception.toString()}") from error
        except Py4JError as error:
            raise PersistenceError(f"cannot {what} {self._path}: {error}") from error
