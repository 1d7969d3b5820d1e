"""TorchEstimator: its Params, and what fit refuses before it touches an executor."""

import functools
import threading
import warnings
from typing import Any

import pandas as pd
import pytest
import torch
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sparkdl_comm import TorchEstimator, TorchModel, plugin
from sparkdl_comm.errors import ConfError, InputError, ModelError, PluginError, ResultError, SlotsError
from sparkdl_comm.job import session
from sparkdl_comm.job.summary import RankReport
from tests.nets import Sum, TwoClasses
from tests.optimizers import Lars


@pytest.fixture
def df(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([([0.0, 1.0], 0), ([2.0, 1.0], 1)], "features array<double>, label int")


def estimator(**changes: Any) -> TorchEstimator:
    return TorchEstimator(**{"model": TwoClasses, "loss": "CrossEntropyLoss", "strategy": "gloo", **changes})


def test_params() -> None:
    plain = TorchEstimator()
    assert (plain.getFeaturesCol(), plain.getLabelCol()) == ("features", "label")
    assert plain.getPredictionCol() == "prediction"
    assert (plain.getBatchSize(), plain.getMaxIter(), plain.getSeed(), plain.getDevice()) == (32, 1, 0, "cpu")
    assert (plain.getNumWorkers(), plain.getStrategy()) == (None, None)
    assert (plain.getModel(), plain.getLoss(), plain.getOptimizer()) == (None, None, None)
    camel = TorchEstimator(featuresCol="f", labelCol="l", predictionCol="p", batchSize=8, maxIter=3, num_workers=2)
    snake = TorchEstimator(features_col="f", label_col="l", prediction_col="p", batch_size=8, max_iter=3, num_workers=2)
    for name in ("featuresCol", "labelCol", "predictionCol", "batchSize", "maxIter", "num_workers"):
        assert camel.getOrDefault(name) == snake.getOrDefault(name)
    assert "rows per batch over all ranks" in plain.explainParams()


def test_setters_return_the_estimator() -> None:
    made = TorchEstimator()
    optimizer = functools.partial(torch.optim.Adam, lr=0.1)
    same = made.setModel(TwoClasses).setLoss("MSELoss").setOptimizer(optimizer)
    same = same.setFeaturesCol("f").setLabelCol("l").setPredictionCol("p").setBatchSize(1).setMaxIter(2)
    same = (
        same.setSeed(3)
        .setNumWorkers(4)
        .setDevice("cuda")
        .setStrategy("gloo")
        .setCompression("none")
        .setParams(batch_size=5)
    )
    assert same is made
    assert (made.getBatchSize(), made.getMaxIter(), made.getSeed(), made.getNumWorkers()) == (5, 2, 3, 4)
    assert (made.getDevice(), made.getStrategy(), made.getLoss()) == ("cuda", "gloo", "MSELoss")


def test_keywords_refused() -> None:
    with pytest.raises(TypeError, match="unknown parameter 'batchsize'; did you mean 'batch_size'"):
        TorchEstimator(batchsize=3)  # type: ignore[call-arg]
    for other, ours in (
        ("epochs", "maxIter"),
        ("num_epochs", "maxIter"),
        ("workers", "num_workers"),
        ("num_processes", "num_workers"),
        ("loss_fn", "loss"),
        ("scheduler", "lr_scheduler"),
        ("momentum", "optimizer"),
        ("patience", "earlyStoppingPatience"),
    ):
        with pytest.raises(TypeError, match=f"unknown parameter '{other}'; did you mean '{ours}'"):
            TorchEstimator(**{other: 3})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="did you mean '(learningRate|optimizer)'"):
        TorchEstimator(lr=0.1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="batchSize given twice"):
        TorchEstimator(batchSize=3, batch_size=3)
    with pytest.raises(TypeError):
        TorchEstimator(batchSize="many")  # type: ignore[arg-type]


