"""Writes the golden files again: `python tests/golden/regenerate.py --yes`. Read the diff before you commit it.

bridge/request.bin   the bytes that a Python worker sends: one request
bridge/reply.bin     the bytes that the executor answers: one reply
wire/values.f32      float32 values: every class of number there is, and 4,096 random ones
wire/values.bf16, wire/values.fp16   the same values as torch rounds them, but that what is too small for fp16 is 0.0, never
                     -0.0; all little-endian
"""

import sys
from pathlib import Path

import torch

from sparkdl_comm.ps.bridge import encode_frame

HERE = Path(__file__).parent

REQUEST = {"op": "pull", "version": 4611686018427387904, "layers": [800, 32], "path": "/proc/1/fd/3", "é": "ü"}
REPLY = {"ok": False, "op": "push", "error": "PeerLost", "message": "rank 2 \u2192 gone", "peer": 2, "seconds": 0.25}


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


def contents() -> dict[str, bytes]:
    floats = values()
    halves = floats.half()
    halves[(halves == 0) & (floats != 0)] = 0.0
    return {
        "bridge/request.bin": encode_frame(REQUEST),
        "bridge/reply.bin": encode_frame(REPLY),
        "wire/values.f32": floats.numpy().tobytes(),
        "wire/values.bf16": floats.bfloat16().view(torch.int16).numpy().tobytes(),
        "wire/values.fp16": halves.view(torch.int16).numpy().tobytes(),
    }


if __name__ == "__main__":
    if sys.argv[1:] != ["--yes"]:
        sys.exit(__doc__)
    for name, data in contents().items():
        (HERE / name).write_bytes(data)
