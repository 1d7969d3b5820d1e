"""Writes the golden files again: `python tests/golden/regenerate.py --yes`. Read the diff before you commit it.

bridge/request.bin   the bytes that a Python worker sends: one request
bridge/reply.bin     the bytes that the executor answers: one reply
bridge/operations.json   one request of each operation there is, and whether it is posted: gets no answer
wire/values.f32      float32 values: every class of number there is, and 4,096 random ones
wire/sparse.f32, wire/sparse.bin   a gradient, and the sparse block of it
wire/values.bf16, wire/values.fp16   the same values as torch rounds them, but that what is too small for fp16 is 0.0, never
                     -0.0; all little-endian
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch

from sparkdl_comm.jvm.bridge import POSTED, PROTOCOL, encode_frame

HERE = Path(__file__).parent

REQUEST = {"op": "pull", "version": 4611686018427387904, "layers": [800, 32], "path": "/proc/1/fd/3", "é": "ü"}
REPLY = {"ok": False, "op": "push", "error": "PeerLost", "message": "rank 2 \u2192 gone", "peer": 2, "seconds": 0.25}
PEER = {
    "build": "0.1.0 (jar 0123456789ab)",
    "host": "a.example",
    "port": 40000,
    "executor": "3",
    "spare_host": 8589934592,
    "spare_executor": 9223372036854775807,
}
BATCHES = {"pull": [[1, 2], [3, 3]], "push": [[3, 3], [1, 2]]}
PROFILE = {"compute": [0.5, 0.25, 0], "startup": 0.001, "per_byte": 1e-9, "gap": None, "sum": 0.125, "update": 0.0}
OPERATIONS = [
    {"op": "hello", "protocol": PROTOCOL, "job": 2305843009213693953, "rank": 1},
    {
        "op": "open",
        "peers": [PEER],
        "layers": [800, 32, 7],
        "wire": "bf16",
        "density": 0.01,
        "can_pull_ahead": True,
        "shared": True,
        "batching": "paper",
        "push_batching": "fixed:4096",
        "profile_iterations": 10,
        "replan_drift": 0.25,
        "timeout": 60.5,
    },
    {"op": "attach", "path": "/proc/1/fd/3"},
    {"op": "measured", "forward": [0.5, 0.25, 0], "backward": None, "update": 0.125, "seconds": 0.5},
    {"op": "replan", "reports": [{"pull": PROFILE, "push": None, "seconds": 0.5}]},
    {"op": "batching"},
    {"op": "cut", **BATCHES},
    {"op": "publish", "version": 8, "batch": 2},
    {"op": "prefetch", "version": 8},
    {"op": "pull", "version": 7, "batch": 1},
    {"op": "push", "version": 7, "batch": 0},
    {"op": "collect", "version": 7, "batch": 0},
    {"op": "close"},
    {"op": "fs.put", "local": "/tmp/a", "remote": "hdfs://b/c"},
    {"op": "fs.get", "remote": "hdfs://b/c", "local": "/tmp/a"},
    {"op": "fs.list", "remote": "hdfs://b"},
    {"op": "fs.rename", "from": "hdfs://b/c", "to": "hdfs://b/d"},
    {"op": "fs.delete", "remote": "hdfs://b", "recursive": True},
    {"op": "fs.exists", "remote": "hdfs://b"},
]


def operations() -> bytes:
    assert {request["op"] for request in OPERATIONS} >= POSTED
    rows = [json.dumps({"posted": request["op"] in POSTED, "request": request}) for request in OPERATIONS]
    return ("[\n" + ",\n".join(rows) + "\n]\n").encode()


def values() -> torch.Tensor:
    limits = [0.0, -0.0, 1.0, -1.0, 65504.0, 65519.0, 65520.0, 65536.0, 3.3895e38, 3.4028e38, 1e-45, 1.1754e-38]
    halves = [
        2.0**-24,
        2.0**-25,
        2.0**-25 * 1.0001,
        2.0**-14,
        2.0**-15 * 1.5,
        6.1e-5,
        6.0e-5,
        1 + 2.0**-11,
        1 + 3 * 2.0**-11,
    ]
    ties = [1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-9, float("inf"), float("-inf")]
    random = torch.randn(4096, generator=torch.Generator().manual_seed(7)) * torch.logspace(-10, 5, 4096)
    return torch.cat([torch.tensor(limits + halves + ties), random])


def gradient() -> np.ndarray:
    """Of 70,000 elements, a few of them not zero, and parameters that nobody used."""
    elements = np.zeros(70_000, np.float32)
    elements[5::97] = np.arange(1, 723)
    elements[65_536] = -np.inf
    elements[[0, *range(300, 350), 69_999]] = -0.0
    return elements


def sparse_block(elements: np.ndarray) -> bytes:
    """As SparseEncoding.scala says."""
    chosen = np.flatnonzero(elements)
    counts = np.bincount(chosen >> 16, minlength=-(-len(elements) // (1 << 16)))
    unused = np.flatnonzero((elements == 0) & np.signbit(elements))
    begins = [n for n in unused if n - 1 not in unused]
    ends = [n + 1 for n in unused if n + 1 not in unused]
    runs = [number for begin, end in zip(begins, ends, strict=True) for number in (begin, end - begin)]
    head = np.array([len(chosen), len(begins), *runs, *counts], "<i4").tobytes()
    return head + elements[chosen].astype("<f4").tobytes() + (chosen & 0xFFFF).astype("<u2").tobytes()


def contents() -> dict[str, bytes]:
    floats = values()
    halves = floats.half()
    halves[(halves == 0) & (floats != 0)] = 0.0
    return {
        "bridge/request.bin": encode_frame(REQUEST),
        "bridge/reply.bin": encode_frame(REPLY),
        "bridge/operations.json": operations(),
        "wire/sparse.f32": gradient().astype("<f4").tobytes(),
        "wire/sparse.bin": sparse_block(gradient()),
        "wire/values.f32": floats.numpy().tobytes(),
        "wire/values.bf16": floats.bfloat16().view(torch.int16).numpy().tobytes(),
        "wire/values.fp16": halves.view(torch.int16).numpy().tobytes(),
    }


if __name__ == "__main__":
    if sys.argv[1:] != ["--yes"]:
        sys.exit(__doc__)
    for name, data in contents().items():
        (HERE / name).write_bytes(data)
