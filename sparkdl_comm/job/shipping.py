"""Values shipped to executors with a clear error if an executor lacks one of the user's modules."""

from __future__ import annotations

import pickletools
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark import cloudpickle

from sparkdl_comm.errors import ModelError


@dataclass(frozen=True)
class ShippedValue:
    """Value that unpickles to itself on executors.

    ``pickled``: the value, pickled by cloudpickle, which also handles a class from a notebook. If an executor lacks a
    module that the value needs, it raises the ModelError of :func:`missing_module_error`.
    """

    pickled: bytes = field(repr=False)

    @classmethod
    def of(cls, value: Any) -> ShippedValue:
        return cls(cloudpickle.dumps(value))

    def __reduce__(self) -> tuple[Any, ...]:
        texts = {text for _, text, _ in pickletools.genops(self.pickled) if isinstance(text, str)}
        files = _module_files({name.partition(".")[0] for name in texts if name in sys.modules})
        return _load, (self.pickled, files)


def _load(pickled: bytes, files: Mapping[str, str]) -> Any:
    try:
        return cloudpickle.loads(pickled)
    except ModuleNotFoundError as error:
        raise missing_module_error(str(error), files) from None


def missing_module_error(message: str, files: Mapping[str, str] | None = None) -> ModelError:
    """Return the error for a Python module of the user that executors lack. It says how to provide the module.

    :param message: of the ModuleNotFoundError on the executor.
    :param files: paths of top-level modules on the driver. None: this process is the driver.
    """
    match = re.search(r"No module named '([^']*)'", message)
    name = match[1] if match else ""
    top = name.partition(".")[0]
    file = Path((_module_files({top}) if files is None else files).get(top) or f"{top}.py")
    source = f"a zip of {file.parent}" if file.name == "__init__.py" else str(file)
    return ModelError(
        f"executors have no module {name!r}, which the model, function or another argument needs. Give them {source}, by"
        " spark.sparkContext.addPyFile(path) beforehand, spark-submit --py-files, or on Spark Connect"
        " spark.addArtifacts(path, pyfile=True). Install a library on executors instead"
    )


def _module_files(names: Iterable[str]) -> dict[str, str]:
    """Return the files of the loaded top-level modules ``names``. Modules without a file are left out."""
    found = {name: getattr(sys.modules.get(name), "__file__", None) for name in names}
    return {name: file for name, file in found.items() if file}
