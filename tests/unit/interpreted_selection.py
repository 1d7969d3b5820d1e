"""Run by test_selection.py with TRITON_INTERPRET=1, which Triton reads when it is imported: its kernels, on the CPU."""

from __future__ import annotations

import torch

from sparkdl_comm.compress import exact, triton_select


def vectors(count: int) -> dict[str, torch.Tensor]:
    gaussian = torch.randn(count)
    return {
        "gaussian": gaussian,
        "zero": torch.zeros(count),
        "few values": torch.randint(-2, 3, (count,)).float(),
        "denormal": gaussian * 1e-40,
        "every second element": torch.stack([gaussian, gaussian], dim=1)[:, 0],
        "not finite": torch.tensor([float("nan"), float("-inf"), 1.0, -2.0])[torch.randint(4, (count,))],
    }


def main() -> None:
    torch.manual_seed(0)
    triton_select.BLOCK = 1024
    cases = 0
    for count in (2, 3000):
        for name, drawn in vectors(count).items():
            for dtype in (torch.float32, torch.float16, torch.bfloat16):
                values = drawn.to(dtype)
                for k in {1, count // 100 + 1, count - 1}:
                    found, expected = triton_select.select(values, k), exact.select(values, k)
                    if not torch.equal(found, expected):
                        raise SystemExit(f"{name}, {dtype}, {k} of {count}: {found.tolist()}, not {expected.tolist()}")
                    cases += 1
    print(f"{cases} cases")


if __name__ == "__main__":
    main()
