"""Strategy ``fabric``: asynchronous training whose transfers are scheduled, with a parameter server of its own.

Every rank is a worker, with aggregators beside it; beside rank 0, where the scheduler is, there is the server, and beside
rank 1 its replica if there is to be one, each in a process of its own. A worker gets the model, computes a gradient, has
the user's optimizer make a step of it from there, and pushes by how much that changed the parameters: ``-lr * gradient`` of
plain SGD. The server adds what comes, with momentum. See :mod:`sparkdl_comm.fabric`.

An optimizer that keeps state, such as Adam, has its own at each worker. All of them are in checkpoints, and so is the server's
last step, for its momentum; if the replica has taken over, momentum begins anew from a checkpoint.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from sparkdl_comm.conf import PREFIX, CommConf
from sparkdl_comm.errors import ConfError, GangError, ModelError, NonFiniteLossError
from sparkdl_comm.fabric.options import Options
from sparkdl_comm.fabric.params import FabricParams
from sparkdl_comm.fabric.roles import Fabric, Worker
from sparkdl_comm.fabric.worker import Push, Pushed
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.optim.optimizer import OptimizerMaker
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.strategies.asynchronous import Asynchronous
from sparkdl_comm.strategies.base import Strategy, register

#: The ranks beside which the server and its replica are.
_SERVER, _REPLICA = 0, 1
#: So many of a rank's updates in a row may be dropped for what they are, which waiting does not change.
_UNFIT = 10


def unable(module: torch.nn.Module) -> str | None:
    """Why the module cannot be trained with it; None: it can."""
    if any(parameter.device.type != "cpu" for parameter in module.parameters()):
        return "strategy fabric trains on CPUs only: set device='cpu'"
    if any(isinstance(each, torch.nn.SyncBatchNorm) for each in module.modules()):
        return "SyncBatchNorm needs steps that are common to all ranks, which strategy fabric has not"
    return None


class FabricWorker(Asynchronous):
    """One rank's part."""

    def __init__(self, conf: CommConf) -> None:
        super().__init__(conf)
        self.free_running = conf.fabric_sync.startswith("async")
        self._push: Push | None = None
        self._fabric: Fabric | None = None
        self._worker: Worker | None = None
        self._last_step: np.ndarray | None = None
        self._unfit = 0

    @classmethod
    def check(cls, conf: CommConf, world: int) -> None:
        if not conf.fabric_replica:
            return
        if conf.fabric_sync == "bsp":
            raise ConfError(
                f"{PREFIX}fabric.replica=true with {PREFIX}fabric.sync=bsp: every worker has the model of the last iteration,"
                " so a replica would be of no use; set one of them otherwise"
            )
        if world < 2:
            raise ConfError(
                f"{PREFIX}fabric.replica=true with {world} worker: it would be beside the server; 2 at least"
            )
        if conf.fabric_replica_aggregators > world * conf.fabric_aggregators:
            raise ConfError(
                f"{PREFIX}fabric.replicaAggregators={conf.fabric_replica_aggregators}: no more are free than"
                f" {world * conf.fabric_aggregators}, {PREFIX}fabric.aggregators={conf.fabric_aggregators} beside each worker"
            )

    def join(self, gang: Gang, model: FlatModel, make_optimizer: OptimizerMaker) -> None:
        reason = unable(model.module)
        if reason is not None:
            raise ModelError(reason)
        model.bind(torch.empty(model.count), torch.zeros(model.count))
        self._model = model
        self._values = model.values.numpy()
        self._before = np.empty_like(self._values)
        self.optimizer = make_optimizer([(parameter, parameter) for parameter in model.parameters])
        self._sparse = make_optimizer.wants_sparse(self.optimizer)
        self._gang = gang
        # An epoch ends for all ranks together, so none of them can be missed.
        self._fabric = Fabric(gang, Options.of(self.conf), self.conf.ports, tolerant=False)

    def _in_fabric(self) -> Worker:
        """This rank's part, which begins when it is first used: after a checkpoint's state was loaded, if there is one."""
        if self._worker is None:
            if self._fabric is None:
                raise GangError("strategy fabric has not joined its gang")
            beside = {"server": self._state()} if self._gang.rank == _SERVER else {}
            if self._gang.rank == _REPLICA and self.conf.fabric_replica:
                beside["replica"] = self._state()
            params = replace(FabricParams.of(self.conf), version=self.version)
            self._worker = self._fabric.register_as_worker(params, self.conf.fabric_aggregators, beside)
        return self._worker

    def _state(self) -> np.ndarray:
        """What the server begins with."""
        if not self.conf.fabric_momentum:
            return self._values
        step = np.zeros_like(self._values) if self._last_step is None else self._last_step
        return np.concatenate([self._values, step])

    def before_forward(self) -> None:
        # It could come while this rank's last update is on its way: but with longer delays it takes many more updates.
        self.settle()
        worker = self._in_fabric()
        with self.watch.phase("pull"):
            self.version = worker.get(_SERVER, self._values)
            self.watch.bytes["pull"] += self._values.nbytes

    def after_backward(self) -> None:
        """Nothing: gradients do not travel, only what the optimizer makes of them."""

    def gradients(self) -> list[torch.Tensor]:
        return [self._model.gradients]

    def update(self, apply: bool = True) -> None:
        if not apply:
            return
        with self.watch.phase("update"):
            np.copyto(self._before, self._values)
            self._model.settle_gradients(self._sparse)
            self.optimizer.step()
            np.subtract(self._values, self._before, out=self._before)
            if self.weight != 1:
                self._before *= self.weight
        with self.watch.phase("push"):
            self._push = self._in_fabric().push(_SERVER, self._before)
            self.watch.bytes["push"] += self._before.nbytes

    def settle(self) -> None:
        push, self._push = self._push, None
        if push is None:
            return
        with self.watch.phase("push"):
            self._look_at(push.wait())

    def _look_at(self, pushed: Pushed) -> None:
        """:raises NonFiniteLossError, ConfError: this rank's updates are all dropped, so that an epoch might never end."""
        self._unfit = self._unfit + 1 if pushed.why in ("norm", "divergence") else 0
        if self._unfit < _UNFIT:
            return
        last = f"the last {_UNFIT} updates of rank {self._gang.rank}"
        if pushed.why == "norm":
            raise NonFiniteLossError(
                f"{last} have elements that are not finite, though its loss is finite: lower the learning rate, or set"
                " maxGradNorm",
                rank=self._gang.rank,
            )
        raise ConfError(
            f"{PREFIX}fabric.divergence={self.conf.fabric_divergence:g}: {last} were dropped, as each alone is larger; the"
            f" last one has the norm {np.linalg.norm(self._before):g}: set more"
        )

    def owned(self) -> list[tuple[int, torch.Tensor]]:
        return [(0, self._model.values)]

    def stripes(self) -> list[tuple[int, torch.nn.Parameter]]:
        return [(entry.start, own) for entry, own in zip(self._model.entries, self._model.parameters, strict=True)]

    def optimizer_state(self) -> dict[str, Any]:
        """The server's, on the rank that it is beside. The ranks' own are in :meth:`state`."""
        server = None if self._fabric is None else self._fabric.beside("server")
        if server is None or not self.conf.fabric_momentum:
            return {}
        return {"last_step": torch.from_numpy(server.state(self.conf.timeout)[self._model.count :])}

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
        dispatch = self._fabric.service.dispatch
        counts = np.bincount(np.maximum(dispatch.delays, 0)) if dispatch.delays else np.zeros(0, int)
        return {
            "updates": len(dispatch.delays),
            "delays": {int(delay): int(counts[delay]) for delay in np.flatnonzero(counts)},
            "dropped": dict(dispatch.dropped),
            "lost_updates": dispatch.lost_updates,
        }

    def finish(self) -> None:
        """All ranks end with one version: nobody pushes any more when they get it."""
        self.before_forward()
        if self._fabric is not None:
            self._fabric.close()

    def abort(self) -> None:
        if self._fabric is not None:
            self._fabric.abort()

    def close(self) -> None:
        if self._fabric is not None:
            self._fabric.close()


@register("fabric")
def _fabric(conf: CommConf) -> type[Strategy]:
    return FabricWorker
