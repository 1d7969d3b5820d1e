"""Strategy ``fabric``: asynchronous training with scheduled transfers and its own parameter server.

Every rank is a worker and starts its aggregators, each in a process of its own. Rank 0 also runs the scheduler and starts the
server's process. Rank 1 starts the replica's process, if there is a replica. A worker gets the model, computes a gradient,
lets the user's optimizer take a step from there, and pushes the change of the parameters (``-lr * gradient`` with plain SGD).
The server adds the updates to the model, with momentum. See :mod:`sparkdl_comm.fabric`.

An optimizer with state, such as Adam, has separate state on each worker. Checkpoints contain the state of all workers, and the
server's last step for its momentum. If the replica has taken over, momentum restarts from zero when training resumes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sparkdl_comm.collectives.work import Work
from sparkdl_comm.conf import PREFIX, CommConf
from sparkdl_comm.errors import ConfError, GangError, ModelError, NonFiniteLossError
from sparkdl_comm.fabric.api import Fabric
from sparkdl_comm.fabric.params import FabricParams
from sparkdl_comm.fabric.worker import PushOutcome, Worker
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.optim.optimizer import OptimizerMaker
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.strategies.base import AsynchronousStrategy

#: Ranks that start the server and its replica.
_SERVER_RANK, _REPLICA_RANK = 0, 1
#: Number of a rank's updates that may be dropped in a row for their values before training fails.
_MAX_REJECTED = 10


def _check_module(module: torch.nn.Module) -> None:
    """Raise ModelError if strategy fabric cannot train the module."""
    if any(parameter.device.type != "cpu" for parameter in module.parameters()):
        raise ModelError("strategy fabric trains on CPUs only. Set device='cpu'.")
    if any(isinstance(each, torch.nn.SyncBatchNorm) for each in module.modules()):
        raise ModelError("SyncBatchNorm needs steps that are common to all ranks. Strategy fabric has none.")


class FabricWorker(AsynchronousStrategy):
    """Strategy fabric on one rank, a worker."""

    def __init__(self, conf: CommConf) -> None:
        super().__init__(conf)
        self.free_running = conf.fabric.sync.startswith("async")
        self._push: Work[PushOutcome] | None = None
        self._fabric: Fabric | None = None
        self._worker: Worker | None = None
        self._last_step: NDArray[np.float32] | None = None
        self._rejected_count = 0

    @classmethod
    def check(cls, conf: CommConf, world: int) -> None:
        if not conf.fabric.replica:
            return
        if conf.fabric.sync == "bsp":
            raise ConfError(
                f"{PREFIX}fabric.replica=true with {PREFIX}fabric.sync=bsp: every worker has the last iteration's model, so"
                " a replica would be of no use. Change one of them."
            )
        if world < 2:
            raise ConfError(
                f"{PREFIX}fabric.replica=true with {world} worker: the replica needs a second one. Set num_workers=2."
            )
        if conf.fabric.replica_aggregators > world * conf.fabric.aggregators:
            raise ConfError(
                f"{PREFIX}fabric.replicaAggregators={conf.fabric.replica_aggregators}, but there are only"
                f" {world * conf.fabric.aggregators}: {PREFIX}fabric.aggregators={conf.fabric.aggregators} for each worker."
                " Lower the first or raise the second."
            )

    def join(self, gang: Gang, model: FlatModel, make_optimizer: OptimizerMaker) -> None:
        _check_module(model.module)
        model.bind()
        self._model = model
        self._values = model.values.numpy()
        self._change = np.empty_like(self._values)
        self.optimizer = make_optimizer([(parameter, parameter) for parameter in model.parameters])
        self._sparse = make_optimizer.needs_sparse(self.optimizer)
        self._gang = gang
        # An epoch ends for all ranks together, so none of them can be missed.
        self._fabric = Fabric(gang, self.conf, tolerates_loss=False)

    def _get_worker(self) -> Worker:
        """Return this rank's worker. The first call registers it, after a checkpoint's state has been loaded, if any."""
        if self._worker is None:
            if self._fabric is None:
                raise GangError("strategy fabric has not joined its gang")
            states = {"server": self._initial_state()} if self._gang.rank == _SERVER_RANK else {}
            if self._gang.rank == _REPLICA_RANK and self.conf.fabric.replica:
                states["replica"] = self._initial_state()
            params = replace(FabricParams.of(self.conf.fabric), version=self.version)
            self._worker = self._fabric.register_as_worker(params, self.conf.fabric.aggregators, states)
        return self._worker

    def _initial_state(self) -> NDArray[np.float32]:
        """Return the server's initial state: the model, and the last step if there is momentum."""
        if not self.conf.fabric.momentum:
            return self._values
        step = np.zeros_like(self._values) if self._last_step is None else self._last_step
        return np.concatenate([self._values, step])

    def before_forward(self) -> None:
        # The model could be fetched while the last update is in flight, but longer delays cost many more updates.
        self.settle()
        worker = self._get_worker()
        with self.watch.phase("pull"):
            self.version = worker.get(_SERVER_RANK, self._values)
            self.watch.bytes["pull"] += self._values.nbytes

    def after_backward(self) -> None:
        """Do nothing: only the optimizer's change of the parameters is sent, not the gradients."""

    def gradients(self) -> list[torch.Tensor]:
        return [self._model.gradients]

    def update(self, apply: bool = True) -> None:
        if not apply:
            return
        with self.watch.phase("update"):
            np.copyto(self._change, self._values)
            self._model.settle_gradients(self._sparse)
            self.optimizer.step()
            np.subtract(self._values, self._change, out=self._change)
        with self.watch.phase("push"):
            self._push = self._get_worker().push(_SERVER_RANK, self._change)
            self.watch.bytes["push"] += self._change.nbytes

    def settle(self) -> None:
        push, self._push = self._push, None
        if push is None:
            return
        with self.watch.phase("push"):
            self._check_outcome(push.wait())

    def _check_outcome(self, outcome: PushOutcome) -> None:
        """Raise an error if the server keeps dropping this rank's updates: an epoch might never end.

        :raises NonFiniteLossError: their elements are not finite.
        :raises ConfError: they exceed ``fabric.divergence``.
        """
        self._rejected_count = self._rejected_count + 1 if outcome.why in ("norm", "divergence") else 0
        if self._rejected_count < _MAX_REJECTED:
            return
        last = f"the last {_MAX_REJECTED} updates of rank {self._gang.rank}"
        if outcome.why == "norm":
            raise NonFiniteLossError(
                f"{last} have elements that are not finite, though its loss is finite. Lower the learning rate, or set"
                " maxGradNorm.",
                rank=self._gang.rank,
            )
        raise ConfError(
            f"{PREFIX}fabric.divergence={self.conf.fabric.divergence:g}: {last} were dropped, because each exceeds that norm."
            f" The last one has norm {np.linalg.norm(self._change):g}. Set fabric.divergence higher."
        )

    def owned(self) -> list[tuple[int, torch.Tensor]]:
        return [(0, self._model.values)]

    def optimizer_state(self) -> dict[str, Any]:
        """Return the server's last step, for its momentum, on the rank that started the server.

        Return an empty dict on other ranks, and without ``fabric.momentum``. :meth:`state` has the state of this rank's own
        optimizer.
        """
        server = None if self._fabric is None else self._fabric.server_process
        if server is None or not self.conf.fabric.momentum:
            return {}
        return {"last_step": torch.from_numpy(server.fetch_state(self.conf.timeout)[self._model.count :])}

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        if "last_step" in state:
            self._last_step = state["last_step"].numpy()

    def state(self) -> dict[str, Any]:
        return {"version": self.version, "optimizer": self.optimizer.state_dict()}

    def load_state(self, state: dict[str, Any]) -> None:
        self.version = state["version"]
        self.optimizer.load_state_dict(state["optimizer"])

    def details(self) -> dict[str, Any]:
        if self._fabric is None or self._fabric.service is None:
            return {}
        session = self._fabric.service.session
        counts = np.bincount(np.maximum(session.delays, 0)) if session.delays else np.zeros(0, int)
        return {
            "updates": len(session.delays),
            "delays": {int(delay): int(counts[delay]) for delay in np.flatnonzero(counts)},
            "dropped": dict(session.dropped),
            "lost_updates": session.lost_updates,
        }

    def finish(self) -> None:
        """Get the final model. All ranks get the same version, because no rank pushes any more."""
        self.before_forward()
        if self._fabric is not None:
            self._fabric.close()

    def abort(self) -> None:
        if self._fabric is not None:
            self._fabric.abort()

    def close(self) -> None:
        if self._fabric is not None:
            self._fabric.close()
