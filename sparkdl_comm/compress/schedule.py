"""Schedule of compression: which steps are sparse, and their density."""

from __future__ import annotations

from sparkdl_comm.conf import Schedule

#: Factor by which the density falls at each stage of a warm-up, as in Deep Gradient Compression (Lin et al. 2018).
_DENSITY_FACTOR = 4


def density_at(schedule: Schedule, density: float, step: int, epoch: int) -> float | None:
    """Return the density of a step; None if it is dense.

    The first ``schedule.warmup`` sparse steps are a warm-up with the densities 1/4, 1/16, ... that exceed ``density``.
    Each of them has equally many steps.

    :param density: density after the warm-up.
    :param step: number of the step, from 1, over all epochs.
    :param epoch: number of the epoch, from 1.
    """
    if not (schedule.steps[0] <= step <= schedule.steps[1] and schedule.epochs[0] <= epoch <= schedule.epochs[1]):
        return None
    stages: list[float] = []
    while (stage := _DENSITY_FACTOR ** -(len(stages) + 1.0)) > density:
        stages.append(stage)
    steps_before = step - int(schedule.steps[0])
    number = steps_before * len(stages) // schedule.warmup if schedule.warmup else len(stages)
    return stages[number] if number < len(stages) else density
