"""Distributor for a user's own training function."""

from __future__ import annotations

import dataclasses
import logging
import os
import secrets
from collections.abc import Callable
from typing import Any

import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from sparkdl_comm.conf import CommConf
from sparkdl_comm.data.dataset import tensor_columns
from sparkdl_comm.errors import ConfError, InputError
from sparkdl_comm.gang.members import format_ranks
from sparkdl_comm.gang.process_group import BACKENDS
from sparkdl_comm.gang.tensors import unpack_value
from sparkdl_comm.job import restart, session, slots
from sparkdl_comm.job.arrow_batches import limit_batches, measure_columns
from sparkdl_comm.job.function import ALONE, FunctionSpec, ScriptCall, make_function_fn
from sparkdl_comm.job.interrupt import cancel_on_interrupt
from sparkdl_comm.job.launch import run_gang, run_tasks
from sparkdl_comm.job.local import run_locally
from sparkdl_comm.ml import components

_log = logging.getLogger(__name__)


class CommDistributor:
    """Launcher of a training function on ``num_workers`` executors at once, like pyspark's TorchDistributor::

        def train(learning_rate):
            model = DistributedDataParallel(Net())
            ...
            return model.module.state_dict()

        state = CommDistributor(num_workers=4).run(train, 1e-3)

    Each rank has torch.distributed's default group when the function begins: gloo, and with ``device="cuda"`` NCCL for
    tensors on GPUs. ``Communicator.current()`` is the rank's :class:`~sparkdl_comm.Communicator`. A function written
    for TorchDistributor runs unchanged. It finds torchrun's variables (``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR``, …),
    and may call ``init_process_group`` itself. ``LOCAL_RANK`` is the index of the rank's GPU, or 0. Ranks meet over
    authenticated connections, not by a TCPStore. The data connections of gloo and NCCL are torch's own.

    On CPUs, Lightning's Trainer and Fabric find the ranks too, unless you set ``devices`` or ``num_nodes``. A warning
    names ranks that end without having communicated.

    TorchDistributor's ``num_processes``, ``local_mode`` and ``use_gpu`` have the same meaning here, by name or by
    position. Only the defaults differ: ranks run in executors, on CPUs.

    :param num_workers: number of ranks. None: one per slot that has registered, or one rank with ``local_mode``. Also called
        ``num_processes``.
    :param device: ``cpu`` or ``cuda``. A bool in its place is ``local_mode``.
    :param use_gpu: True means ``device="cuda"``, False ``device="cpu"``.
    :param local_mode: whether ranks are processes of the driver's machine, which share its GPUs in turn.
    :raises ConfError: a value is not one of these.
    """

    def __init__(
        self,
        num_workers: int | None = None,
        device: str | bool = "cpu",
        use_gpu: bool | None = None,
        *,
        num_processes: int | None = None,
        local_mode: bool = False,
    ) -> None:
        if isinstance(device, bool):
            local_mode, device = device, "cpu"
        if use_gpu is not None:
            device = "cuda" if use_gpu else "cpu"
        self.num_workers = num_workers if num_processes is None else num_processes
        self.device = device
        self.local_mode = local_mode
        if self.num_workers is not None and (type(self.num_workers) is not int or self.num_workers < 1):
            raise ConfError(f"num_workers={self.num_workers!r}: must be an integer of at least 1, or None")
        if device not in BACKENDS:
            raise ConfError(f"device={device!r}: must be one of {', '.join(BACKENDS)}")

    def run(self, train_fn: Callable[..., Any] | str, *args: Any, **kwargs: Any) -> Any:
        """Call ``train_fn(*args, **kwargs)`` on each rank, all at once.

        :param train_fn: a function, or the path of a Python file that exists where ranks run. A file runs with ``args``
            as its command line.
        :return: the result of rank 0, None for a file. A result may be a number, text, bytes, a tensor, an array, or
            dicts, lists and tuples of these, such as a ``state_dict``. Tensors are on the CPU. Nothing else is
            accepted, because it would have to be unpickled.
        :raises ConfError: a setting is wrong, or dynamic allocation is on.
        :raises InputError: a file has keyword arguments, the result cannot be sent, or no Spark session runs.
        :raises ModelError: ``train_fn`` or an argument cannot be shipped to executors.
        :raises SlotsError: there are fewer slots than workers.
        :raises RankFailedError: ``train_fn`` raised. Has the traceback of the rank. The other ranks were stopped.
        :raises GangError: a rank was lost, or did not connect in time.
        """
        spark = session.active_session()
        with cancel_on_interrupt(spark):
            return self._run(spark, _check_call(train_fn, args, kwargs), None)

    def run_on_df(self, train_fn: Callable[..., Any], df: DataFrame, *args: Any, **kwargs: Any) -> Any:
        """Call ``train_fn(dataset, *args, **kwargs)`` on each rank. ``dataset`` has the rank's share of the rows of
        ``df``.

        The rows are distributed evenly, independent of the partitions of ``df``: each row goes to one rank. Rows travel from
        executor to executor, and stay on the rank's disk. So ``dataset``, a
        :class:`~sparkdl_comm.data.dataset.PartitionDataset`, can be iterated again in each epoch::

            def train(dataset):
                for batch in Communicator.current().in_step(DataLoader(dataset, batch_size=32)):
                    ... batch["features"], batch["label"]

        :return: as :meth:`run`.
        :raises InputError: a column has a type that is not accepted, there are nulls (with their number), or there are
            no rows; or ``train_fn`` is the path of a file.
        :raises ConfError: ``local_mode`` is True, or a setting is wrong.

        Also raises what :meth:`run` does.
        """
        if isinstance(train_fn, str):
            raise InputError("run_on_df takes a function, not a file: a file cannot receive the dataset")
        if self.local_mode:
            raise ConfError("local_mode=True: run_on_df needs ranks in executors, where the rows are")
        spark = session.session_of(df)
        with cancel_on_interrupt(spark):
            rows = tensor_columns(df)
            row_bytes = sum(measure_columns(df, df.columns).values())
            return self._run(spark, _check_call(train_fn, args, kwargs), limit_batches(rows, row_bytes))

    def _run(self, spark: SparkSession, call: Callable[..., Any], rows: DataFrame | None) -> Any:
        conf = CommConf.from_mapping(session.session_conf(spark))
        spec = FunctionSpec(
            call=cloudpickle.dumps(call),
            has_rows=rows is not None,
            device=self.device,
            conf=conf,
            world=self.num_workers or 1,
            attempt_id=secrets.token_hex(8),
            secret=secrets.token_bytes(32),
            driver_address=("", 0),
            is_local=self.local_mode,
        )
        if self.local_mode:
            return _run_ranks(spec, run_locally, None)
        session.use_driver_python(spark)
        session.check_dynamic_allocation(spark)
        world = slots.check_slots(spark, self.num_workers, conf.slot_timeout)
        slots.warn_about_threads(spark, world)
        restart.warn_about_limit(spark)
        session.warn_unencrypted(spark, "what ranks send each other, what they print, and what train_fn returns")
        spec = dataclasses.replace(spec, world=world)
        partitions = spark.range(0, world, 1, numPartitions=world) if rows is None else rows.repartition(world)
        with slots.ADMISSION.admit(world, slots.slots_now(spark), conf.turn_timeout):
            return _run_ranks(
                spec,
                lambda spec, check: run_tasks(
                    partitions, make_function_fn(spec), check, f"sparkdl_comm run: {_call_name(call)} on {world} ranks"
                ),
                spark,
            )


