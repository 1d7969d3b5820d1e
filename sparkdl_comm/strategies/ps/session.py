"""One rank's session with the parameter server in its executor's JVM: a method for each request that PsSession.scala
answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sparkdl_comm.space.layer_buckets import LayerBuckets
from sparkdl_comm.strategies.ps.bridge import PROTOCOL, Bridge


class Session:
    """Requests over the bridge, on a connection of this rank's own; the wire calls a bucket a batch.

    Not thread-safe, but :meth:`abort` may be called from any thread. What waits raises DeadlineError, RankLostError or
    BridgeError, as the executor says. What is posted does not wait; if it fails, the next request raises that.
    """

    def __init__(self, timeout: float) -> None:
        """Connects to this worker's executor. ``timeout``: seconds that one request may take.

        :raises PluginError: the plugin is not loaded there.
        """
        self._bridge = Bridge.of_this_executor(timeout)

    def hello(self, job: int, rank: int) -> dict[str, Any]:
        """Says who this is. Returns what the other ranks' executors have to know of this one; JSON-able."""
        answer = self._bridge.request("hello", protocol=PROTOCOL, job=job, rank=rank)
        del answer["ok"]
        return answer

    def open(
        self,
        peers: Sequence[Any],
        layers: Sequence[int],
        *,
        wire: str,
        sparse: bool,
        ahead: bool,
        shared: bool,
        in_turn: bool,
        timeout: float,
    ) -> dict[str, Any]:
        """All ranks are known: ``peers`` is what :meth:`hello` returned to each. ``layers``: elements of each layer;
        ``sparse``: most elements of the gradients are zero, and do not travel; ``shared``: ranks on one host read each
        other's memory; ``in_turn``: a bucket of parameters is asked for when the one before is here. Returns the layout of a
        rank's memory, see SegmentMap.scala."""
        return self._bridge.request(
            "open",
            peers=list(peers),
            layers=list(layers),
            wire=wire,
            sparse=sparse,
            ahead=ahead,
            shared=shared,
            in_turn=in_turn,
            timeout=timeout,
        )

    def plan(self, **request: Any) -> dict[str, Any]:
        """Asks the planner, see PlanRequest.scala."""
        return self._bridge.request("plan", **request)

    def attach(self, path: str, pulls: LayerBuckets, pushes: LayerBuckets) -> None:
        """The JVM maps the shared memory at ``path``; these are the first buckets."""
        self._bridge.request("attach", path=path, pull=pulls.pairs, push=pushes.pairs)

    def change_buckets(self, pulls: LayerBuckets, pushes: LayerBuckets) -> None:
        """Posts the next step's buckets."""
        self._bridge.defer("cut", pull=pulls.pairs, push=pushes.pairs)

    def prefetch(self, version: int) -> None:
        """Posts that parameters of ``version`` may arrive from now on."""
        self._bridge.defer("prefetch", version=version)

    def pull(self, version: int, bucket: int) -> dict[str, Any]:
        """Returns when the parameters of all buckets up to this one are here: their ``bytes``, and the blocks of each that
        is new, ``batches``."""
        return self._bridge.request("pull", version=version, batch=bucket)

    def push(self, version: int, bucket: int) -> None:
        """Posts that this rank's gradients of the bucket are complete."""
        self._bridge.post("push", version=version, batch=bucket)

    def collect(self, version: int, bucket: int) -> dict[str, Any]:
        """Returns when all ranks' gradients of the bucket are summed in this rank's shard."""
        return self._bridge.request("collect", version=version, batch=bucket)

    def publish(self, version: int, buckets: Iterable[int]) -> None:
        """Posts that this rank's shard of each of these buckets has its values of ``version``."""
        for bucket in buckets:
            self._bridge.post("publish", version=version, batch=bucket)

    def end(self) -> None:
        """Nobody needs this rank's blocks any more."""
        self._bridge.request("close")

    def abort(self) -> None:
        """Wakes a request that waits: it raises BridgeError, and the executor drops this session."""
        self._bridge.abort()

    def close(self) -> None:
        """Ends the connection. After a failure this ends the session in the JVM, too, which retires its blocks and unmaps the
        shared memory."""
        self._bridge.close()
