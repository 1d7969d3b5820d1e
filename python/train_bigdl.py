"""Train BigDL's LeNet-5 on scikit-learn's handwritten digits with IBatchOptimizer, on Spark executors.

`make demo-bigdl` runs this program.

    PYTHONPATH=build/bigdl python python/train_bigdl.py --executors 3 --output DIR

Without a master in Spark's conf it starts local-cluster here. Submitted to a cluster, the application needs the settings of
``sparkdl_comm.bigdl.installation.spark_conf()``. The program trains, saves the model in BigDL's format, loads it again,
and scores the test set with it. It prints a summary and writes it to DIR/summary.json.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from benchmarks.applications import local_cluster
from demo.digits import parser, split, tell
from pyspark import SparkConf, SparkContext

from sparkdl_comm.bigdl import installation
from sparkdl_comm.bigdl.installation import start_engine
from sparkdl_comm.networks import digits_28x28

_EXECUTOR_MIB = 2048


def samples(sc: SparkContext) -> tuple[Any, Any]:
    """Return the training set and the test set, RDDs of BigDL's ``Sample``. BigDL counts classes from 1."""
    from bigdl.dllib.utils.common import Sample

    pixels, labels = (tensor.numpy() for tensor in digits_28x28())

    def rows(chosen: np.ndarray) -> Any:
        return sc.parallelize([Sample.from_ndarray(pixels[row], np.array(labels[row] + 1.0)) for row in chosen], 1)

    train, test = split(len(labels))
    return rows(train), rows(test)


def train(sc: SparkContext, options: argparse.Namespace) -> None:
    from bigdl.dllib.nn.criterion import ClassNLLCriterion
    from bigdl.dllib.nn.layer import Model
    from bigdl.dllib.optim.optimizer import Adam, MaxEpoch, Top1Accuracy

    from sparkdl_comm.bigdl.networks import lenet5
    from sparkdl_comm.bigdl.optimizer import IBatchOptimizer

    batch = options.rows * options.executors
    learn, test = samples(sc)
    optimizer = IBatchOptimizer(
        lenet5(),
        learn,
        ClassNLLCriterion(),
        MaxEpoch(options.epochs),
        batch,
        Adam(learningrate=options.learning_rate),
    )
    trained = optimizer.optimize()
    saved = options.output / "model"
    saved.mkdir(parents=True, exist_ok=True)
    trained.saveModel(str(saved / "model.bigdl"), str(saved / "model.bin"), True)
    again = Model.loadModel(str(saved / "model.bigdl"), str(saved / "model.bin"))
    accuracy = again.evaluate(test, batch, [Top1Accuracy()])[0].result
    parameters = sum(array.size for array in trained.get_weights())
    network = f"BigDL's LeNet-5, {parameters:,} parameters, IBatchOptimizer"
    tell(network, optimizer.summary, accuracy, sc.version, options.output)


def main() -> None:
    options_parser = parser(__doc__)
    options_parser.add_argument("--executors", type=int, required=True, help="of the application, with a core each")
    options_parser.add_argument("--rows", type=int, default=32, help="of each executor in an iteration")
    options = options_parser.parse_args()
    given = {key: value for key, value in SparkConf().getAll() if key == "spark.master"}
    spark = local_cluster(
        "sparkdl_comm demo, BigDL", options.executors, _EXECUTOR_MIB, installation.spark_conf() | given
    )
    start_engine(spark.sparkContext, options.executors, 1)
    train(spark.sparkContext, options)
    spark.stop()


if __name__ == "__main__":
    main()
