"""In which steps gradients are sparse, and how sparse."""

from __future__ import annotations

from sparkdl_comm.conf import Schedule

#: By what the density falls at each stage of a warm-up, from 1, as in Deep Gradient Compression (Lin et al. 2018).
_FALL = 4


def density_at(schedule: Schedule, density: float, step: int, epoch: int) -> float | None:
    """Of a step; None: it is dense.

    In a warm-up, of so many sparse steps, densities are 1/4, 1/16, ... as long as these are more than ``density``, for equally
    many steps each.

    :param density: after the warm-up.
    :param step: from 1, through all epochs; ``epoch``: from 1.
    """
    if not (schedule.steps[0] <= step <= schedule.steps[1] and schedule.epochs[0] <= epoch <= schedule.epochs[1]):
        return None
    stages: list[float] = []
    while (stage := _FALL ** -(len(stages) + 1.0)) > density:
        stages.append(stage)
    begun = step - int(schedule.steps[0])
    number = begun * len(stages) // schedule.warmup if schedule.warmup else len(stages)
    return stages[number] if number < len(stages) else density
