"""The examples are run as they stand, on three executors' JVMs, and learn what is in their data."""

import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "python/examples"
# The package is imported from where it is; what an example defines is in __main__, as under spark-submit.
pytestmark = pytest.mark.usefixtures("spark")


def printed(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


def figures(pattern: str, text: str) -> list[float]:
    found = re.search(pattern, text)
    assert found, text
    return [float(figure) for figure in found.groups()]


@pytest.mark.slow
def test_the_cnn_reads_digits(capsys):
    text = printed("mnist_cnn.py", capsys)
    losses = [float(loss) for loss in re.findall(r"epoch \d: loss (\S+)", text)]
    assert losses == sorted(losses, reverse=True)
    (accuracy,) = figures(r"accuracy (\S+)", text)
    assert accuracy > 0.9


@pytest.mark.slow
def test_the_text_classifier_knows_libraries(capsys):
    train, test, accuracy = figures(
        r"(\d+) docstrings to train on, (\d+) to test, accuracy (\S+)", printed("text_classifier.py", capsys)
    )
    assert train > 1500
    assert test > 300
    assert accuracy > 0.7


@pytest.mark.slow
def test_the_regression_is_no_worse_than_a_linear_one(capsys):
    network, linear = figures(r"network: r2 (\S+)\nlinear: r2 (\S+)", printed("tabular_regression.py", capsys))
    assert linear > 0.3
    assert network > linear - 0.05


@pytest.mark.slow
def test_the_recommender_beats_the_mean(capsys):
    error, of_the_mean = figures(r"rmse (\S+), of the mean (\S+)", printed("recommender.py", capsys))
    assert error < 0.95 * of_the_mean  # torch in one process: 0.87 to 0.98, by the seed


def test_every_example_is_tested():
    here = Path(__file__).read_text()
    for example in EXAMPLES.glob("*.py"):
        assert f'"{example.name}"' in here
