"""Tables of fetched blocks."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.charts import Chart
from benchmarks.tables import MIB, PEER, Data, Line, Table, at_most, bar, beside, seconds, summary, with_theory


def fetch(data: Data) -> Iterator[Line]:
    conversions = [(f"{wire} {way}", "memcpy") for wire in ("bf16", "fp16") for way in ("encode", "decode")]
    fetches = [("fetch", "fetchBlockSync"), ("notice", "fetchBlockSync"), ("at once", "in turn")]
    pairs = [*fetches, ("same host", "memcpy"), *conversions]
    for way, rival in pairs:
        for ours, other in data.pairs("fetch", {way: [rival]}, "case", "bytes", "world"):
            about = f"`{way}`, {_size(ours.bytes)} from {ours.case}, {ours.world} executors"
            yield about, f"`{rival}`: {seconds(other)}", seconds(ours), beside(ours, other)


def fetch_windows(data: Data, name: str) -> Iterator[Line]:
    """Yield the adaptive window beside the fastest fixed window, on each link."""
    for ours in data.rows(name, algorithm="own"):
        beside_it = data.rows(name, rate_mbit=ours.rate_mbit, bytes=ours.bytes)
        best = min((row for row in beside_it if row.algorithm != "own"), key=lambda row: row.seconds)
        window = int(best.algorithm.removeprefix("fixed ")) / 1024
        link = f"{ours.rate_mbit:g} Mbit/s" if ours.rate_mbit else "loopback"
        about = f"{link}, {ours.bytes / MIB:.3g} MiB from {ours.case}"
        verdict = at_most(ours.seconds / best.seconds, 1.03)
        yield about, f"{window:g} KiB: {with_theory(best)}", with_theory(ours), verdict


def _size(nbytes: int) -> str:
    return f"{nbytes / MIB:g} MiB" if nbytes >= MIB else f"{nbytes / 1024:g} KiB"


def chart(data: Data) -> Chart:
    """Return fetches of one block beside `fetchBlockSync`, by size and number of executors."""
    groups = []
    for rival in data.rows("fetch", algorithm="fetchBlockSync"):
        rows = data.rows("fetch", case=rival.case, bytes=rival.bytes, world=rival.world)
        bars = [
            bar(row, unit=rival.seconds)
            for way in ("fetchBlockSync", "fetch", "notice")
            for row in rows
            if row.algorithm == way
        ]
        groups.append((f"{_size(rival.bytes)}, {rival.world} executors", bars))
    return Chart("Time of one block, in units of the median of fetchBlockSync", "x", groups)


TABLES = {
    "fetch": Table(PEER, fetch),
    "fetch_windows": Table(
        ("link", "the fastest fixed window", "ours", "verdict"),
        fetch_windows,
        ("fetch-windows", "fetch-windows-loopback"),
    ),
}
TABLES["fetch_summary"] = summary(
    TABLES,
    [
        ("", "fetch", "`fetch`, 64 KiB", ""),
        ("", "fetch", "`fetch`, 16 MiB from 1 server, 4", ""),
        ("", "fetch", "`fetch`, 64 MiB", ""),
        ("", "fetch", "`notice`, 64 KiB", ""),
        ("", "fetch", "`at once`, 192 MiB", ""),
        ("", "fetch", "`same host`, 64 MiB from 1 server, 4", ""),
        ("", "fetch", "`bf16 encode`, 64 MiB from 1 server, 4", ""),
        ("window, ", "fetch_windows", "200 Mbit/s", ""),
        ("window, ", "fetch_windows", "loopback, 192 MiB", ""),
    ],
)
