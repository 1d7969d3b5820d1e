"""The README's examples are run as they stand."""

import re
from pathlib import Path

import pytest
import torch

from sparkdl_comm import TorchModel

README = Path(__file__).parents[2] / "README.md"


def run(number, **names):
    """What the example of this number, given ``names`` of those before it, has defined in the end."""
    examples = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    exec(compile(examples[number], str(README), "exec"), names)  # noqa: S102 - our own text
    return names


def test_the_example_trains_and_saves(spark, capsys):
    names = run(0)
    assert names["scored"].count() == 300
    losses = [row["loss"] for row in names["model"].summary["history"]]
    assert losses[-1] < losses[0]
    # A relative path belongs to the JVM, which keeps the directory that it was started in.
    assert isinstance(TorchModel.load("build/readme-model"), TorchModel)
    assert "pull" in capsys.readouterr().out


@pytest.mark.usefixtures("spark")
def test_the_example_of_ddp_hooks():
    assert run(1, torch=torch)["gradient"].tolist() == [[4.0, 4.0]]
