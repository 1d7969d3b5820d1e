"""A Spark Connect client, without a JVM: `connect_client.py sc://HOST:PORT RANKS FOLDER`. Prints one line of JSON."""

import functools
import json
import sys

import torch
from pyspark.sql import SparkSession

from sparkdl_comm import CommDistributor, TorchEstimator, TorchModel
from sparkdl_comm.errors import PersistenceError, RankFailedError, SlotsError
from tests.integration import training_functions as functions
from tests.integration.nets import Large


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
    print("REPORT " + json.dumps(report))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
