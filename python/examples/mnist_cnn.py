"""torch's MNIST example (mnist/main.py of pytorch/examples) on Spark executors.

    spark-submit --master 'local[2]' python/examples/mnist_cnn.py

The network, loss, optimizer, schedule and batch size are the example's. The images are the 1,797 handwritten digits that
scikit-learn ships, scaled to 28 x 28 and normalized as in the example; there is nothing to download.
"""

from __future__ import annotations

import functools

import pandas as pd
import torch
import torch.nn.functional as F
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.sql import SparkSession
from torch import nn
from torch.optim.lr_scheduler import StepLR

import sparkdl_comm
from sparkdl_comm import TorchEstimator
from sparkdl_comm.networks import digits_28x28


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, 1)
        self.conv2 = nn.Conv2d(32, 64, 3, 1)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv1(x)
        x = F.relu(x)
        x = self.conv2(x)
        x = F.relu(x)
        x = F.max_pool2d(x, 2)
        x = self.dropout1(x)
        x = torch.flatten(x, 1)
        x = self.fc1(x)
        x = F.relu(x)
        x = self.dropout2(x)
        x = self.fc2(x)
        return F.log_softmax(x, dim=1)


def main() -> None:
    spark = SparkSession.builder.config(map=sparkdl_comm.spark_conf()).getOrCreate()

    images, labels = digits_28x28()
    images = (images - 0.1307) / 0.3081
    table = pd.DataFrame({"image": list(images.numpy()), "label": labels.double().numpy()})
    train, test = spark.createDataFrame(table, "image array<float>, label double").randomSplit([0.8, 0.2], seed=1)

    estimator = TorchEstimator(
        model=Net,
        loss=F.nll_loss,
        optimizer=functools.partial(torch.optim.Adadelta, lr=1.0),
        lr_scheduler=functools.partial(StepLR, step_size=1, gamma=0.7),
        featuresCol="image",
        inputShapes=[[1, 28, 28]],
        batchSize=64,
        maxIter=3,
        seed=1,
    )
    model = estimator.fit(train)

    for row in model.history:
        print(f"epoch {row['epoch']}: loss {row['loss']:.4f}")
    accuracy = MulticlassClassificationEvaluator(metricName="accuracy").evaluate(model.transform(test))
    print(f"accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
