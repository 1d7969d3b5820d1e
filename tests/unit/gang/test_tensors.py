from __future__ import annotations

import pytest
import torch

from sparkdl_comm.errors import GangError, ModelError, ProtocolError
from sparkdl_comm.gang.tensors import DTYPES, allocate, describe, pieces, raw


def test_pieces_cover_everything_once():
    view = memoryview(bytes(range(256)) * (70 << 10))  # 17.5 MiB
    parts = list(pieces(view))
    assert len(parts) == 3
    assert b"".join(parts) == view


def good() -> dict:
    return {"tensors": [{"name": "w", "dtype": "float32", "shape": [2, 3]}], "bytes": 24}


def entry(**changes) -> dict:
    return {"tensors": [{**good()["tensors"][0], **changes}], "bytes": 24}


WRONG_HEADERS = [
    {},
    {**good(), "bytes": 23},
    {**good(), "bytes": 24.0},
    {**good(), "tensors": {}},
    {**good(), "tensors": [1]},
    {"tensors": good()["tensors"] * 2, "bytes": 48},
    entry(name=None),
    entry(name="n" * 2000),
    entry(dtype="qint8"),
    entry(dtype=["float32"]),
    entry(dtype="__class__"),
    entry(shape=6),
    entry(shape=[-2, -3]),
    entry(shape=[2, 3.0]),
    entry(shape=[True, 6]),
    entry(shape=[1] * 100),
    {**entry(shape=[0, 1 << 62, 4]), "bytes": 0},
    {**entry(shape=[1 << 40]), "bytes": 4 << 40},
]


@pytest.mark.parametrize("header", WRONG_HEADERS)
def test_wrong_header_allocates_nothing(header, monkeypatch):
    assert allocate(good(), 24)["w"].shape == (2, 3)
    monkeypatch.setattr(torch, "empty", lambda *args, **more: pytest.fail("allocated"))
    with pytest.raises(GangError) as error:
        allocate(header, 1 << 30)
    assert isinstance(error.value, ProtocolError) or "there is room for" in str(error.value)


def test_room_is_checked_before_allocating():
    assert allocate(good(), 24)
    with pytest.raises(GangError, match="24 bytes"):
        allocate(good(), 23)


def test_header_and_bytes_make_the_same_tensors():
    torch.manual_seed(0)
    sent = {name: torch.randint(0, 2, (2, 3)).to(dtype) for name, dtype in DTYPES.items()}
    sent["scalar"] = torch.tensor(1.5).bfloat16()
    sent["empty"] = torch.empty(2, 0, 3)
    header = describe(sent)
    assert header["bytes"] == sum(len(raw(tensor)) for tensor in sent.values())
    got = allocate(header, header["bytes"])
    for name, tensor in got.items():
        raw(tensor)[:] = raw(sent[name])
        assert tensor.dtype == sent[name].dtype
        wide = torch.complex128 if tensor.is_complex() else torch.float64  # torch compares few of the narrow ones
        assert torch.equal(tensor.to(wide), sent[name].to(wide)), name


def test_raw_is_a_view_of_what_is_contiguous():
    tensor = torch.zeros(2, 2, dtype=torch.bfloat16)
    raw(tensor)[:2] = b"\x80\x3f"  # 1.0
    assert tensor[0, 0] == 1.0
    crooked = torch.zeros(2, 3).t()
    raw(crooked)[:] = bytes([1] * 24)
    assert torch.equal(crooked, torch.zeros(3, 2))


def test_names_that_are_too_long():
    with pytest.raises(ModelError):
        describe({"n" * 2000: torch.ones(1)})


@pytest.mark.parametrize(
    "tensor",
    [torch.eye(2).to_sparse(), torch.empty(2, device="meta"), torch.empty(2, dtype=torch.bits8)],
    ids=["sparse", "meta", "dtype"],
)
def test_tensors_without_plain_bytes(tensor):
    with pytest.raises(ModelError, match="'w'"):
        describe({"v": torch.ones(1), "w": tensor})
