"""A Spark Connect client, without a JVM: `connect_client.py sc://HOST:PORT RANKS FOLDER`. Prints one line of JSON."""

import functools
import json
import os
import signal
import sys
from collections.abc import Mapping

import numpy as np
import torch
from pyspark.sql import DataFrame, SparkSession

from sparkdl_comm import CommDistributor, TorchEstimator, TorchModel
from sparkdl_comm.errors import PersistenceError, RankFailedError, SlotsError
from sparkdl_comm.report.loggers import LoggedRun, RunLogger
from tests.integration import training_functions as functions
from tests.integration.nets import Large, floats


def main(remote: str, ranks: str, folder: str) -> None:
    spark = SparkSession.builder.remote(remote).getOrCreate()
    world = int(ranks)
    random = torch.Generator().manual_seed(1)
    rows = [(torch.randn(28, generator=random).tolist(), index % 10) for index in range(60)]
    data = spark.createDataFrame(rows, "features array<float>, label int")
    report: dict = {"spark": spark.version, "losses": {}, "norms": {}, "scored": {}}
    for strategy in ("ps", "gloo"):
        estimator = TorchEstimator(
            model=Large,
            loss="CrossEntropyLoss",
            optimizer=functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9),
            batchSize=60,
            maxIter=5,
            strategy=strategy,
            seed=3,
        )
        model = estimator.fit(data)
        assert model.summary["world"] == world
        report["losses"][strategy] = [row["loss"] for row in model.history]
        report["norms"][strategy] = [tensor.double().norm().item() for tensor in model.module.state_dict().values()]
        scored = model.transform(data)
        report["scored"][strategy] = int(scored.where("prediction = label").count())  # a numpy integer
    saved = f"{folder}/model"
    model.write().save(saved)
    model.write().overwrite().save(saved)
    loaded = TorchModel.load(saved)
    assert all(torch.equal(a, b) for a, b in zip(loaded.module.parameters(), model.module.parameters(), strict=True))
    report["loaded"] = int(loaded.transform(data).where("prediction = label").count())
    report["refused"] = []
    for refused in (lambda: model.write().save(saved), lambda: TorchModel.load(f"{folder}/nothing")):
        try:
            refused()
        except PersistenceError as error:
            report["refused"].append(str(error))
    row = scored.first()
    report |= {"trained_on": trained_on(model, data, saved), "kept": kept(data, f"{folder}/estimator")}
    report["decoded"] = decoded(spark, data)
    model.export_torchscript(f"{folder}/model.pt", torch.zeros(1, 28))
    model.export_onnx(f"{folder}/model.onnx", torch.zeros(1, 28))
    report["columns"] = scored.columns
    report["probability"] = float(sum(row["probability"].toArray()))
    report["returned"] = CommDistributor(num_workers=world).run(functions.train_ddp, 1)[0]
    try:
        CommDistributor(num_workers=world).run(functions.fails, rank=1)
    except RankFailedError as error:
        report["failed"] = [error.rank, error.error, error.error_message, error.log_tail.splitlines()[-1]]
    try:
        TorchEstimator(model=Large, loss="CrossEntropyLoss", num_workers=world + 1, strategy="gloo").fit(data)
    except SlotsError as error:
        report["slots"] = str(error)
    report["interrupted"] = interrupted(data, world)
    print("REPORT " + json.dumps(report))
    spark.stop()


class Interrupt(RunLogger, LoggedRun):
    """Ctrl-C, once, as soon as rank 0 tells of its progress."""

    sent = False

    def start(self, name: str, params: Mapping[str, str]) -> LoggedRun:
        return self

    def log(self, values: Mapping[str, float], step: int) -> None:
        if not self.sent:
            self.sent = True
            os.kill(os.getpid(), signal.SIGINT)

    def close(self, failed: bool) -> None:
        pass


def interrupted(data: DataFrame, world: int) -> int:
    """What rank 0 returns of a run that takes the slots of a fit that was interrupted."""
    endless = TorchEstimator(model=Large, loss="CrossEntropyLoss", maxIter=1_000_000, loggers=[Interrupt()])
    try:
        endless.fit(data)
    except KeyboardInterrupt:
        return CommDistributor(num_workers=world).run(functions.train_ddp, 1)[0]
    raise AssertionError("there was no KeyboardInterrupt")


def trained_on(model: TorchModel, data: DataFrame, saved: str) -> list[float]:
    """Losses of a model that is trained further, as it is and loaded; the modules are instances."""
    models = (model, TorchModel.load(saved), model.to_torch())
    fits = [TorchEstimator(model=each, loss="CrossEntropyLoss", batchSize=60, seed=3).fit(data) for each in models]
    return [fit.history[0]["loss"] for fit in fits]


def kept(data: DataFrame, path: str) -> list[float]:
    """The losses of an estimator, and of what is loaded after it was saved."""
    estimator = TorchEstimator(model=Large, loss="CrossEntropyLoss", batchSize=20, maxIter=2, num_workers=2)
    estimator.save(path)
    return [each.fit(data).history[-1]["loss"] for each in (estimator, TorchEstimator.load(path))]


def decoded(spark: SparkSession, data: DataFrame) -> list[float]:
    """The loss of a model of encoded features, and how many predictions are those of their numbers."""
    rows = [(np.float32(row["features"]).tobytes(), row["features"], row["label"]) for row in data.collect()]
    encoded = spark.createDataFrame(rows, "bytes binary, features array<float>, label int")
    model = TorchEstimator(model=Large, loss="CrossEntropyLoss", decode=floats, featuresCol="bytes").fit(encoded)
    scored = model.transform(encoded).withColumnRenamed("prediction", "of_bytes").drop("rawPrediction", "probability")
    both = model.setFeaturesCol("features").transform(scored)
    return [model.history[0]["loss"], float(both.where("prediction = of_bytes").count())]


if __name__ == "__main__":
    main(*sys.argv[1:])