def _run_ranks(
    spec: FunctionSpec,
    start: Callable[[FunctionSpec, Callable[[], None]], list[str]],
    spark: SparkSession | None,
) -> Any:
    """Run the ranks with ``start``, and return the result of rank 0's function. ``spark``: see :func:`run_gang`."""
    tensors, reports = run_gang(
        lambda listener: start(dataclasses.replace(spec, driver_address=listener.address), listener.check), spec, spark
    )
    silent_ranks = [rank for rank, report in enumerate(reports) if report == ALONE]
    if silent_ranks:
        _log.warning(
            "%s of %d never communicated, so they trained without the other ranks. Wrap the model in"
            " DistributedDataParallel, or call a collective of torch.distributed or of Communicator.current(). Lightning's"
            " Trainer does so with num_nodes=%d, devices=%d, strategy='ddp'",
            format_ranks(silent_ranks),
            spec.world,
            *((1, spec.world) if spec.is_local else (spec.world, 1)),
        )
    return unpack_value(tensors)


@dataclasses.dataclass(frozen=True)
class _BoundCall:
    """Call of ``train_fn`` with arguments that follow those given by the caller."""

    train_fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __call__(self, *first: Any) -> Any:
        return self.train_fn(*first, *self.args, **self.kwargs)


def _call_name(call: Callable[..., Any]) -> str:
    """Return the name of a rank's call for the Spark UI."""
    if isinstance(call, ScriptCall):
        return os.path.basename(call.path)
    function = call.train_fn if isinstance(call, _BoundCall) else call
    return str(getattr(function, "__name__", type(function).__name__))


def _check_call(train_fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
    """Return the call of each rank, after a check of its arguments."""
    if isinstance(train_fn, str):
        if kwargs:
            raise InputError(
                f"{train_fn} gets a command line, so it cannot have keyword arguments: {', '.join(kwargs)}"
            )
        return ScriptCall(train_fn, tuple(map(str, args)))
    if not callable(train_fn):
        raise InputError(
            f"train_fn is of type {type(train_fn).__name__}. Give a function, or the path of a Python file"
        )
    components.check_picklable(train_fn=train_fn, args=args, kwargs=kwargs)
    return _BoundCall(train_fn, args, kwargs)
