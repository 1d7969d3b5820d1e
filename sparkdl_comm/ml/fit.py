"""Driver side of a fit: checks, the specification for the ranks, and the model from their results."""

from __future__ import annotations

import functools
import secrets
import warnings
from dataclasses import replace
from typing import Any

import torch
from pyspark.sql import DataFrame

from sparkdl_comm.conf import CommConf
from sparkdl_comm.job import restart, session, slots
from sparkdl_comm.job.broadcasts import model_for_tasks
from sparkdl_comm.job.cached_rows import make_cache
from sparkdl_comm.job.slot_watch import ADMISSION
from sparkdl_comm.job.summary import summarize
from sparkdl_comm.job.trained_module import driver_module, keep_tensors, load_trained
from sparkdl_comm.ml import columns, components
from sparkdl_comm.ml.model import TorchModel
from sparkdl_comm.ml.recipe import TrainingRecipe
from sparkdl_comm.ml.scoring import activation_of
from sparkdl_comm.optim import elementwise
from sparkdl_comm.report.loggers import RunLog
from sparkdl_comm.report.progress import show_line
from sparkdl_comm.strategies.registry import strategy_class
from sparkdl_comm.train import asynchronous_loop
from sparkdl_comm.train.spec import TrainSpec


def train(estimator: TrainingRecipe, dataset: DataFrame) -> TorchModel:
    """Train ``estimator``, whose Params have been checked, on ``dataset`` and return the model.

    ``TorchEstimator._fit`` calls this function and documents its errors. Warnings point at the caller of ``fit``.
    """
    spark = session.session_of(dataset)
    settings = session.session_conf(spark)
    named = estimator.getStrategy() or session.usual_strategy(spark, settings)
    conf = CommConf.from_mapping(settings, strategy=named, compression=estimator.getCompression())
    strategy = strategy_class(conf)
    model = components.check_model(estimator.model)
    loss = components.make_loss(estimator.loss)
    target_type = functools.partial(components.target_type, loss)
    decode = estimator.check_function("decode", "bytes -> array or tensor")
    collate_fn = estimator.check_function(
        "collate_fn",
        "list of tensors -> the model's argument, e.g. functools.partial(torch.nn.utils.rnn.pad_sequence, batch_first=True)",
    )
    augment = estimator.check_function("augment", "tensor [rows, …] -> tensor [rows, …]")
    limits = components.label_limits(loss)
    expressions, rows = columns.training_columns(dataset, estimator, target_type, decode, limits, collate_fn)
    if rows.weight is not None:
        loss = components.make_row_loss(loss)
    optimization, observation = estimator.check_optimization(), estimator.check_observation()
    components.check_picklable(
        model=model,
        loss=loss,
        optimizer=optimization.optimizer,
        param_groups=estimator.param_groups,
        lr_scheduler=estimator.lr_scheduler,
        metrics=estimator.metrics,
        callbacks=estimator.callbacks,
        decode=decode,
        collate_fn=collate_fn,
        augment=augment,
    )
    if strategy.has_stripes:
        elementwise.check_on_driver(model, optimization)
    session.check_dynamic_allocation(spark)
    if strategy.needs_plugin:
        session.check_plugin(spark)
    checkpoints = estimator.check_checkpoints(spark)
    if not strategy.is_synchronous:
        asynchronous_loop.check_settings(conf, optimization)
    world = slots.check_slots(spark, estimator.getNumWorkers(), conf.slot_timeout)
    strategy.check(conf, world)
    session.check_disk_cache(spark, conf)
    slots.warn_about_threads(spark, world)
    restart.warn_about_limit(spark)
    own_connections = {
        "gradients": not strategy.needs_plugin,
        "rows": conf.data.shuffle == "global",
        "the trained model": True,
    }
    sent = ", ".join(name for name, is_own in own_connections.items() if is_own)
    session.warn_unencrypted(spark, f"{sent}, what ranks print, and what they tell each other between steps")
    if estimator.getBatchSize() < world:
        warnings.warn(
            f"batchSize={estimator.getBatchSize()} is less than num_workers={world}. batchSize counts rows of all ranks, so in"
            f" each step {world - estimator.getBatchSize()} of them have no rows. Set it to at least num_workers",
            stacklevel=4,  # the caller of fit
        )

    spec = TrainSpec(
        model=model,
        loss=loss,
        optimization=optimization,
        observation=observation,
        batch_size=estimator.getBatchSize(),
        epochs=estimator.getMaxIter(),
        seed=estimator.getSeed(),
        device=estimator.getDevice(),
        strategy=conf.strategy,
        conf=conf,
        world=world,
        classification=[(field.dtype, field.shape) for field in rows.targets] == [("int64", ())],
        attempt_id=secrets.token_hex(8),
        secret=secrets.token_bytes(32),
        driver_address=("", 0),
        rows=rows,
        augment=augment,
        labels=components.class_labels(loss, rows.targets),
        checkpoints=checkpoints,
    )
    module = driver_module(spec)
    data, rows = columns.training_rows(dataset, estimator, expressions, rows)  # the first Spark job
    spec = replace(spec, rows=rows)
    with RunLog.of(estimator) as log, ADMISSION.admit(world, slots.slots_now(spark), conf.turn_timeout):
        spec = replace(spec, model=model_for_tasks(spark, model), cache=make_cache(data, spec))
        (tensors, reports), restarts = restart.run_with_restarts(data, spec, log.log_progress)
        with keep_tensors(tensors):
            summary = summarize(reports, strategy.full_name(conf), world, restarts)
            log.log_history(summary["history"])
    with keep_tensors(tensors):
        show_line(conf.progress, f"sparkdl_comm fit: {summary.line()}")
        step_rows = spec.batch_size * optimization.accumulation_steps
        if summary["rows"] < step_rows:
            warnings.warn(
                f"batchSize={spec.batch_size} x accumulationSteps={optimization.accumulation_steps} is more than the"
                f" {summary['rows']} rows of the data: each epoch was one step on all rows",
                stacklevel=4,  # the caller of fit
            )
        shapes = [report.output_shape for report in reports if report.output_shape is not None]
        return TorchModel(
            load_trained(module, tensors),
            spec.classification,
            summary,
            shapes[0] if shapes else None,
            _factory(estimator.model),
            activation_of(loss),
            decode,
            collate_fn,
        )


def _factory(model: Any) -> Any:
    """Return the class or function that ``model`` is or, for a TorchModel, was made from; None for a module."""
    if isinstance(model, TorchModel):
        return model.factory
    return None if isinstance(model, torch.nn.Module) else model
