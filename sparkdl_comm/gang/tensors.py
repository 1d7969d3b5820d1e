"""Tensors as a header and raw bytes: no pickle, no copy of what is contiguous on the CPU already.

Header: ``{"tensors": [{"name", "dtype", "shape"}, ...], "bytes": total}``; then the elements of each tensor in
that order, row by row, in the machine's own byte order (little-endian on all that torch runs on), without
gaps.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from sparkdl_comm.errors import GangError, ModelError, ProtocolError

#: Seconds that each piece (8 MiB) of the tensors may take: no deadline for the whole would fit models of all
#: sizes.
STALL_SECONDS = 60.0
#: Bytes of the header's JSON; about 100,000 tensors.
MAX_HEADER = 16 << 20
MAX_NAME = 1024
MAX_DIMS = 64
_PIECE = 8 << 20

#: What may be sent, by name.
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


def describe(tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """The header of ``tensors``.

    :raises ModelError: a tensor has no plain bytes (sparse, quantized, meta).
    """
    if sys.byteorder != "little":
        raise ModelError("tensors travel in little-endian byte order, which this machine has not")
    entries = []
    for name, tensor in tensors.items():
        plain = tensor.layout is torch.strided and not tensor.is_quantized and tensor.device.type != "meta"
        if not plain or tensor.dtype not in _NAMES:
            raise ModelError(f"tensor {name!r} cannot be sent: {tensor.dtype}, {tensor.layout}, on {tensor.device}")
        if len(name) > MAX_NAME or tensor.dim() > MAX_DIMS:
            raise ModelError(f"tensor {name[:80]!r}... has too long a name, or over {MAX_DIMS} dimensions")
        entries.append({"name": name, "dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape)})
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    return {"tensors": entries, "bytes": total}


def allocate(header: Mapping[str, Any], max_bytes: int) -> dict[str, torch.Tensor]:
    """Uninitialised CPU tensors as ``header`` says; it is checked completely before the first is allocated.

    :raises ProtocolError: names, dtypes, shapes or sizes are wrong or do not fit together.
    :raises GangError: they take more than ``max_bytes``.
    """
    entries, total = header.get("tensors"), header.get("bytes")
    if not isinstance(entries, list) or type(total) is not int:
        raise ProtocolError("tensor header without a list of tensors or a total")
    plan: dict[str, tuple[torch.dtype, list[int]]] = {}
    expected = 0
    for entry in entries:
        if not isinstance(entry, dict):
            raise ProtocolError("tensor header: an entry is no object")
        name, dtype, shape = entry.get("name"), entry.get("dtype"), entry.get("shape")
        if not isinstance(name, str) or len(name) > MAX_NAME or name in plan:
            raise ProtocolError(f"tensor header: name {name!r:.80} is wrong, too long or there twice")
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise ProtocolError(f"tensor header: {name!r:.80} has unknown dtype {dtype!r:.40}")
        if not isinstance(shape, list) or len(shape) > MAX_DIMS:
            raise ProtocolError(f"tensor header: {name!r:.80} has no shape")
        # torch multiplies the non-zero dimensions up too, so a huge one next to a 0 would overflow there.
        if not all(type(n) is int and n >= 0 for n in shape) or math.prod(n or 1 for n in shape) > 1 << 60:
            raise ProtocolError(f"tensor header: {name!r:.80} has shape {shape!r:.80}")
        plan[name] = DTYPES[dtype], shape
        expected += math.prod(shape) * DTYPES[dtype].itemsize
    if expected != total:
        raise ProtocolError(f"tensor header: shapes make {expected} bytes, the total says {total}")
    if total > max_bytes:
        raise GangError(f"tensor header announces {total} bytes: more than the {max_bytes} there is room for")
    return {name: torch.empty(shape, dtype=dtype) for name, (dtype, shape) in plan.items()}


def raw(tensor: torch.Tensor) -> memoryview:
    """The bytes of ``tensor``, writable: a view of it if it is contiguous on the CPU, else of a copy."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    # numpy lacks some dtypes, and a 0-dim tensor cannot be viewed as bytes; a flat one of bytes has neither
    # problem.
    return plain.reshape(-1).view(torch.uint8).numpy().data


def pieces(view: memoryview) -> Iterator[memoryview]:
    """``view`` in parts of 8 MiB: each has a deadline of its own, whatever the size of the whole."""
    return (view[start : start + _PIECE] for start in range(0, len(view), _PIECE))
