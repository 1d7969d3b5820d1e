"""A recipe trained by ``TorchEstimator.fit``, but for the Spark job: the ranks of a :class:`Crew` are in its place.

What is replaced: `run_with_restarts`, from the repartitioning to the job, and the counting of slots. Each trained model is
saved by ``TorchModel.save`` and loaded, and the loaded one transforms the recipe's rows by a Spark job.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from lab.settings import applied
from pyspark.sql import SparkSession

import sparkdl_comm.job.restart
import sparkdl_comm.job.slots
from sparkdl_comm import Callback, TorchEstimator, TorchModel
from sparkdl_comm.errors import CallbackError
from sparkdl_comm.job.launch import run_gang
from sparkdl_comm.job.summary import RankReport

from . import components, rows
from .crew import Crew
from .modules import build, main_output, seeded, takes_ids
from .recipe import Recipe

#: Seconds that a wait of the product may take; that all ranks may take.
WAIT, DEADLINE = 60, 200.0
#: How far predictions may be from the module's, beside the largest (or 1, if that is smaller): other batches, other rounding.
TRANSFORM_BOUND = 1e-4


class Thaw(Callback):
    """The stem is trained in every other epoch, from the second one on."""

    def on_epoch_begin(self, state: Any) -> None:
        state.module.stem.requires_grad_(state.epoch % 2 == 0)


class ThawAtEnd(Callback):
    """The same, by hooks of which only the first runs again after a restart."""

    def on_train_begin(self, state: Any) -> None:
        state.module.stem.requires_grad_(False)

    def on_epoch_end(self, state: Any) -> None:
        state.module.stem.requires_grad_(state.epoch % 2 == 1)


class Count(Callback):
    """Counts the steps by itself, over a stop too."""

    def __init__(self) -> None:
        self.steps = torch.zeros((), dtype=torch.int64)

    def on_step_end(self, state: Any) -> None:
        self.steps += 1
        if self.steps != state.step:
            raise RuntimeError(f"the callback counted {int(self.steps)} steps of {state.step}")

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


THAWS: dict[str, type[Callback]] = {"on_epoch_begin": Thaw, "on_train_begin": ThawAtEnd}


class Stop(Callback):
    """Breaks off after step ``at``, when the checkpoint of step ``after`` (0: there is none) is complete."""

    def __init__(self, folder: str, at: int, after: int) -> None:
        self.checkpoint, self.at = Path(folder, f"step-{after:08d}") if after else None, at

    def on_step_end(self, state: Any) -> None:
        if state.step == self.at:
            deadline = time.monotonic() + WAIT
            while self.checkpoint is not None and not self.checkpoint.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            raise RuntimeError("stop here")


@dataclass
class Fitted:
    """``state``: of the module. ``losses``: of the epochs. ``resumed``: steps that were done by the fit before. ``skipped``:
    steps that were, in fp16."""

    state: dict[str, Any] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    resumed: int = 0
    skipped: int = 0


class Fitter:
    """Fits recipes on one crew and one session."""

    def __init__(self, spark: SparkSession, crew: Crew) -> None:
        self._spark, self._crew = spark, crew

    def fit(self, recipe: Recipe) -> Fitted:
        """Raises what ``fit`` does."""
        ranks = rows.make(recipe)
        frame = rows.frame(self._spark, recipe, ranks)
        settings = {"timeout": f"{WAIT}s", "progress": "false", "logs": "false", **recipe.settings}
        with self._in_place_of_spark(recipe, ranks), applied(self._spark, settings), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if recipe.stop is None:
                model = self._estimator(recipe, callbacks=_callbacks(recipe)).fit(frame)
            else:
                folder = tempfile.mkdtemp(prefix="sparkdl-recipe-")
                try:
                    model = self._twice(recipe, folder, frame)
                finally:
                    shutil.rmtree(folder, ignore_errors=True)
        _check_transformed(recipe, _saved_and_loaded(recipe, model), frame, ranks)
        summary = model.summary or {}
        losses = [row["loss"] for row in summary["history"]]
        return Fitted(model.module.state_dict(), losses, summary["resumed_at"], summary.get("skipped_steps", 0))

    def _twice(self, recipe: Recipe, folder: str, frame: Any) -> Any:
        assert recipe.stop is not None
        more = {"checkpointDir": Path(folder).as_uri(), "checkpointInterval": recipe.every}
        try:
            after = (recipe.stop - 1) // recipe.every * recipe.every
            self._estimator(recipe, callbacks=[*_callbacks(recipe), Stop(folder, recipe.stop, after)], **more).fit(
                frame
            )
        except CallbackError as stopped:
            if "stop here" not in str(stopped):
                raise
        else:
            raise AssertionError(f"the callback did not stop the fit at step {recipe.stop}")
        model = self._estimator(recipe, callbacks=[*_callbacks(recipe), Callback()], resume=True, **more).fit(frame)
        assert model.summary["resumed_at"] == after, "the fit went on from another checkpoint"
        return model

    def _estimator(self, recipe: Recipe, **more: Any) -> TorchEstimator:
        features = ["features", "ids"] if takes_ids(recipe) else ["features"]
        if recipe.weights:
            more["weightCol"] = "weight"
        if recipe.schedule == "plateau":
            more["earlyStoppingMonitor"] = "loss"  # what it watches
        if recipe.best:
            more.update(earlyStoppingPatience=recipe.epochs + 1, earlyStoppingMonitor="loss")
        if recipe.clip is not None:
            more["maxGradNorm"] = recipe.clip
        return TorchEstimator(
            model=functools.partial(build, recipe) if recipe.given == "factory" else seeded(recipe),
            loss=components.loss(recipe),
            optimizer=components.optimizer(recipe),
            param_groups=components.groups(recipe),
            lr_scheduler=components.schedule(recipe),
            lrSchedulerInterval=recipe.interval,
            featuresCols=features,
            inputTypes=["sparse", None][: len(features)] if recipe.features == "sparse" else None,
            batchSize=recipe.batch,
            accumulationSteps=recipe.accumulation,
            maxIter=recipe.epochs,
            precision=recipe.precision,
            seed=recipe.seed,
            num_workers=recipe.world,
            strategy=recipe.strategy,
            **more,
        )

    @contextmanager
    def _in_place_of_spark(self, recipe: Recipe, ranks: list[rows.Rows]) -> Iterator[None]:
        batches = [rows.batches(recipe, part) for part in ranks]

        def run_once(frame: Any, spec: Any, watch: Any) -> Any:
            tensors, reports = run_gang(
                lambda listener: self._crew.run(
                    dataclasses.replace(spec, driver_address=listener.address), batches, DEADLINE
                ),
                spec,
                None,
                watch,
            )
            return (tensors, [RankReport.from_json(report) for report in reports]), 0

        with (
            mock.patch.object(sparkdl_comm.job.restart, "run_with_restarts", run_once),
            mock.patch.object(sparkdl_comm.job.slots, "check_slots", return_value=recipe.world),
            mock.patch.object(sparkdl_comm.job.slots, "slots_now", return_value=None),
        ):
            yield


def _callbacks(recipe: Recipe) -> list[Callback]:
    return [*([] if recipe.thaw is None else [THAWS[recipe.thaw]()]), *([Count()] if recipe.counts else [])]


def _saved_and_loaded(recipe: Recipe, model: TorchModel) -> TorchModel:
    """Fails if a saved model is another one when it is loaded."""
    with tempfile.TemporaryDirectory(prefix="sparkdl-recipe-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # load needs the factory, whose argument is no JSON
        path = Path(folder, "model").as_uri()
        model.save(path)
        loaded = TorchModel.load(path, model=functools.partial(build, recipe))
    state = loaded.module.state_dict()
    assert state.keys() == model.module.state_dict().keys()
    for name, value in model.module.state_dict().items():
        same = torch.equal(value, state[name]) if isinstance(value, torch.Tensor) else value == state[name]
        assert same, f"{name} is another one after it was saved and loaded"
    for name in ("summary", "classification", "output_shape", "activation"):
        before, after = (json.dumps(getattr(each, name)) for each in (model, loaded))  # NaN is not equal to NaN
        assert before == after, f"{name} is another one after it was saved and loaded"
    return loaded


def _check_transformed(recipe: Recipe, model: Any, frame: Any, ranks: list[rows.Rows]) -> None:
    """Fails if ``transform`` gives something else than the module."""
    every = [part.inputs(recipe, torch.arange(len(part.x))) for part in ranks]
    with torch.no_grad():
        output = model.module(*(torch.cat(column) for column in zip(*every, strict=True)))
    expected = main_output(output)
    column = "rawPrediction" if expected.shape[1] > 2 else "prediction"
    if recipe.returns not in ("tensor", "logits"):
        column = "prediction.*"
        if recipe.returns in ("pair", "dict"):  # the other one has rows, too
            expected = torch.cat([expected, output[1] if recipe.returns == "pair" else output["hidden"]], 1)
    rows_by_number = sorted(model.transform(frame).select("row", column).collect(), key=lambda row: row["row"])
    found = torch.tensor([np.concatenate(list(map(np.ravel, values))).tolist() for _, *values in rows_by_number])
    off = (found - expected).abs().max() / expected.abs().max().clamp(1.0)
    assert off < TRANSFORM_BOUND, f"transform gives {found.tolist()}, the module {expected.tolist()}"