def test_one_column_or_several() -> None:
    made = TorchEstimator(featuresCol=["a", "b"], label_col=["y", "z"], inputShapes=[1, 2], inputTypes="int64")
    assert (made.getFeaturesCols(), made.getLabelCols()) == (["a", "b"], ["y", "z"])
    assert (made.getInputShapes(), made.getInputTypes()) == ([[1, 2]], ["int64"])
    assert (made.feature_columns(), made.label_columns()) == (["a", "b"], ["y", "z"])
    made.setFeaturesCol("a").setLabelCol("y")
    assert (made.feature_columns(), made.label_columns()) == (["a"], ["y"])
    with pytest.raises(ConfError, match=r"featuresCol='a' and featuresCols=\['b'\]"):
        made.copy({made.featuresCols: ["b"]})._check_params()


def test_learning_rate() -> None:
    made = TorchEstimator(optimizer=functools.partial(torch.optim.Adam, lr=1.0, eps=0.5), learning_rate=0.25)
    for tried in (0.25, 0.5):
        factory = made.copy({made.learningRate: tried}).check_optimization().optimizer
        assert (factory.func, factory.keywords) == (torch.optim.Adam, {"lr": tried, "eps": 0.5})
    assert made.optimizer.keywords["lr"] == 1.0
    assert TorchEstimator().setLearningRate(0.5).check_optimization().optimizer.keywords == {"lr": 0.5}
    groups = [
        {"params": [torch.nn.Parameter(torch.zeros(1))]},
        {"params": [torch.nn.Parameter(torch.zeros(1))], "lr": 3.0},
    ]
    for optimizer in (torch.optim.SGD, lambda params, lr: torch.optim.SGD(params, lr), torch.optim.RAdam):
        tuned = TorchEstimator(optimizer=optimizer, learningRate=0.5).check_optimization().optimizer(groups)
        assert [group["lr"] for group in tuned.param_groups] == [0.5, 3.0]


