"""Values that travel without pickle."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch

from sparkdl_comm.errors import InputError
from sparkdl_comm.gang.tensors import pack_value, unpack_value


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -3,
        2**70,
        0.1,
        math.inf,
        "tëxt",
        b"\x00\xff",
        [],
        {},
        (1, [2, (3,)]),
        {"a": 1, 2: "b", (1, 2): None, "list": [1]},
        {"dict": [1], "tuple": 2},
    ],
)
def test_plain_values_come_back_with_their_types(value: Any) -> None:
    back = unpack_value(pack_value(value))
    assert back == value
    assert repr(back) == repr(value)


def test_tensors_and_arrays() -> None:
    module = torch.nn.Linear(3, 2)
    array = np.arange(6, dtype=np.int16).reshape(2, 3).T
    back = unpack_value(
        pack_value({"state": module.state_dict(), "array": array, "0-dim": np.array(2.5), "number": np.float32(0.5)})
    )
    assert isinstance(module.state_dict(), OrderedDict)
    assert list(back["state"]) == ["weight", "bias"]
    assert torch.equal(back["state"]["weight"], module.weight)
    assert not back["state"]["weight"].requires_grad
    assert back["array"].dtype == np.int16
    np.testing.assert_array_equal(back["array"], array)
    assert back["0-dim"].shape == ()
    assert back["0-dim"] == 2.5
    assert type(back["number"]) is float


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [1, {2}]}, r"value\['a'\]\[1\] is builtins\.set.*save it"),
        ([torch.nn.Linear(1, 1)], r"value\[0\] is torch\.nn\.modules\.linear\.Linear.*state_dict"),
        (np.array(["text"]), "dtype <U4"),
        (np.array([object()]), "dtype object"),
    ],
)
def test_what_cannot_be_sent_is_named(value: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        pack_value(value)


def test_a_value_inside_itself() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(InputError, match="inside itself"):
        pack_value(value)


@pytest.mark.parametrize(
    "text", ['{"tensor": "7"}', '{"object": []}', "{", '{"bytes": "?"}', '{"list": 1}', '{"dict": [[1]]}', "{}"]
)
def test_garbled(text: str) -> None:
    with pytest.raises(InputError):
        unpack_value({"tree": torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)})


def test_nothing() -> None:
    with pytest.raises(InputError):
        unpack_value({})
