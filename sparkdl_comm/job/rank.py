"""Training barrier task: one rank, from its rows to its report."""

from __future__ import annotations

import functools
import gc
import hashlib
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import torch

from sparkdl_comm.data.partitions import BatchSampler, describe_imbalance
from sparkdl_comm.errors import BridgeError, CallbackError, GangError, ModelError
from sparkdl_comm.gang.failure import Failure
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.job.driver_client import DriverClient
from sparkdl_comm.job.rank_rows import RowLoader, describe_problem
from sparkdl_comm.job.summary import RankReport
from sparkdl_comm.job.task import ROWS_GONE_PREFIX, RankFn, RankTask, RowsGoneError
from sparkdl_comm.optim.optimizer import OptimizerMaker, build_module
from sparkdl_comm.space import module_state
from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.space.untrained_state import broadcast_initial_state
from sparkdl_comm.strategies.base import Strategy
from sparkdl_comm.strategies.registry import strategy_class
from sparkdl_comm.train import rng
from sparkdl_comm.train.callbacks import Progress
from sparkdl_comm.train.spec import TrainSpec
from sparkdl_comm.train.training_loop import TrainingLoop

if TYPE_CHECKING:
    from sparkdl_comm.train.checkpoint import Restorer, Saver

#: Seconds that rank 0 waits for the other ranks at the end.
_LEAVE_SECONDS = 30.0

#: Seconds between two progress messages.
_PROGRESS_INTERVAL_SECONDS = 0.2