def test_copy() -> None:
    module = TwoClasses()
    made = TorchEstimator(model=module, loss="MSELoss")
    other = made.copy({made.maxIter: 7})
    assert (other.uid, other.getModel() is module, other.getMaxIter(), made.getMaxIter()) == (made.uid, True, 7, 1)
    other.setModel(Sum)
    assert made.getModel() is module


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"batchSize": 0}, ConfError, "batchSize=0: must be at least 1"),
        ({"maxIter": -1}, ConfError, "maxIter=-1"),
        ({"num_workers": 0}, ConfError, "num_workers=0"),
        ({"accumulationSteps": 0}, ConfError, "accumulationSteps=0: must be at least 1"),
        ({"maxGradNorm": -1.0}, ConfError, "maxGradNorm=-1.0: must be more than 0"),
        ({"learningRate": 0.0}, ConfError, "learningRate=0.0: must be more than 0"),
        (
            {"learningRate": 0.1, "optimizer": lambda params: torch.optim.SGD(params)},
            ConfError,
            r"learningRate=0.1: the optimizer \(of type builtins.function\) takes no lr; give a class",
        ),
        (
            {"lr_scheduler": functools.partial(torch.optim.lr_scheduler.ReduceLROnPlateau, patience=1)},
            ConfError,
            "earlyStoppingMonitor='val_loss' needs validation rows; .*or earlyStoppingMonitor='loss'",
        ),
        ({"precision": "fp8"}, ConfError, "precision='fp8': must be fp32, bf16 or fp16"),
        ({"lrSchedulerInterval": "day"}, ConfError, "lrSchedulerInterval='day': must be epoch or step"),
        ({"earlyStoppingPatience": 0}, ConfError, "earlyStoppingPatience=0"),
        ({"earlyStoppingMode": "best"}, ConfError, "earlyStoppingMode='best': must be min or max"),
        ({"earlyStoppingMonitor": "f1"}, ConfError, "earlyStoppingMonitor='f1': must be one of loss, val_loss"),
        ({"earlyStoppingMinDelta": -0.1}, ConfError, "earlyStoppingMinDelta=-0.1"),
        ({"lr_scheduler": "cosine"}, ModelError, "lr_scheduler is of type builtins.str"),
        ({"param_groups": [{}]}, ModelError, "param_groups is of type builtins.list"),
        ({"metrics": [len]}, ModelError, "metrics: give a dict"),
        ({"metrics": {"x": len}}, ConfError, r"metrics \['x'\] needs validation rows; set validationIndicatorCol or"),
        ({"earlyStoppingPatience": 1}, ConfError, "earlyStoppingMonitor='val_loss' needs validation rows"),
        ({"validationFraction": 1.0}, ConfError, "validationFraction=1.0: must be between 0 and 1"),
        ({"validationFraction": 0.1, "validationIndicatorCol": "v"}, ConfError, "set one of them"),
        (
            {"validationIndicatorCol": "label"},
            InputError,
            "validationIndicatorCol: column 'label' is int; must be bool",
        ),
        ({"validationIndicatorCol": "x"}, InputError, "validationIndicatorCol: there is no column 'x'"),
        ({"decode": "jpeg"}, ModelError, "decode is of type builtins.str; give a function"),
        ({"augment": 0.5}, ModelError, "augment is of type builtins.float; give a function"),
        ({"collate_fn": "pad"}, ModelError, "collate_fn is of type builtins.str; give a function, .*pad_sequence"),
        (
            {"collate_fn": list, "inputShapes": [2]},
            InputError,
            "collate_fn has no column to work on: featuresCol features has .* Leave collate_fn out",
        ),
        ({"metrics": {"lr": len}}, ModelError, "metrics: lr is a column of the history"),
        ({"callbacks": [len]}, ModelError, "callbacks: .*sparkdl_comm.Callback"),
        ({"device": "tpu"}, ConfError, "device='tpu': must be cpu or cuda"),
        ({"strategy": "psx"}, ConfError, "psx.*gloo"),
        ({"compression": "topk:2"}, ConfError, r"compression='topk:2': must be none, or .*at most 1"),
        ({"compression": "topk:0.1"}, ConfError, "strategy gloo .*sends whole gradients"),
        ({"featuresCol": "x"}, InputError, "featuresCol: there is no column 'x'; the columns are features, label"),
        ({"labelCol": "x"}, InputError, "labelCol: there is no column 'x'"),
        ({"featuresCols": ["features", "x"]}, InputError, "featuresCols: there is no column 'x'"),
        ({"featuresCols": ["features", "features"]}, ConfError, "featuresCols=.*none of them twice"),
        ({"inputShapes": [[1], [1]]}, ConfError, "inputShapes=.*one entry for each of the feature columns"),
        ({"inputShapes": [-1, 2]}, ConfError, r"inputShapes: \[-1, 2\]"),
        ({"inputTypes": ["bfloat16"]}, ConfError, "inputTypes: 'bfloat16' must be one of float32"),
        ({"weightCol": "features"}, InputError, "weightCol: column 'features' is array<double>; accepted are numbers"),
        ({"model": None}, ModelError, "model is not given"),
        ({"model": torch.nn.ReLU()}, ModelError, "ReLU has no trainable parameters"),
        (
            {"model": torch.nn.Linear(2, 2).double()},
            ModelError,
            r"parameter weight is torch.float64\. .*model\.float\(\)",
        ),
        ({"model": torch.nn.LazyLinear(2)}, ModelError, "parameter weight has no shape yet"),
        (
            {"model": torch.nn.Linear},
            ModelError,
            "Linear.* missing a required argument: 'in_features'.*functools.partial",
        ),
        ({"loss": "L3Loss"}, ModelError, "did you mean L1Loss"),
        ({"optimizer": 0.1}, ModelError, "optimizer is of type builtins.float"),
        (
            {"optimizer": Lars, "strategy": "ps"},
            ModelError,
            "optimizer Lars is not elementwise.*Set ring without that loop",
        ),
        ({"optimizer": torch.optim.LBFGS, "strategy": "ps"}, ModelError, "LBFGS: its step wants a closure"),
        ({"model": functools.partial(Sum, factor=threading.Lock())}, ModelError, "model.factor"),
        ({"num_workers": 99}, SlotsError, "num_workers=99.* 3 slots"),
    ],
)
def test_refused(df: DataFrame, changes: dict[str, Any], error: type[Exception], message: str) -> None:
    store = df.sparkSession.sparkContext._jsc.sc().statusStore()
    jobs = store.jobsList(None).size()
    with pytest.raises(error, match=message):
        estimator(**changes).fit(df)
    assert store.jobsList(None).size() == jobs, "no executor was touched"


