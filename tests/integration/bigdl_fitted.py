"""A program of test_bigdl.py: BigDLEstimator fits LeNet-5 to a DataFrame of digits.

    python bigdl_fitted.py FOLDER

Writes FOLDER/found.json: the ``accuracy`` of the fitted model on its rows, that of the model that was saved and ``loaded``,
and what is said of a column that is not there (``said``), of a model of ``doubles``, of a saved one that is ``damaged``, and
of batches that have no equal parts, of the estimator (``batchSize``) and of the optimizer (``batch_size``).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.applications import local_cluster
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sparkdl_comm.bigdl import installation
from sparkdl_comm.bigdl.installation import start_engine
from sparkdl_comm.errors import ModelError, PersistenceError
from sparkdl_comm.networks import digits_28x28

EXECUTORS = 2
EXECUTOR_MIB = 1536
ROWS = 512


def accuracy(model: Any, rows: DataFrame) -> float:
    scored = model.transform(rows)
    # BigDL counts classes from 1, as Spark does positions.
    best = F.expr("array_position(prediction, array_max(prediction))")
    return float(scored.agg(F.avg((best == F.col("label")).cast("double"))).first()[0])


def refusal(what: Callable[[], Any]) -> str:
    try:
        what()
    except (ModelError, PersistenceError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main() -> None:
    folder = Path(sys.argv[1])
    conf = installation.spark_conf() | {"spark.sparkdl.comm.timeout": "30s"}
    spark = local_cluster("bigdl_fitted", EXECUTORS, EXECUTOR_MIB, conf)
    start_engine(spark.sparkContext, EXECUTORS, 1)

    from bigdl.dllib.nn.criterion import ClassNLLCriterion
    from bigdl.dllib.nn.layer import Linear
    from bigdl.dllib.optim.optimizer import Adam, MaxEpoch

    from sparkdl_comm.bigdl import BigDLEstimator, BigDLModel, IBatchOptimizer
    from sparkdl_comm.bigdl.networks import lenet5

    pixels, labels = (tensor.numpy() for tensor in digits_28x28())
    rows = spark.createDataFrame(
        [(pixels[row].ravel().tolist(), float(labels[row] + 1)) for row in range(ROWS)],
        "features array<float>, label double",
    ).cache()
    estimator = BigDLEstimator(
        model=lenet5(),
        criterion=ClassNLLCriterion(),
        featureSize=[28, 28],
        optimMethod=Adam(learningrate=0.002),
        batchSize=64,
        maxIter=8,
    )
    model = estimator.fit(rows)
    saved = str(folder / "model")
    model.save(saved)
    loaded = BigDLModel.load(saved)
    found = {"accuracy": accuracy(model, rows), "loaded": accuracy(loaded, rows)}
    found["said"] = refusal(lambda: estimator.copy({estimator.labelCol: "target"}).fit(rows))
    doubles = Linear(784, 10, bigdl_type="double")
    given = {"model": doubles, "criterion": ClassNLLCriterion(), "featureSize": [784]}
    found["doubles"] = refusal(lambda: BigDLEstimator(**given).fit(rows))
    found["batchSize"] = refusal(lambda: estimator.copy({estimator.batchSize: 63}).fit(rows))
    nobody = spark.sparkContext.emptyRDD()
    found["batch_size"] = refusal(lambda: IBatchOptimizer(lenet5(), nobody, ClassNLLCriterion(), MaxEpoch(1), 31))
    next(Path(saved).glob("model.bigdl")).write_bytes(b"something else")
    found["damaged"] = refusal(lambda: BigDLModel.load(saved))
    (folder / "found.json").write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
