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
        density: float | None,
        can_pull_ahead: bool,
        shared: bool,
        batching: str,
        push_batching: str,
        profile_iterations: int,
        replan_drift: float,
        timeout: float,
    ) -> dict[str, Any]:
        """All ranks are known: ``peers`` is what :meth:`hello` returned to each. ``layers``: elements of each layer;
        ``density``: the share of gradients that are not zero, about, where most are zero and do not travel, or None;
        ``can_pull_ahead``: parameters of the next version may arrive while this one is computed with; ``shared``: ranks on one
        host read each other's memory. Returns the layout of a rank's memory, see SegmentMap.scala; ``ahead``: whether
        parameters are pulled while gradients are still pushed; ``cuts_pushes``: whether gradients may travel in several
        buckets; and the first buckets, as :meth:`replan` has them."""
        return self._bridge.request(
            "open",
            peers=list(peers),
            layers=list(layers),
            wire=wire,
            density=density,
            can_pull_ahead=can_pull_ahead,
            shared=shared,
            batching=batching,
            push_batching=push_batching,
            profile_iterations=profile_iterations,
            replan_drift=replan_drift,
            timeout=timeout,
        )

    def attach(self, path: str) -> None:
        """The JVM maps the shared memory at ``path``."""
        self._bridge.request("attach", path=path)

    def measured(self, computing: dict[str, Any]) -> dict[str, Any]:
        """What this rank measured in its last steps, its transfers included: see RankReport.scala. ``computing``: what
        ComputingTimes.scala says."""
        answer = self._bridge.request("measured", **computing)
        del answer["ok"]
        return answer

    def replan(self, reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """At rank 0: what the executor decides from what :meth:`measured` answered each rank. ``pull``, ``push``: first
        and last layer of each bucket, counted from 1; ``planned``: whether they were planned anew; ``next_look``: the step,
        counted from 1, after which to ask next, or None if there is nothing to measure."""
        answer = self._bridge.request("replan", reports=list(reports))
        del answer["ok"]
        return answer

    def batching(self) -> dict[str, Any]:
        """At rank 0: the last plan of ``pull`` and ``push``, even after :meth:`end`."""
        answer = self._bridge.request("batching")
        del answer["ok"]
        return answer

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
