"""Python values as named tensors, to send or store them without pickle. ``pack`` converts a value, ``unpack`` restores
it.

The tree of dicts, lists and tuples is JSON, in the tensor named ``tree``. Each tensor and array in it is a separate
tensor, named by a number. A node of the tree is one of

    null, true, 1, 1.5, "text"                              itself
    {"bytes": "<base64>"}  {"list": [...]}  {"tuple": [...]}  {"dict": [[key, value], ...]}
    {"tensor": "0"}  {"array": "1"}
"""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import torch

from sparkdl_comm.errors import InputError

_TREE = "tree"
_SEQUENCES: dict[str, type[list[Any]] | type[tuple[Any, ...]]] = {"list": list, "tuple": tuple}
_MAX_DEPTH = 100


def pack(value: Any) -> dict[str, torch.Tensor]:
    """Return ``value`` as tensors by name.

    It accepts None, bool, int, float, str, bytes, torch tensors, numpy arrays and numbers, and dicts, lists and tuples
    of these. A numpy number becomes a Python number. An instance of a subclass becomes one of the base class.

    :raises InputError: ``value`` contains something else; says where.
    """
    tensors: dict[str, torch.Tensor] = {}
    tree = json.dumps(_encode(value, tensors, "", _MAX_DEPTH)).encode()
    tensors[_TREE] = torch.frombuffer(bytearray(tree), dtype=torch.uint8)
    return tensors


def unpack(tensors: dict[str, torch.Tensor]) -> Any:
    """Return the value that ``pack`` converted, on the CPU.

    :raises InputError: :func:`pack` did not make these tensors.
    """
    try:
        return _decode(json.loads(bytes(tensors[_TREE].numpy())), tensors)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as exc:
        raise InputError(f"not a packed value: {exc!r}") from exc


def _encode(value: Any, tensors: dict[str, torch.Tensor], where: str, depth: int) -> Any:
    if depth == 0:
        raise InputError(f"value{where[:200]}: nested more than {_MAX_DEPTH} deep, or inside itself")
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, torch.Tensor):
        return {"tensor": _add(tensors, value.detach())}
    if isinstance(value, np.ndarray):
        try:
            return {"array": _add(tensors, torch.from_numpy(np.ascontiguousarray(value).reshape(value.shape)))}
        except (TypeError, ValueError) as exc:
            raise InputError(f"value{where}: an array of dtype {value.dtype} cannot be sent: {exc}") from exc
    if isinstance(value, dict):
        return {
            "dict": [
                [
                    _encode(key, tensors, f"{where} (a key)", depth - 1),
                    _encode(item, tensors, f"{where}[{key!r:.80}]", depth - 1),
                ]
                for key, item in value.items()
            ]
        }
    for name, kind in _SEQUENCES.items():
        if isinstance(value, kind):
            return {name: [_encode(item, tensors, f"{where}[{i}]", depth - 1) for i, item in enumerate(value)]}
    is_module = isinstance(value, torch.nn.Module)
    hint = "Return its state_dict()" if is_module else "Convert it to these, or save it to a file and return the path"
    raise InputError(
        f"value{where} is {type(value).__module__}.{type(value).__qualname__}. Only numbers, text, bytes, tensors, arrays"
        f" and dicts, lists and tuples of these can be sent, as nothing is unpickled from the network. {hint}"
    )


def _add(tensors: dict[str, torch.Tensor], tensor: torch.Tensor) -> str:
    name = str(len(tensors))
    tensors[name] = tensor
    return name


def _decode(node: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if not isinstance(node, dict):
        return node
    ((kind, content),) = node.items()
    if kind == "bytes":
        return base64.b64decode(content, validate=True)
    if kind == "tensor":
        return tensors[content]
    if kind == "array":
        return tensors[content].numpy()
    if kind == "dict":
        return {_decode(key, tensors): _decode(value, tensors) for key, value in content}
    return _SEQUENCES[kind](_decode(item, tensors) for item in content)
