"""Why a fit reads rows although it names a cache."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from sparkdl_comm.data.named_cache import NamedCache
from sparkdl_comm.job import cached_rows
from sparkdl_comm.job.task import RowsGoneError


@dataclass(frozen=True)
class Report:
    data: dict[str, Any]


@dataclass(frozen=True)
class Spec:
    conf: Any
    cache: NamedCache | None
    world: int = 1
    attempt_id: str = ""
    secret: bytes = b""


def reason(monkeypatch: pytest.MonkeyPatch, named: str, cache: NamedCache | None, gone: str = "") -> str:
    """Return the reason of a fit whose hosts lack the cache."""

    def run_once(rows: Any, spec: Any, on_progress: Any) -> Any:
        if spec.cache is not None and spec.cache.is_read:
            raise RowsGoneError(gone)
        return {}, [Report({"unkept": ""})]

    monkeypatch.setattr(cached_rows, "run_once", run_once)
    rows: Any = SimpleNamespace(
        sparkSession=SimpleNamespace(range=lambda *_: None), repartition=lambda *_: SimpleNamespace()
    )
    spec: Any = Spec(SimpleNamespace(data=SimpleNamespace(cache_name=named)), cache)
    _, (report,) = cached_rows.run_with_cache(rows, spec, lambda _: None)
    return str(report.data["why_read"])


def test_the_reason_names_the_hash_of_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = NamedCache("digits-8a1b", {}, is_read=True)
    incomplete = "the cache digits-8a1b is not complete on the hosts where the ranks ran"
    assert reason(monkeypatch, "digits-8a1b", cache) == incomplete
    assert reason(monkeypatch, "digits-{rows}", cache) == (
        f"{incomplete}. Its name has a hash of the rows: a fit whose cache has another hash had other rows"
    )
    broken = "the cache digits-8a1b cannot be used: task 0: no such device"
    assert reason(monkeypatch, "digits-{rows}", cache, "task 0: no such device") == broken
    assert reason(monkeypatch, "", None) == "spark.sparkdl.comm.data.cacheName is not set"
