"""Values that are shipped to executors, which say what to give them where they lack a module of the user's."""

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
class Shipped:
    """Value that arrives at executors as itself. ``pickled``: the value, by cloudpickle, as a class from a notebook needs it.

    If executors lack a module that the value is from, they raise the ModelError of :func:`missing_module`.
    """

    pickled: bytes = field(repr=False)

    @classmethod
    def of(cls, value: Any) -> Shipped:
        return cls(cloudpickle.dumps(value))

    def __reduce__(self) -> tuple[Any, ...]:
        texts = {text for _, text, _ in pickletools.genops(self.pickled) if isinstance(text, str)}
        files = _files({name.partition(".")[0] for name in texts if name in sys.modules})
        return _loaded, (self.pickled, files)


def _loaded(pickled: bytes, files: Mapping[str, str]) -> Any:
    try:
        return cloudpickle.loads(pickled)
    except ModuleNotFoundError as error:
        raise missing_module(str(error), files) from None


def missing_module(message: str, files: Mapping[str, str] | None = None) -> ModelError:
    """Return the error that tells users how to give executors a Python module of theirs which is missing there.

    :param message: of the ModuleNotFoundError on the executor.
    :param files: of top-level modules on the driver; None: this is the driver.
    """
    match = re.search(r"No module named '([^']*)'", message)
    name = match[1] if match else ""
    top = name.partition(".")[0]
    file = Path((_files({top}) if files is None else files).get(top) or f"{top}.py")
    what = f"a zip of {file.parent}" if file.name == "__init__.py" else str(file)
    return ModelError(
        f"executors have no module {name!r}, which the model, function or another argument is from. Give them {what}:"
        " spark.sparkContext.addPyFile(path) beforehand, spark-submit --py-files, or on Spark Connect"
        " spark.addArtifacts(path, pyfile=True); a library is better installed there"
    )


def _files(names: Iterable[str]) -> dict[str, str]:
    """Return the files of top-level modules that are loaded here, of those that have one."""
    found = {name: getattr(sys.modules.get(name), "__file__", None) for name in names}
    return {name: file for name, file in found.items() if file}
