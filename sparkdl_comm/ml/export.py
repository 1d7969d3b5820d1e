"""Export of a trained module to TorchScript or ONNX, which need neither its Python class nor Spark."""

from __future__ import annotations

import functools
import importlib.util
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from pyspark.sql import SparkSession

from sparkdl_comm.errors import ModelError, PersistenceError
from sparkdl_comm.ml.persistence import session_storage


def torchscript(module: torch.nn.Module, inputs: Sequence[torch.Tensor] | None, file: Path) -> None:
    """Write ``module`` as TorchScript to ``file``: compiled, or traced with ``inputs`` if they are given.

    :raises ModelError: torch cannot export it.
    """
    try:
        with torch.inference_mode():
            script = torch.jit.script(module) if inputs is None else torch.jit.trace(module, tuple(inputs))  # type: ignore[no-untyped-call]
    except Exception as error:  # the compiler and the module may raise anything
        way = "torch.jit.script" if inputs is None else "torch.jit.trace"
        other = "give an example of the input to trace it instead" if inputs is None else "is the example right?"
        raise ModelError(f"{way} cannot export {type(module).__name__}: {error}; {other}") from error
    torch.jit.save(script, str(file))


def onnx(
    module: torch.nn.Module, inputs: Sequence[torch.Tensor], names: Sequence[str], options: dict[str, Any], file: Path
) -> None:
    """Write ``module`` as ONNX for any number of rows to ``file``. Large weights go to a second file next to it.

    :param names: of the inputs.
    :param options: keyword arguments of ``torch.onnx.export``.
    :raises ModelError: a package is missing, or torch cannot export it.
    """
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise ModelError(f"export to ONNX needs {' and '.join(missing)}: pip install 'sparkdl_comm[onnx]'")
    # torch.export would take an example's single row for a fixed number of rows
    example = tuple(torch.cat([tensor, tensor]) if len(tensor) == 1 else tensor for tensor in inputs)
    rows = torch.export.Dim("rows")
    defaults = {"input_names": list(names), "dynamic_shapes": tuple({0: rows} for _ in example), "verbose": False}
    try:
        torch.onnx.export(module, example, str(file), dynamo=True, **{**defaults, **options})
    except Exception as error:  # the exporter and the module may raise anything
        raise ModelError(f"torch.onnx.export cannot export {type(module).__name__}: {error}") from error


def put(spark: SparkSession, path: str, write: Callable[[Path], None], overwrite: bool) -> None:
    """Let ``write`` write files to a local directory, and copy them to ``path``, any path that Spark can write.

    :raises PersistenceError: ``path`` exists and ``overwrite`` is false, or it cannot be written.
    """
    name = path.rpartition("/")[2]
    with tempfile.TemporaryDirectory(prefix="sparkdl-export-") as local, session_storage(spark) as storage:
        if not overwrite and storage.exists(path):
            raise PersistenceError(f"{path} already exists; to replace it, give overwrite=True")
        write(Path(local) / name)
        for file in sorted(Path(local).iterdir(), key=lambda file: file.name == name):  # the file at path comes last
            storage.replace(path.removesuffix(name) + file.name, functools.partial(shutil.move, file), overwrite=True)
