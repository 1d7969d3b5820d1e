"""The README's example is run as it stands."""

import re
from pathlib import Path

from sparkdl_comm import TorchModel

README = Path(__file__).parents[2] / "README.md"


def test_the_example_trains_and_saves(spark, capsys):
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    names: dict = {}
    exec(compile(example, str(README), "exec"), names)  # noqa: S102 - our own text
    assert names["scored"].count() == 300
    losses = [row["loss"] for row in names["model"].summary["history"]]
    assert losses[-1] < losses[0]
    # A relative path belongs to the JVM, which keeps the directory that it was started in.
    assert isinstance(TorchModel.load("build/readme-model"), TorchModel)
    assert "pull" in capsys.readouterr().out


def test_every_key_of_the_conf_is_in_the_table():
    from sparkdl_comm.conf import KEYS

    table = dict(
        re.findall(r"^\| `(spark\.sparkdl\.comm\.[\w.]+)` \| (?:`(.*?)`)? ?\|", README.read_text(), re.MULTILINE)
    )
    assert {key.full: key.default for key in KEYS} == {name: default.strip() for name, default in table.items()}
