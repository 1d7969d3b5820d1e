"""Batches of layers that a fit kept, as rows of results record them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def record(plans: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return fields for a row, from the entry ``batching`` of a fit's summary. A field maps directions or policies.

    - By direction: number of ``batches``, what was ``kept``, and the ``outcome`` of the plan.
    - By policy that was tried: seconds of an iteration, ``tried``, and as predicted, ``tried_predicted``.
    """
    tried = next((plan["tried"] for plan in plans.values() if "tried" in plan), {})
    return {
        "batches": {name: len(plan["batches"]) for name, plan in plans.items()},
        "kept": {name: plan["kept"] for name, plan in plans.items()},
        "outcome": {name: plan["outcome"] for name, plan in plans.items()},
        "tried": {name: each["seconds"] for name, each in tried.items()},
        "tried_predicted": {name: each["predicted_iteration_seconds"] for name, each in tried.items()},
    }
