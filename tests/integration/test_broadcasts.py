"""The driver's disk after many transforms and fits: one broadcast for a model, none for a fit that has ended."""

import gc
import time
from pathlib import Path

import pytest
import torch

from sparkdl_comm import TorchModel
from sparkdl_comm.job.broadcasts import MODULE_BROADCASTS
from tests.integration.test_training import fit

#: Bytes of :class:`Wide`, about.
SIZE = 2 << 20


class Wide(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Linear(2, SIZE // 20), torch.nn.Linear(SIZE // 20, 2))


class Disk:
    """What PySpark has put on the driver's disk since the beginning of a test: others may leave files that end later."""

    def __init__(self, spark):
        self._spark, self._folder = spark, Path(spark.sparkContext._temp_dir)
        self._before = set(self._folder.iterdir())

    def used(self) -> int:
        """Bytes of its files."""
        return sum(path.stat().st_size for path in set(self._folder.iterdir()) - self._before)

    def settled(self, expected: int) -> int:
        """The same, when all that nobody uses is gone; the JVM takes its time until ``expected``."""
        deadline = time.monotonic() + 30
        while True:
            gc.collect()
            self._spark._jvm.System.gc()
            MODULE_BROADCASTS.sweep(self._spark.sparkContext)
            if self.used() <= expected or time.monotonic() > deadline:
                return self.used()
            time.sleep(0.2)


def rows(spark):
    return spark.createDataFrame([([n / 8, 1.0], n % 2) for n in range(8)], "features array<float>, label long")


@pytest.mark.slow
def test_many_transforms_have_one_broadcast(spark):
    disk, data = Disk(spark), rows(spark).select("features").coalesce(1)
    model = TorchModel(Wide(), False, output_shape=[2])
    lazy = [model.transform(data) for _ in range(4)]
    one = disk.used()
    assert SIZE <= one < 1.1 * SIZE
    first = [row["prediction"] for row in lazy[0].collect()]
    with torch.no_grad():
        model.module[1].bias += 100.0
    changed = model.transform(data)
    assert disk.used() > 1.5 * one
    assert [row["prediction"] for row in lazy[1].collect()] == first, "as the model was then"
    assert all(row["prediction"][0] > first[0][0] + 50 for row in changed.collect())
    lazy[3].createOrReplaceTempView("scored")
    del lazy, model
    assert disk.settled(2 * one) > 1.5 * one
    assert [row["prediction"] for row in spark.table("scored").collect()] == first, "a view that only the JVM knows"
    spark.catalog.dropTempView("scored")
    del changed
    assert disk.settled(0) == 0


@pytest.mark.slow
def test_a_fit_leaves_nothing(spark):
    module, data = Wide(), rows(spark)
    disk = Disk(spark)
    for _ in range(2):
        fit(data, model=module, epochs=1, strategy="gloo")
    assert disk.used() == 0
