"""MLfabric: asynchronous training whose transfers a scheduler orders, aggregates and replicates by what the network can carry.

Raajay Viswanathan and Aditya Akella, "Network-accelerated Distributed Machine Learning Using MLfabric", VLDB 2020.

``core/`` is the scheduler as pure code: events in, decisions out. ``roles.py`` is the paper's API: what a rank registers as,
and can do then; ``current.py`` is the same inside of a function that CommDistributor runs, as names of this package::

    from sparkdl_comm import fabric

    def train():
        params = fabric.FabricParams("async:30")
        if Communicator.current().rank == 0:
            fabric.register_as_server(params, model).serve()
        else:
            worker = fabric.register_as_worker(params)
            version = worker.get(0, model)
            worker.push(0, update).wait()

Between the two, a ``daemon.py`` at each node does what the scheduler orders (``protocol.py``, ``codec.py``,
``control_link.py``): it sends (``sender.py``, paced by ``pacing.py``) and receives (``receiver.py``) messages
(``message.py``) over the rails (``wires.py``). What a node makes of them is its ``part.py``: ``worker.py``, ``server.py`` with
the model of ``momentum.py``, or ``aggregator.py``; in the process of a rank, or beside it (``node_process.py``).
``monitor.py`` reads ``counters.py`` and reports.

At rank 0, ``service.py`` hears all daemons (``reception.py``). For the servers' model, and for each all-reduce, there is a
``course.py``: the core decides, and ``dispatch.py`` makes orders of it. ``directory.py`` knows who is which node, and
``bandwidth.py`` works out of all reports (``watch.py``) what links can carry.

A rank or process that is lost is not the gang's end, unless it is rank 0, a server without replica, or the root of an
all-reduce that is under way. Its daemon's connection breaks, or somebody cannot send to it: whose fault that is nobody can
tell, and it is taken for the receiver's. What it sent may have arrived without the scheduler's knowing, so receivers are asked
(``fences.py``) before the core decides how the others go on.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkdl_comm.fabric.current import (
        register_as_replica,
        register_as_scheduler,
        register_as_server,
        register_as_worker,
    )
    from sparkdl_comm.fabric.params import FabricParams

__all__ = [
    "FabricParams",
    "register_as_replica",
    "register_as_scheduler",
    "register_as_server",
    "register_as_worker",
]


def __getattr__(name: str) -> Any:
    # When first used: an aggregator's process needs none of them, and no torch.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(".params" if name == "FabricParams" else ".current", __name__), name)
