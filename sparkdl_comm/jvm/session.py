"""Session of one rank with the parameter server in its executor's JVM: one method for each request of BridgeRequest.scala."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sparkdl_comm.conf.groups import PsConf
from sparkdl_comm.jvm.bridge import PROTOCOL, Bridge
from sparkdl_comm.space.parameter_space import LayerBuckets


class PsSession:
    """Session over a bridge of this rank's own. The wire calls a bucket a batch.

    Not thread-safe, but :meth:`abort` may be called from any thread. Methods that wait raise the executor's error:
    DeadlineError, RankLostError or BridgeError. Methods that post do not wait; if a post fails, the next request raises the
    error.
    """

    def __init__(self, timeout: float) -> None:
        """Connect to this worker's executor. ``timeout``: seconds that one request may take.

        :raises PluginError: the plugin is not loaded there.
        """
        self._bridge = Bridge.connect(timeout)

    def hello(self, job: int, rank: int) -> dict[str, Any]:
        """Identify this rank to its executor. Return what the other executors need to know about it; JSON-able."""
        return self._bridge.request("hello", protocol=PROTOCOL, job=job, rank=rank)

    def open(
        self,
        peers: Sequence[Any],
        layers: Sequence[int],
        conf: PsConf,
        *,
        density: float | None,
        can_pull_ahead: bool,
        timeout: float,
    ) -> dict[str, Any]:
        """Open the session when all ranks are known.

        :param peers: what :meth:`hello` returned on each rank, in rank order.
        :param layers: elements of each layer.
        :param density: approximate fraction of nonzero gradients, if zeros are not sent; None if whole gradients are sent.
        :param can_pull_ahead: parameters of the next version may arrive during the current step.
        :return: the layout of a rank's memory (see SegmentMap.scala); ``ahead``: True if parameters are pulled while gradients
            are still pushed; and the first buckets, in the format of :meth:`replan`.
        """
        return self._bridge.request(
            "open",
            peers=list(peers),
            layers=list(layers),
            wire=conf.wire,
            density=density,
            can_pull_ahead=can_pull_ahead,
            shared=conf.shared_memory,
            batching=conf.batching,
            push_batching=conf.push_batching,
            profile_iterations=conf.profile_iterations,
            replan_drift=conf.replan_drift,
            timeout=timeout,
        )

    def attach(self, path: str) -> None:
        """Let the JVM map the shared memory at ``path``."""
        self._bridge.request("attach", path=path)

    def report_measurements(self, computing: dict[str, Any]) -> dict[str, Any]:
        """Send this rank's compute times to the executor. Return them together with the executor's transfer times.

        :param computing: compute times of the last steps: the fields of ComputingTimes in Measurements.scala.
        :return: the fields of RankReport in Measurements.scala.
        """
        return self._bridge.request("measured", **computing)

    def replan(self, reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Let the executor of rank 0 choose the buckets, and return them. Rank 0 only.

        :param reports: what :meth:`report_measurements` returned on each rank, in rank order.
        :return: ``pull``, ``push``: first and last layer of each bucket, counted from 1. ``planned``: True if this call
            planned them again. ``next_look``: the step, counted from 1, after which the ranks report again. None: the
            buckets never change, so no rank measures.
        """
        return self._bridge.request("replan", reports=list(reports))

    def get_plan(self) -> dict[str, Any]:
        """Return the last plan of ``pull`` and ``push``. Rank 0 only; also valid after :meth:`end`."""
        return self._bridge.request("batching")

    def change_buckets(self, pulls: LayerBuckets, pushes: LayerBuckets) -> None:
        """Post the next step's buckets."""
        self._bridge.defer("cut", pull=pulls.pairs, push=pushes.pairs)

    def prefetch(self, version: int) -> None:
        """Post that parameters of ``version`` may arrive from now on."""
        self._bridge.defer("prefetch", version=version)

    def pull(self, version: int, bucket: int) -> dict[str, Any]:
        """Wait until the parameters of all buckets up to this one are here.

        Return the ``bytes`` received, and ``batches``: for each new bucket, its blocks.
        """
        return self._bridge.request("pull", version=version, batch=bucket)

    def push(self, version: int, bucket: int) -> None:
        """Post that this rank's gradients of the bucket are complete."""
        self._bridge.post("push", version=version, batch=bucket)

    def collect(self, version: int, bucket: int) -> dict[str, Any]:
        """Wait until the bucket's gradients of all ranks are summed in this rank's shard. Return times and bytes."""
        return self._bridge.request("collect", version=version, batch=bucket)

    def publish(self, version: int, buckets: Iterable[int]) -> None:
        """Post that this rank's shard of each of these buckets holds its values of ``version``."""
        for bucket in buckets:
            self._bridge.post("publish", version=version, batch=bucket)

    def end(self) -> None:
        """End the session. No other rank may need this rank's blocks any more."""
        self._bridge.request("close")

    def abort(self) -> None:
        """End a waiting request with BridgeError. The executor then drops this session."""
        self._bridge.abort()

    def close(self) -> None:
        """Close the connection.

        After a failure this also ends the session in the JVM, which retires its blocks and unmaps the shared memory.
        """
        self._bridge.close()
