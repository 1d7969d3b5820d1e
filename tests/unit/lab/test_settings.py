"""Settings that a session has for a while."""

from types import SimpleNamespace

import pytest
from lab.settings import applied


class Conf(dict):
    def set(self, key: str, value: str) -> None:
        self[key] = value

    def unset(self, key: str) -> None:
        del self[key]


def test_what_was_set_before_is_back_afterwards_also_after_an_error() -> None:
    conf = Conf({"spark.sparkdl.comm.timeout": "2min"})
    session, inside = SimpleNamespace(conf=conf), {}

    def fails() -> None:
        inside.update(conf)
        raise LookupError

    with pytest.raises(LookupError), applied(session, {"timeout": "8s", "ps.wire": "bf16"}):  # type: ignore[arg-type]
        fails()
    assert inside == {"spark.sparkdl.comm.timeout": "8s", "spark.sparkdl.comm.ps.wire": "bf16"}
    with applied(session, {"master": "local"}, prefix="spark."):  # type: ignore[arg-type]
        assert conf["spark.master"] == "local"
    assert conf == {"spark.sparkdl.comm.timeout": "2min"}
