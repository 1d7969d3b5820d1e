"""Tensors as a header and raw bytes, without pickle. Tensors that are contiguous on the CPU are not copied.

Header: ``{"tensors": [{"name", "dtype", "shape"}, ...], "bytes": total}``. Then the elements of each tensor in that
order, row by row, without gaps, in little-endian byte order.

:func:`pack_value` converts a Python value to named tensors, and :func:`unpack_value` restores it. The tree of dicts,
lists and tuples is JSON, in the tensor named ``tree``. Each tensor and array in it is a separate tensor, named by a
number. A node of the tree is one of

    null, true, 1, 1.5, "text"                              itself
    {"bytes": "<base64>"}  {"list": [...]}  {"tuple": [...]}  {"dict": [[key, value], ...]}
    {"tensor": "0"}  {"array": "1"}
"""

from __future__ import annotations

import base64
import json
import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from sparkdl_comm.errors import GangError, InputError, ModelError, ProtocolError

#: Seconds that each piece (8 MiB) may take. A deadline for the whole transfer would not fit models of all sizes.
STALL_SECONDS = 60.0
#: Maximum bytes of the header's JSON: enough for about 100,000 tensors.
MAX_HEADER = 16 << 20
MAX_NAME = 1024
MAX_DIMS = 64
_PIECE = 8 << 20

#: Dtypes that may be sent, by name.
DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex128, torch.complex64),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.bool),
        *(torch.uint64, torch.uint32, torch.uint16, torch.uint8),
        *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz),
    )
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor consists of plain bytes, of a type that may be sent: not sparse, quantized, meta or lazy."""
    has_values = tensor.device.type != "meta" and not is_lazy(tensor)
    is_dense = tensor.layout is torch.strided and not tensor.is_quantized
    return has_values and is_dense and tensor.dtype in _NAMES


def describe(tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Return the header of ``tensors``.

    :raises ModelError: a tensor cannot be sent, or its name is too long.
    """
    if sys.byteorder != "little":
        raise ModelError("this machine's byte order is not little-endian, in which tensors are sent")
    entries = []
    for name, tensor in tensors.items():
        if not is_plain(tensor):
            raise ModelError(f"tensor {name!r} cannot be sent: {tensor.dtype}, {tensor.layout}, on {tensor.device}")
        if len(name) > MAX_NAME or tensor.dim() > MAX_DIMS:
            raise ModelError(f"tensor {name[:80]!r}... has too long a name, or over {MAX_DIMS} dimensions")
        entries.append({"name": name, "dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape)})
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    return {"tensors": entries, "bytes": total}


def allocate(header: Mapping[str, Any], max_bytes: int) -> dict[str, torch.Tensor]:
    """Return uninitialized CPU tensors for ``header``, which is checked completely before memory is allocated.

    :raises ProtocolError: names, dtypes, shapes or sizes are wrong or inconsistent.
    :raises GangError: the tensors take more than ``max_bytes``.
    """
    entries, total = header.get("tensors"), header.get("bytes")
    if not isinstance(entries, list) or type(total) is not int:
        raise ProtocolError("tensor header without a list of tensors or a total")
    plan: dict[str, tuple[torch.dtype, list[int]]] = {}
    expected = 0
    for entry in entries:
        if not isinstance(entry, dict):
            raise ProtocolError("tensor header: an entry is not an object")
        name, dtype, shape = entry.get("name"), entry.get("dtype"), entry.get("shape")
        if not isinstance(name, str) or len(name) > MAX_NAME or name in plan:
            raise ProtocolError(f"tensor header: name {name!r:.80} is wrong, too long or duplicate")
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise ProtocolError(f"tensor header: {name!r:.80} has unknown dtype {dtype!r:.40}")
        if not isinstance(shape, list) or len(shape) > MAX_DIMS:
            raise ProtocolError(f"tensor header: {name!r:.80} has no shape")
        # torch multiplies the non-zero dimensions, so a huge dimension next to a 0 would overflow there.
        if not all(type(n) is int and n >= 0 for n in shape) or math.prod(n or 1 for n in shape) > 1 << 60:
            raise ProtocolError(f"tensor header: {name!r:.80} has shape {shape!r:.80}")
        plan[name] = DTYPES[dtype], shape
        expected += math.prod(shape) * DTYPES[dtype].itemsize
    if expected != total:
        raise ProtocolError(f"tensor header: shapes make {expected} bytes, the total says {total}")
    if total > max_bytes:
        raise GangError(f"tensor header announces {total} bytes: there is room for at most {max_bytes}")
    return {name: torch.empty(shape, dtype=dtype) for name, (dtype, shape) in plan.items()}


def raw(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of ``tensor``, writable: a view if it is contiguous on the CPU, else a copy."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    # numpy lacks some dtypes, and a 0-dim tensor cannot be viewed as bytes. A flat view of bytes avoids both.
    return plain.reshape(-1).view(torch.uint8).numpy().data


def pieces(view: memoryview) -> Iterator[memoryview]:
    """Return ``view`` in pieces of 8 MiB. Each piece has its own deadline."""
    return (view[start : start + _PIECE] for start in range(0, len(view), _PIECE))


_TREE = "tree"
_SEQUENCES: dict[str, type[list[Any]] | type[tuple[Any, ...]]] = {"list": list, "tuple": tuple}
_MAX_DEPTH = 100


def pack_value(value: Any) -> dict[str, torch.Tensor]:
    """Return ``value`` as tensors by name.

    It accepts None, bool, int, float, str, bytes, torch tensors, numpy arrays and numbers, and dicts, lists and tuples
    of these. A numpy number becomes a Python number. An instance of a subclass becomes one of the base class.

    :raises InputError: ``value`` contains something else. The message says where.
    """
    tensors: dict[str, torch.Tensor] = {}
    tree = json.dumps(_encode(value, tensors, "", _MAX_DEPTH)).encode()
    tensors[_TREE] = torch.frombuffer(bytearray(tree), dtype=torch.uint8)
    return tensors


def unpack_value(tensors: dict[str, torch.Tensor]) -> Any:
    """Return the value that :func:`pack_value` converted, on the CPU.

    :raises InputError: :func:`pack_value` did not make these tensors.
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
