"""Exports a trained module to a form that needs neither its Python class nor Spark: TorchScript or ONNX."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from pyspark.sql import SparkSession

from sparkdl_comm.errors import ModelError, PersistenceError
from sparkdl_comm.ml.storage import open_storage


def torchscript(module: torch.nn.Module, inputs: Sequence[torch.Tensor] | None, file: Path) -> None:
    """Compile ``module``, or record what it does with ``inputs``, to ``file``.

    :raises ModelError: that fails.
    """
    try:
        with torch.inference_mode():
            script = torch.jit.script(module) if inputs is None else torch.jit.trace(module, tuple(inputs))
    except Exception as error:  # whatever the compiler, or the module, raises
        way = "torch.jit.script" if inputs is None else "torch.jit.trace"
        other = "give an example of the input to record it instead" if inputs is None else "is the example right?"
        raise ModelError(f"{way} cannot export {type(module).__name__}: {error}; {other}") from error
    torch.jit.save(script, str(file))


def onnx(
    module: torch.nn.Module, inputs: Sequence[torch.Tensor], names: Sequence[str], options: dict[str, Any], file: Path
) -> None:
    """Export ``module`` to ``file``, and large weights beside it, for any number of rows.

    :param names: of the inputs. ``options``: for ``torch.onnx.export``.
    :raises ModelError: a package is missing, or torch cannot do it.
    """
    lacking = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if lacking:
        raise ModelError(f"export to ONNX needs {' and '.join(lacking)}: pip install 'sparkdl_comm[onnx]'")
    # from an example with one row torch.export concludes that there always is one
    example = tuple(torch.cat([one, one]) if len(one) == 1 else one for one in inputs)
    rows = torch.export.Dim("rows")
    chosen = {"input_names": list(names), "dynamic_shapes": tuple({0: rows} for _ in example), "verbose": False}
    try:
        torch.onnx.export(module, example, str(file), dynamo=True, **{**chosen, **options})
    except Exception as error:  # whatever the exporter, or the module, raises
        raise ModelError(f"torch.onnx.export cannot export {type(module).__name__}: {error}") from error


def put(spark: SparkSession, path: str, write: Callable[[Path], None], overwrite: bool) -> None:
    """Put the file that ``write`` writes, and what it writes beside it, at ``path``, any path that Spark can write.

    :raises PersistenceError: ``path`` exists and is not to be overwritten, or cannot be written.
    """
    folder, _, name = path.rpartition("/")
    if not overwrite and open_storage(spark, path).exists():
        raise PersistenceError(f"{path} already exists; to replace it, give overwrite=True")
    with tempfile.TemporaryDirectory(prefix="sparkdl-export-") as local:
        write(Path(local) / name)
        for file in sorted(Path(local).iterdir(), key=lambda file: file.name == name):  # the one at path comes last
            open_storage(spark, f"{folder}/{file.name}" if folder else file.name).put(file, replace=True)
