"""What only ranks can find out about rows, model and loss: typed errors, on three executors."""

import pytest
import torch
from pyspark.sql import functions as F

from sparkdl_comm.errors import InputError, ModelError
from tests.integration.nets import Line, Pictures, Small
from tests.integration.test_training import ROWS, fit, frame
from tests.slow import slow


def short(error: pytest.ExceptionInfo[BaseException]) -> bool:
    """Whether it says what is wrong and no more."""
    return len(str(error.value).splitlines()) <= 3


def test_labels_that_are_none_of_the_classes(spark):
    data = frame(spark).withColumn("label", F.expr("if(label = 3, 10, label)"))
    with pytest.raises(
        InputError,
        match=r"[1-9]\d* of \d+ rows of rank \d have a label outside of 0 to 9 in labelCol 'label'.* 10 classes",
    ) as error:
        fit(data)
    assert short(error)


@pytest.mark.slow
def test_labels_that_are_no_probabilities(spark):
    with pytest.raises(
        InputError,
        match=r"[1-9]\d* of \d+ rows have a value outside of 0 to 1, which the loss takes, in labelCol 'label', such as 2\.",
    ) as error:
        fit(frame(spark).where("label < 3"), model=Line, loss="BCEWithLogitsLoss")
    assert short(error)


def test_features_that_the_first_layer_does_not_take(spark):
    few = frame(spark).withColumn("features", F.slice("features", 1, 20))
    with pytest.raises(
        ModelError,
        match=r"a row of featuresCol 'features' is \[20\], and the model's first layer, 0 \(Linear\(in_features=28",
    ) as error:
        fit(few)
    assert short(error)
    with pytest.raises(ModelError, match=r"takes \[1, height, width\]: change the layer, or set inputShapes"):
        fit(frame(spark), model=Pictures)


@pytest.mark.slow
def test_arrays_of_different_lengths(spark):
    """The error, and its advice."""
    ragged = frame(spark).withColumn("features", F.expr("slice(features, 1, 20 + label)"))
    with pytest.raises(
        InputError,
        match=r"different lengths in 90 rows: 20, 21, .* F\.slice\(F\.concat\(column, F\.array_repeat.* collate_fn",
    ):
        fit(ragged)
    column, n = "features", 28
    padded = F.slice(F.concat(column, F.array_repeat(F.lit(0), n)), 1, n)
    assert fit(ragged.withColumn(column, padded), epochs=1).summary["rows"] == ROWS


@pytest.mark.parametrize("loss", [lambda output, target: output - 1.0, slow(lambda output, target: 0.5)])
def test_a_loss_that_is_no_scalar(spark, loss):
    with pytest.raises(ModelError, match="must return a scalar tensor"):
        fit(frame(spark), model=Line, loss=loss)


@pytest.mark.parametrize(
    ("held", "message"),
    [
        slow("false", f"validationIndicatorCol 'held': none of the {ROWS} rows is for validation"),
        slow("true", f"validationIndicatorCol 'held': all {ROWS} rows are for validation"),
        ("label > 0 or null", r"\d+ of 90 rows have a null in validationIndicatorCol 'held'"),
    ],
)
def test_an_indicator_of_validation_rows_without_both(spark, held, message):
    with pytest.raises(InputError, match=message) as error:
        fit(frame(spark).withColumn("held", F.expr(held)), validationIndicatorCol="held")
    assert short(error)


def test_a_batch_that_is_larger_than_the_data_is_told(spark):
    with pytest.warns(UserWarning, match="batchSize=64 x accumulationSteps=2 is more than the 90 rows") as told:
        model = fit(frame(spark), batch=64, epochs=2, accumulationSteps=2)
    mine = [warning for warning in told if "accumulationSteps" in str(warning.message)]
    assert [warning.filename.rsplit("/", 1)[-1] for warning in mine] == ["test_training.py"], "where fit is called"
    assert model.summary["iterations"] == 2
    torch.manual_seed(5)
    assert not torch.equal(Small()[0].weight, model.module[0].weight)
