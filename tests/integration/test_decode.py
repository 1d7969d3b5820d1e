"""Encoded columns, on three executors: trained on, scored, saved and loaded."""

import numpy as np
import pytest

from sparkdl_comm import TorchModel
from sparkdl_comm.errors import InputError, PersistenceError
from tests.integration.nets import floats
from tests.integration.test_training import distance, fit, frame, table


def encoded(spark):
    data = table()
    data["features"] = [row.tobytes() for row in data["features"]]
    return spark.createDataFrame(data, "features binary, label long")


def test_decoded_columns_are_arrays(spark, tmp_path):
    data = encoded(spark)
    model = fit(data, epochs=3, decode=floats)
    assert distance(model.module.state_dict(), fit(frame(spark), epochs=3).module.state_dict()) <= 1e-6
    scored = model.transform(data).toPandas()
    assert list(scored["prediction"]) == list(model.copy().transform(frame(spark)).toPandas()["prediction"])
    assert isinstance(scored["features"][0], (bytes, bytearray)), "the column stays as it was"
    model.save(str(tmp_path / "model"))
    loaded = TorchModel.load(str(tmp_path / "model"))
    assert list(loaded.transform(data).toPandas()["prediction"]) == list(scored["prediction"])


@pytest.mark.slow
def test_a_decode_that_has_no_name_must_be_given_again(spark, tmp_path):
    def local(data):
        return np.frombuffer(data, np.float32)

    data = encoded(spark)
    model = fit(data, epochs=1, decode=local)
    model.save(str(tmp_path / "model"))
    with pytest.raises(PersistenceError, match=r" load\(path, decode=\.\.\.\)"):
        TorchModel.load(str(tmp_path / "model"))
    loaded = TorchModel.load(str(tmp_path / "model"), decode=local)
    assert list(loaded.transform(data).toPandas()["prediction"]) == list(model.transform(data).toPandas()["prediction"])


@pytest.mark.slow
def test_refused(spark):
    with pytest.raises(InputError, match="column 'features' is binary; accepted are .*decode="):
        fit(encoded(spark))
    with pytest.raises(InputError, match="decode of featuresCol 'features' .*arrays of different (shapes|lengths)"):
        fit(encoded(spark), decode=lambda data: np.zeros(1 + data[0] % 2))
    with pytest.raises(InputError, match="decode of featuresCol 'features' raised ValueError"):
        fit(encoded(spark), decode=lambda data: np.frombuffer(data[1:], np.float32))
