"""Tables of blocks that are fetched."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.tables import MIB, PEER, Data, Line, Table, at_most, beside, seconds, with_theory


def fetch(data: Data) -> Iterator[Line]:
    conversions = [(f"{wire} {way}", "memcpy") for wire in ("bf16", "fp16") for way in ("encode", "decode")]
    fetches = [("fetch", "fetchBlockSync"), ("notice", "fetchBlockSync"), ("at once", "in turn")]
    pairs = [*fetches, ("same host", "memcpy"), *conversions]
    for way, rival in pairs:
        for ours in data.rows("fetch", algorithm=way):
            other = data.row("fetch", algorithm=rival, case=ours.case, bytes=ours.bytes, world=ours.world)
            if other:
                about = f"`{way}`, {ours.bytes / 1024:g} KiB from {ours.case}, {ours.world} executors"
                yield about, f"`{rival}`: {seconds(other)}", seconds(ours), beside(ours, other)


def fetch_windows(data: Data) -> Iterator[Line]:
    """On each link, the window that follows it beside the fastest of the fixed ones."""
    for name in ("fetch-windows", "fetch-windows-loopback"):
        for ours in data.rows(name, algorithm="own"):
            beside_it = data.rows(name, rate_mbit=ours.rate_mbit, bytes=ours.bytes)
            best = min((row for row in beside_it if row.algorithm != "own"), key=lambda row: row.seconds)
            window = int(best.algorithm.removeprefix("fixed ")) / 1024
            link = f"{ours.rate_mbit:g} Mbit/s" if ours.rate_mbit else "loopback"
            about = f"{link}, {ours.bytes / MIB:.3g} MiB from {ours.case}"
            verdict = at_most(ours.seconds / best.seconds, 1.03)
            yield about, f"{window:g} KiB: {with_theory(best)}", with_theory(ours), verdict


TABLES = {
    "fetch": Table(PEER, fetch),
    "fetch_windows": Table(("link", "the fastest fixed window", "ours", "verdict"), fetch_windows),
}
