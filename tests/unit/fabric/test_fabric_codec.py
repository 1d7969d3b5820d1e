"""Messages between daemons and scheduler survive the way through JSON."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl_comm.errors import ProtocolError
from sparkdl_comm.fabric.control import decode, encode
from sparkdl_comm.fabric.protocol import End, Expect, Flow, Message, Rates, Register

KINDS = get_args(Message)
numbers = st.integers(-(2**62), 2**62)
floats = st.floats(allow_nan=False)
rails = st.lists(st.tuples(st.text(max_size=9), st.integers(0, 65535)), max_size=3)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "int": numbers,
    "float": floats,
    "str": st.text(max_size=20),
    "bool": st.booleans(),
    "dict[str, Any]": st.dictionaries(st.text(max_size=5), floats, max_size=3),
    "list[int]": st.lists(numbers, max_size=4),
    "RailAddresses": rails,
    "list[Flow]": st.lists(st.builds(Flow, numbers, floats, numbers, floats, numbers, floats), max_size=3),
    "list[tuple[float, float, float]]": st.lists(st.tuples(floats, floats, floats), max_size=3),
}


def drawn(kind: type) -> st.SearchStrategy[Any]:
    fields = kind.__dataclass_fields__.values()
    return st.builds(kind, **{field.name: FIELDS[field.type] for field in fields})


@given(st.one_of(*map(drawn, KINDS)))
def test_comes_out_as_it_was(message: Message) -> None:
    travelled = decode(json.loads(json.dumps(encode(message))))
    # JSON has lists for tuples; the daemon makes what it needs of slices.
    plain = json.loads(json.dumps(encode(message)))
    assert json.loads(json.dumps(encode(travelled))) == plain
    if not hasattr(message, "slices"):
        assert travelled == message


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"message": "Nothing"},
        {"message": ["End"]},
        {"message": "End"},
        {"message": "End", "why": 3},
        {"message": "End", "because": "x"},
        {"message": "Fence", "number": 1},
        {**encode(Expect(1, 2)), "transfer": "1"},
        {**encode(Rates(0.1, 1, 2, 0.0, [])), "flows": [{"transfer": 1}]},
        {**encode(Register("worker", 1, "h", [], {})), "rails": [["127.0.0.1"]]},
        {**encode(Register("worker", 1, "h", [], {})), "rails": "127.0.0.1"},
    ],
)
def test_refuses_what_is_no_message(value: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="(unknown|malformed) fabric message"):
        decode(value)
    assert decode(encode(End())) == End()
