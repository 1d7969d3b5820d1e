"""Conversion of the fabric's messages to JSON objects and back. Decoding checks every field."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

from sparkdl_comm.errors import ProtocolError
from sparkdl_comm.fabric.protocol import Flow, Message

_MESSAGE_TYPES: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Message)}
#: Python types that JSON gives for each annotated field type.
_JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "int": int,
    "bool": bool,
    "float": (int, float),
    "str": str,
    "dict[str, Any]": dict,
    **dict.fromkeys(("RailAddresses", "list[int]", "list[Flow]", "list[tuple[float, float, float]]"), list),
}


def encode(message: Message) -> dict[str, Any]:
    return {"message": type(message).__name__, **dataclasses.asdict(message)}


def decode(value: dict[str, Any]) -> Message:
    """Return the message that :func:`encode` turned into ``value``.

    :raises ProtocolError: ``value`` has an unknown message type, or a missing, unknown or mistyped field.
    """
    fields = dict(value)
    kind = _MESSAGE_TYPES.get(str(fields.pop("message", None)))
    if kind is None:
        raise ProtocolError(f"unknown fabric message {value.get('message')!r:.40}")
    try:
        for field_ in dataclasses.fields(kind):
            if field_.name in fields and not isinstance(fields[field_.name], _JSON_TYPES[str(field_.type)]):
                raise TypeError(f"{field_.name} is {fields[field_.name]!r:.40}, not {field_.type}")
        if "rails" in fields:
            fields["rails"] = [(str(address), int(port)) for address, port in fields["rails"]]
        if "flows" in fields:
            fields["flows"] = [Flow(**flow) for flow in fields["flows"]]
        message: Message = kind(**fields)
    except (TypeError, ValueError) as exc:
        raise ProtocolError(f"malformed fabric message {kind.__name__}: {exc}") from exc
    return message