def test_label_of_the_wrong_type(df: DataFrame) -> None:
    with pytest.raises(InputError, match="column 'label' is string"):
        estimator().fit(df.withColumn("label", F.lit("a")))
    with pytest.raises(InputError, match="2 columns named 'label'"):
        estimator().fit(df.select("features", "label", F.lit(1).alias("label")))


@pytest.mark.parametrize("data", [pd.DataFrame({"features": [[0.0, 1.0]], "label": [0]}), [([0.0, 1.0], 0)], None])
def test_what_is_no_dataframe(data: Any) -> None:
    for use in (estimator().fit, TorchModel(TwoClasses(), True).transform):
        with pytest.raises(InputError, match=r"a Spark DataFrame is needed, not .*spark\.createDataFrame"):
            use(data)


def test_unknown_key_in_the_session(df: DataFrame) -> None:
    conf = df.sparkSession.conf
    conf.set("spark.sparkdl.comm.timeOut", "3s")
    try:
        with pytest.raises(ConfError, match=r"timeOut; did you mean spark\.sparkdl\.comm\.timeout"):
            estimator().fit(df)
    finally:
        conf.unset("spark.sparkdl.comm.timeOut")


def test_plugin_only_where_needed(df: DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "application_conf", lambda spark: {"spark.task.cpus": "1"})
    with pytest.raises(PluginError, match="spark.plugins is not set"):
        estimator(strategy="ps").fit(df)
    with pytest.raises(SlotsError):
        estimator(strategy="gloo", num_workers=99).fit(df)
    monkeypatch.setattr(session, "application_conf", lambda spark: {"spark.dynamicAllocation.enabled": "true"})
    with pytest.raises(ConfError, match="dynamicAllocation"):
        estimator(strategy="ps").fit(df)


def test_plugin_of_the_running_session(spark: SparkSession) -> None:
    if plugin.CLASS not in session.application_conf(spark).get("spark.plugins", ""):
        pytest.skip("no plugin jar has been built")
    session.check_plugin(spark)
    spark.conf.set("spark.plugins.of.the.session", "x")
    assert session.session_conf(spark)["spark.plugins.of.the.session"] == "x"
    assert "spark.plugins.of.the.session" not in session.application_conf(spark)
    spark.conf.unset("spark.plugins.of.the.session")


class LaunchedError(Exception):
    """The ranks would start now."""


@pytest.mark.parametrize("batch", [2, 3])
def test_ranks_without_rows_are_told_of(df: DataFrame, monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    def launch(*args: Any) -> None:
        raise LaunchedError

    monkeypatch.setattr("sparkdl_comm.job.restart.run_with_restarts", launch)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with pytest.raises(LaunchedError):
            estimator(batchSize=batch, num_workers=3).fit(df)
    mine = [str(warning.message) for warning in told if "num_workers" in str(warning.message)]
    assert len(mine) == (batch < 3)
    if mine:
        assert mine[0].startswith("batchSize=2 is less than num_workers=3. ")
        assert "1 of them have no rows" in mine[0]


def test_a_warning_that_raises_after_training_has_the_tensors(df: DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a batch that is larger than the data, where the user has warnings raised."""
    tensors = {name: torch.ones_like(tensor) for name, tensor in TwoClasses().state_dict().items()}
    report = RankReport(0, 1, 1.0, {}, {}, [], 2, "", None)
    monkeypatch.setattr("sparkdl_comm.job.restart.run_with_restarts", lambda *_: ((tensors, [report]), 0))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        with pytest.raises(ResultError, match="training ended, and then UserWarning: batchSize=8") as caught:
            estimator(batchSize=8, num_workers=1).fit(df)
    assert caught.value.state_dict == tensors
