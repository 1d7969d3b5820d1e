"""One application for all faults; the seconds it took until each error are printed at the end."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.faults.application import Application

_measured: list[dict[str, Any]] = []
_resumed: list[dict[str, Any]] = []
_covered: Counter[str] = Counter()


@pytest.fixture(scope="session")
def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    """Leaves nothing behind when it ends, whatever its ranks went through."""
    started = Application(tmp_path_factory.mktemp("faults"))
    try:
        yield started
        assert started.stop() == []
    finally:
        _measured.extend(started.measured)
        started.kill()


@pytest.fixture(scope="session")
def resumed() -> list[dict[str, Any]]:
    """To be filled with a dict for each fault after which training went on; they are printed at the end."""
    return _resumed


@pytest.fixture(scope="session")
def covered() -> Counter[str]:
    """To be counted up with what a drawn case was and how it ended; printed at the end."""
    return _covered


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _covered:
        terminalreporter.section("faults: drawn cases by what they were")
    for name, count in sorted(_covered.items()):
        terminalreporter.write_line(f"{count:5} {name}")
    if _resumed:
        terminalreporter.section("faults: seconds until the first step again")
    for row in _resumed:
        terminalreporter.write_line(json.dumps(row))
    if not _measured:
        return
    terminalreporter.section("faults: seconds until …")
    line = "{:9} {:15} {:>4} {:9} {:>8} {:>7} {:>7} {:>7}  {}"
    terminalreporter.write_line(
        line.format("strategy", "fault", "rank", "phase", "error", "idle", "clean", "again", "error of rank")
    )

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.1f}"

    for row in _measured:
        terminalreporter.write_line(
            line.format(
                row["strategy"],
                row.get("action", "ragged"),
                row.get("rank", "-"),
                row.get("phase", "-"),
                number(row["to_error"]),
                number(row["idle_after"]),
                number(row["quiet_after"]),
                number(row["again"]),
                f"{row['error']} of rank {row['of_rank']}",
            )
        )
