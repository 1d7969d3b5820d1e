"""Base class of strategies in which ranks do not share their steps: the model has versions and updates."""

from __future__ import annotations

from abc import abstractmethod

from sparkdl_comm.strategies.base import Strategy


class AsynchronousStrategy(Strategy):
    """Strategy in which a rank computes with one version of the model and its update goes into a later version.

    The order of the calls is that of :class:`Strategy`. In addition, ``settle`` may be called after any ``update``. All ranks
    must have settled before ``finish`` is called or a checkpoint is written.
    """

    is_synchronous = False
    needs_global_mean = False

    #: Number of updates in the model that :meth:`before_forward` received last.
    version = 0
    #: True if updates may be dropped and ranks may make different numbers of them; an epoch is then a number of updates of the
    #: model. False: every rank makes the same number in an epoch.
    free_running = True

    def begin_step(self) -> None:
        """Do nothing: the loop calls :meth:`before_forward` itself, as it needs the version before a step begins."""

    @abstractmethod
    def settle(self) -> None:
        """Wait until this rank's last update is accepted or dropped."""
