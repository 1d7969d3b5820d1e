"""MLfabric: asynchronous training in which a scheduler orders, aggregates and replicates updates to suit the network.

Raajay Viswanathan and Aditya Akella, "Network-accelerated Distributed Machine Learning Using MLfabric", VLDB 2020.

``api.py`` is the paper's API: a rank registers in a role and gets an object with that role's operations. Inside a
function that CommDistributor runs, registration is a function of this package::

    from sparkdl_comm import fabric

    def train():
        params = fabric.FabricParams("async:30")
        if Communicator.current().rank == 0:
            fabric.register_as_server(params, model).serve()
        else:
            worker = fabric.register_as_worker(params)
            version = worker.get(0, model)
            worker.push(0, update).wait()

``core/`` is the scheduler as pure code: events in, decisions out. ``params.py`` holds the settings of a job.

Every node has a daemon (``daemon.py``) that carries out the scheduler's orders. It talks to the scheduler over a
control link (``protocol.py``, ``control.py``). It sends (``sender.py``) and receives (``transport.py``) data over the
rails, and reports what its links carry (``monitor.py``). The node's role decides how it uses the data: ``worker.py``,
``server.py``, or the aggregator of ``roles.py``. A node runs inside a rank's process or in one that the rank starts
(``process.py``).

At rank 0, ``service.py`` listens to all daemons. The servers' model and every all-reduce have a session each
(``session.py``): the core decides, and the session turns decisions into messages. ``bandwidth.py`` estimates the
links' rates from all reports.

Losing a rank or process does not end the gang. Three losses do: rank 0, a server without replica, and the root of an
all-reduce under way. A node counts as lost when its daemon's connection breaks. When a transfer cannot be sent, the
receiver counts as lost, because nobody can tell which end failed. Transfers of a lost node may have arrived without
the scheduler's knowledge. So the scheduler asks the receivers before the core decides how the others
go on.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkdl_comm.fabric.api import (
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
    # Imported on first use, because an aggregator's process needs neither these names nor torch.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(".params" if name == "FabricParams" else ".api", __name__), name)