def make_rank_fn(spec: TrainSpec) -> RankFn:
    """Return the function for ``mapInArrow(…, "rank int, report string", barrier=True)``, one task per rank."""

    def run_rank(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import BarrierTaskContext

        freeze_modules()
        task = RankTask(spec, BarrierTaskContext.get())
        try:
            report = Rank(spec, task).run(batches).to_json()
        except RowsGoneError as gone:
            report = f"{ROWS_GONE_PREFIX}{gone}"
        # Optimizers, schedulers and the strategy form reference cycles, which keep the shared-memory segment alive.
        gc.collect()
        yield task.report(report)

    return run_rank


@functools.cache
def freeze_modules() -> None:
    """Exclude the objects that are loaded now from garbage collection. Does so once per process.

    This package and Spark each collect garbage after a fit. With PyTorch's half a million objects, each collection
    would take a quarter of a second.
    """
    import torch._dynamo  # noqa: F401, PLC0415 - otherwise the first optimizer imports it

    gc.freeze()


class Rank:
    """A rank that trains."""

    def __init__(self, spec: TrainSpec, task: RankTask) -> None:
        self._spec = spec
        self._task = task
        self._rank = task.rank
        self._progress = Progress()

    def run(self, batches: Iterator[pa.RecordBatch]) -> RankReport:
        """Train. A failure is announced to the other ranks, and raised with the *first* failure of the gang inside.

        :raises RowsGoneError: the named cache is not complete on the hosts of this gang.
        """
        try:
            with ExitStack() as stack:
                try:
                    return self._train(batches, stack)
                except RowsGoneError:
                    raise
                except (Exception, SystemExit) as exc:
                    raise self._task.announce_failure(self._failure(exc)) from exc
        finally:
            self._task.close()

    def _failure(self, exc: BaseException) -> Failure:
        # In forward and backward only the user's code runs, apart from the strategy and SyncBatchNorm, which raise the
        # classes named here. So other exceptions are never the consequence of another rank's failure.
        is_user_code = self._progress.phase in ("forward", "backward") and not isinstance(exc, (BridgeError, GangError))
        is_own = is_user_code or isinstance(exc, CallbackError)
        return Failure.of(
            exc, self._rank, self._progress.step_number, self._progress.phase, secondary=False if is_own else None
        )

    def _train(self, batches: Iterator[pa.RecordBatch], stack: ExitStack) -> RankReport:
        spec = self._spec
        model = FlatModel(self._build_module())
        loader = RowLoader(spec, self._task, batches, spec.rows.for_model(model.module))
        stack.callback(loader.reading.close)
        self._rank = self._task.rank
        strategy = strategy_class(spec.conf)(spec.conf)
        stack.callback(strategy.close)
        gang = self._join_gang(loader.account, model, strategy)
        accounts = [member.payload["data"] for member in gang.members]
        rows = loader.rows(accounts)
        gang.on_failure(lambda _: strategy.abort())
        step_rows = spec.batch_size * spec.optimization.accumulation_steps
        sampler = BatchSampler.of([account["training"]["rows"] for account in accounts], step_rows)
        driver = self._task.connect_driver(stack)
        imbalance = describe_imbalance(sampler.counts)
        warnings = [text for text in (imbalance, describe_problem(accounts)) if text is not None]
        if driver is not None and warnings:
            driver.send_progress({"warning": "\n".join(warnings)})
        broadcast_initial_state(model, gang, spec.conf.timeout)
        restorer = self._load_last_checkpoint(gang, model, driver, stack)
        strategy.join(gang, model, OptimizerMaker(model, spec.optimization))
        stack.callback(model.release)
        rng.seed(spec.seed, self._rank)
        has_collective_modules = any(isinstance(layer, torch.nn.SyncBatchNorm) for layer in model.module.modules())
        if has_collective_modules:
            from sparkdl_comm.space.sync_batch_norm import synchronize

            synchronize(model.module, self._task.device(), gang, spec.conf.timeout, stack)
        make_loop: type[TrainingLoop] = TrainingLoop
        if not strategy.is_synchronous:
            from sparkdl_comm.train.asynchronous_loop import AsynchronousLoop

            make_loop = AsynchronousLoop
        loop = make_loop(
            spec, gang, rows.training, sampler, model, strategy, self._progress, rows.validation, has_collective_modules
        )
        saver = self._resume(loop, gang, restorer, stack)
        resumed_at = self._progress.step
        seconds = loop.run(_ProgressSender(driver))
        timeline = None
        if strategy.trace is not None:
            timeline = strategy.trace.report(gang, spec.conf.timeout, model.values.nbytes)
        if saver is not None:
            saver.wait()
        if driver is not None:
            client = driver

            def warn(text: str) -> None:
                client.send_progress({"warning": text})

            driver.send_tensors(module_state.sendable(module_state.pack_state(model.module, warn), warn))
        digest = hashlib.sha256(model.values.detach().cpu().numpy().data).hexdigest()
        loop.record_eval_output_shape()  # runs the last forward passes, which may change the model's state
        report = RankReport(
            rank=self._rank,
            iterations=self._progress.step,
            seconds=seconds,
            phases=strategy.watch.seconds,
            bytes=strategy.watch.bytes,
            history=self._progress.history,
            rows=rows.training.rows,
            weights_sha256=digest,
            output_shape=self._progress.output_shape,
            resumed_at=resumed_at,
            details=strategy.details(),
            timeline=timeline,
            data=loader.report(),
        )
        # This comes last: the driver soon gives up on ranks that have left the gang, and the digest of a large model
        # takes seconds.
        self._task.wait_for_others(_LEAVE_SECONDS)
        return report

    def _load_last_checkpoint(
        self, gang: Gang, model: FlatModel, driver: DriverClient | None, stack: ExitStack
    ) -> Restorer | None:
        """Load the parameters of the last checkpoint into the model, if there is one. Returns None if the run has no
        checkpoints.
        """
        spec = self._spec
        if spec.checkpoints is None:
            return None
        from sparkdl_comm.train.checkpoint import Restorer, describe

        rows = [member.payload["data"]["sha256"] for member in gang.members]
        run = describe(spec.checkpoints.run, spec, model, rows)
        restorer = Restorer(spec.checkpoints, run, gang, spec.conf.timeout)
        stack.callback(restorer.close)
        restorer.find(lambda text: driver is not None and driver.send_progress({"warning": text}))
        if restorer.step:
            restorer.load_parameters(model)
        return restorer

    def _resume(self, loop: TrainingLoop, gang: Gang, restorer: Restorer | None, stack: ExitStack) -> Saver | None:
        """Load the state of the last checkpoint into the loop, and let the loop write new checkpoints."""
        spec = self._spec
        if spec.checkpoints is None or restorer is None:
            return None
        from sparkdl_comm.train.checkpoint import Saver

        if restorer.step:
            restorer.load_state(loop)
        saver = Saver(spec.checkpoints, restorer.run, gang, spec.conf.timeout, restorer.step)
        stack.callback(saver.close)
        loop.after_step = saver
        return saver

    def _build_module(self) -> torch.nn.Module:
        torch.manual_seed(self._spec.seed)
        module = build_module(self._spec.model)
        module_state.check(module)
        module_state.check_round_trip(module)
        return module.to(self._task.device())

    def _join_gang(self, account: dict[str, Any], model: FlatModel, strategy: Strategy) -> Gang:
        payload = {
            "data": account,
            "model": model.fingerprint(),
            "strategy": strategy.advertise(self._spec.attempt_id, self._rank),
        }
        gang = self._task.join_gang(payload)
        different = [m.rank for m in gang.members if m.payload["model"] != gang.members[0].payload["model"]]
        if different:
            raise ModelError(
                f"the model of ranks {different} differs from rank 0's in the names or shapes of its trainable parameters."
                " The factory must build the same model on all ranks"
            )
        return gang


class _ProgressSender:
    """Callback that sends progress to the driver at intervals. Does nothing on ranks without a connection to the
    driver.
    """

    def __init__(self, driver: DriverClient | None) -> None:
        self._driver = driver
        self._last = 0.0

    def __call__(self, progress: dict[str, Any]) -> None:
        now = time.monotonic()
        last_step = progress["step"] == progress["steps"]
        if self._driver is not None and (last_step or now - self._last > _PROGRESS_INTERVAL_SECONDS):
            self._last = now
            self._driver.send_progress(progress)
