"""The Python examples of README and docs are run as they stand."""

import functools
import re
from pathlib import Path

import pytest
import torch
from lab.settings import applied

import sparkdl_comm
from sparkdl_comm import TorchEstimator, TorchModel
from sparkdl_comm.networks import SmallLeNet, digits_28x28
from tests.unit.disk_helpers import left

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

#: Pages whose examples have tests of their own here, which give them names or settings; and the number of examples.
OWN_TEST = {"README.md": 2, "docs/guides/tuning.md": 1, "docs/guides/own-loop.md": 2, "docs/guides/checkpoints.md": 2}
#: Pages whose examples need what is not here: BigDL, a model from Hugging Face. What else runs the same calls.
ELSEWHERE = {
    "docs/guides/bigdl.md": "tests/integration/test_bigdl.py",
    "docs/guides/text.md": "tests/unit/data/test_ragged.py",
}


def examples(page):
    """The Python blocks of a page. Blocks of ``{.python}`` show programs, which test_examples.py runs."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def run(page, number, replaced=(), **names):
    """What the example of this number, given ``names``, has defined in the end. ``replaced``: pairs of texts in it."""
    example = examples(ROOT / page)[number]
    for old, new in replaced:
        assert old in example
        example = example.replace(old, new)
    exec(compile(example, page, "exec"), names)  # noqa: S102 - our own text
    return names


def digits(spark):
    """The first 100 digits, as README has them."""
    pixels, labels = digits_28x28()
    rows = [(image.tolist(), int(label)) for image, label in zip(pixels[:100], labels[:100], strict=True)]
    return spark.createDataFrame(rows, "features array<float>, label long")


def named(page):
    return page.relative_to(ROOT).as_posix()


OTHERS = [named(page) for page in PAGES if examples(page) and named(page) not in OWN_TEST | ELSEWHERE]


def test_the_first_example_trains_and_saves(spark, capsys):
    names = run("README.md", 0)
    assert names["scored"].count() == 300
    losses = [row["loss"] for row in names["model"].summary["history"]]
    assert losses[-1] < losses[0]
    # A relative path belongs to the JVM, which keeps the directory that it was started in.
    assert isinstance(TorchModel.load("build/readme-model"), TorchModel)
    assert "pull" in capsys.readouterr().out


@pytest.mark.usefixtures("spark")
def test_the_example_of_an_own_loop():
    assert run("README.md", 1, torch=torch, sparkdl_comm=sparkdl_comm)["gradient"].tolist() == [[4.0, 4.0]]


@pytest.mark.slow
def test_the_example_of_a_cache_for_each_fold(spark, tmp_path):
    data = spark.createDataFrame([([float(n), 1.0], n % 2) for n in range(60)], "features array<float>, label long")
    estimator = TorchEstimator(
        model=functools.partial(torch.nn.Linear, 2, 2), loss="CrossEntropyLoss", maxIter=1, num_workers=2
    )
    with applied(spark, {"data.cacheName": "", "data.cacheDir": str(tmp_path), "strategy": None}):
        names = run("docs/guides/tuning.md", 0, spark=spark, estimator=estimator, train=data)
        assert len(names["tuned"].avgMetrics) == 2
        assert {name[:7] for name in left(tmp_path)} == {"digits-"}
        assert len(left(tmp_path)) == 2 * 3, "of two folds and of all rows, by two ranks"
        assert estimator.fit(data).summary["data"]["reused"]


def test_the_example_of_a_loop_on_rows(spark):
    state = run("docs/guides/own-loop.md", 0, train=digits(spark))["state"]
    assert {name: list(tensor.shape) for name, tensor in state.items()} == {"weight": [10, 784], "bias": [10]}
    assert state["weight"].abs().max() > 0.05, "nothing was learned"


@pytest.mark.usefixtures("spark")
def test_the_example_of_averaged_gradients():
    average_gradients = run("docs/guides/own-loop.md", 1)["average_gradients"]

    def train():
        model = torch.nn.Linear(2, 1)
        model(torch.full((4, 2), float(sparkdl_comm.Communicator.current().rank))).sum().backward()
        average_gradients(model)
        return model.weight.grad

    assert sparkdl_comm.CommDistributor(num_workers=2).run(train).tolist() == [[2.0, 2.0]]


@pytest.mark.slow
def test_the_examples_of_checkpoints(spark, tmp_path, monkeypatch):
    """The second run finds the first one's last checkpoint, of step 6, and takes no step. Nor does the last fit."""
    page = "docs/guides/checkpoints.md"
    digits(spark).write.parquet(f"{tmp_path}/tables/digits-train")
    monkeypatch.chdir(tmp_path)
    for step in (0, 6):
        names = run(page, 0, [("hdfs://", str(tmp_path))], spark=spark, Net=SmallLeNet)
        assert (names["model"].summary["resumed_at"], names["model"].summary["iterations"]) == (step, 6)
    names = run(page, 1, **names)
    assert names["at_checkpoint"].summary["resumed_at"] == 6
    saved, trained = torch.load("weights.pt"), names["model"].to_torch().state_dict()
    assert all(torch.equal(saved[name], trained[name]) for name in trained)


@pytest.mark.slow
@pytest.mark.parametrize("page", OTHERS)
def test_examples_of_other_pages(spark, tmp_path, monkeypatch, page):
    """All examples of a page one after the other, with a session, digits as rows, a network and an estimator."""
    names = {
        "__name__": "__main__",
        "sparkdl_comm": sparkdl_comm,
        "torch": torch,
        "functools": functools,
        "TorchEstimator": TorchEstimator,
        "Net": SmallLeNet,
        "spark": spark,
        "train": digits(spark),
        "estimator": TorchEstimator(model=SmallLeNet, loss="CrossEntropyLoss", batchSize=50, num_workers=2),
    }
    monkeypatch.chdir(tmp_path)
    with applied(spark, {"timeline": 0, "strategy": None}):  # a page may set them
        for example in examples(ROOT / page):
            exec(compile(example, page, "exec"), names)  # noqa: S102 - our own text


def test_every_page_with_examples_of_its_own_exists():
    with_examples = {named(page) for page in PAGES if examples(page)}
    assert with_examples >= (OWN_TEST | ELSEWHERE).keys()
    assert all((ROOT / test).is_file() for test in ELSEWHERE.values())
    assert {page: len(examples(ROOT / page)) for page in OWN_TEST} == OWN_TEST
