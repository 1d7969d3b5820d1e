"""What strategies have in common whose steps are not common to all ranks: the model has versions, and updates."""

from __future__ import annotations

from abc import abstractmethod

from sparkdl_comm.strategies.base import Strategy


class Asynchronous(Strategy):
    """A rank computes with a version of the model, and its update goes into a later one. The order of the calls is that of
    :class:`Strategy`; beside them, ``settle`` may be called after any ``update``. When all ranks have settled, ``finish`` is
    called, or what checkpoints need."""

    synchronous = False
    global_mean = False

    #: Of the model that :meth:`before_forward` brought last: how many updates are in it.
    version = 0
    #: Whether updates may be dropped, and ranks make different numbers of them, so that an epoch is so many updates of the
    #: model. False: every rank makes as many in an epoch.
    free_running = True
    #: What its updates are multiplied with. 1: each is a step of the optimizer.
    weight = 1.0

    def begin_step(self) -> None:
        """Nothing: the loop has called :meth:`before_forward`, as it has to know the version before it begins a step."""

    @abstractmethod
    def settle(self) -> None:
        """Returns when it is known what became of this rank's updates."""
