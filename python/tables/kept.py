"""What a fit with ``ps.batching=ibatch`` kept of what it tried: its plan, or cuts that need no profile."""

from __future__ import annotations

from collections.abc import Mapping

from lab.results import Row

#: As Autotuner.scala: a smaller share of time is chance, and then the fewest batches stay.
CHANCE = 0.02


def kept(row: Row, layers: int | None = None) -> str:
    """What was kept, as in "plan, 7 pulls, 5 pushes", ``parts:24`` or ``layerwise``.

    Newer results record it. Of older ones it follows from how many batches there were, and from the times of what was
    tried. Where it does not follow, the cell says that it was not recorded.

    :param layers: of the network, if known.
    """
    if recorded := row.extra.get("kept"):
        pull, push = recorded["pull"], recorded["push"]
        if pull == push:
            return f"`{pull}`"
        return f"{pull}, {push.removeprefix('plan, ')}" if push.startswith("plan") else f"{pull}; pushes {push}"
    batches = row.extra.get("batches")
    if not batches:
        return "not recorded"
    pulls, pushes, tried = batches["pull"], batches["push"], row.extra.get("tried")
    counts = f"{pulls} {'pull' if pulls == 1 else 'pulls'}, {pushes} {'push' if pushes == 1 else 'pushes'}"
    if pulls == pushes == 1:
        return "`whole`"
    if tried is None:
        return f"{counts}, whose policy was not recorded"
    if pulls == pushes == layers and "layerwise" in tried:
        return "`layerwise`"
    counts += _one_each(tried)
    parts = next((name for name in tried if name.startswith("parts:")), None)
    if parts is None:
        return f"plan, {counts}"
    others = min(seconds for name, seconds in tried.items() if name != parts)
    if tried[parts] < (1 - CHANCE) * others:
        return f"`{parts}`"
    return f"plan, {counts}" if others < (1 - CHANCE) * tried[parts] else f"plan or `{parts}`, {counts}"


def _one_each(tried: Mapping[str, float]) -> str:
    """`layerwise` is tried unless the plan is the same."""
    return ", one per layer" if "ibatch" in tried and "layerwise" not in tried else ""


def tried(row: Row) -> str:
    """What was tried, seconds of an iteration; and what was predicted of each, where that was recorded."""
    predicted = row.extra.get("tried_predicted", {})

    def one(name: str, seconds: float) -> str:
        what = f"the plan{_one_each(row.extra['tried'])}:" if name == "ibatch" else f"`{name}`"
        return f"{what} {seconds:.3g} s" + (f" ({predicted[name]:.3g} s predicted)" if name in predicted else "")

    return "; ".join(one(name, seconds) for name, seconds in row.extra["tried"].items())
