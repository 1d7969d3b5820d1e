"""A recommender with two inputs: factors of users and of movies, as every tutorial on collaborative filtering has it.

    spark-submit --master 'local[2]' python/examples/recommender.py

The data are the MovieLens sample that comes with Spark: 1,501 ratings, 1 to 5, of 100 movies by 30 users.
"""

from __future__ import annotations

import functools
from pathlib import Path

import pandas as pd
import pyspark
import torch
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from torch import nn

import sparkdl_comm
from sparkdl_comm import TorchEstimator

RATINGS = Path(pyspark.__file__).parent / "data/mllib/als/sample_movielens_ratings.txt"


class Recommender(nn.Module):
    """Rating of a movie by a user: the product of their factors, plus a bias for each of them."""

    def __init__(self, users: int, movies: int, factors: int) -> None:
        super().__init__()
        self.user, self.movie = nn.Embedding(users, factors), nn.Embedding(movies, factors)
        self.user_bias, self.movie_bias = nn.Embedding(users, 1), nn.Embedding(movies, 1)
        self.bias = nn.Parameter(torch.tensor(3.0))
        for embedding in (self.user, self.movie, self.user_bias, self.movie_bias):
            nn.init.normal_(embedding.weight, std=0.1)

    def forward(self, user: torch.Tensor, movie: torch.Tensor) -> torch.Tensor:
        product = (self.user(user) * self.movie(movie)).sum(1, keepdim=True)
        return (product + self.user_bias(user) + self.movie_bias(movie) + self.bias).squeeze(1)


def main() -> None:
    spark = SparkSession.builder.config(map=sparkdl_comm.spark_conf()).getOrCreate()

    table = pd.read_csv(RATINGS, sep="::", engine="python", names=["user", "movie", "rating", "time"])
    ratings = spark.createDataFrame(table, "user long, movie long, rating float, time long").drop("time")
    train, test = ratings.randomSplit([0.8, 0.2], seed=1)

    estimator = TorchEstimator(
        model=functools.partial(Recommender, int(table.user.max()) + 1, int(table.movie.max()) + 1, 4),
        loss="MSELoss",
        optimizer=functools.partial(torch.optim.AdamW, lr=0.02, weight_decay=0.3),
        featuresCols=["user", "movie"],
        labelCol="rating",
        batchSize=100,
        maxIter=30,
        seed=1,
    )
    model = estimator.fit(train)

    evaluator = RegressionEvaluator(labelCol="rating", metricName="rmse")
    mean = train.agg(F.mean("rating")).first()[0]
    always_the_mean = test.withColumn("prediction", F.lit(mean))
    print(
        f"rmse {evaluator.evaluate(model.transform(test)):.3f}, of the mean {evaluator.evaluate(always_the_mean):.3f}"
    )


if __name__ == "__main__":
    main()
