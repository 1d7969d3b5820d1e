"""Recipes of training that hypothesis draws: each must end as plain torch in one process, or be refused before step 1.

A recipe that goes wrong is printed as JSON, made simple; into ``recipes/kept.json`` with it, so that it is tried ever after.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from pyspark.sql import SparkSession

from tests.slow import slow_unless

from .recipes.crew import Crew
from .recipes.drawn import COLLECTIVES, COLUMNS, OPTIMIZERS, OTHERS, recipes
from .recipes.fit import Fitter
from .recipes.modules import PARTS, RETURNS
from .recipes.recipe import Recipe
from .recipes.search import Search, simplified
from .recipes.verdict import Verdict, judge

KEPT = json.loads(Path(__file__).with_name("recipes").joinpath("kept.json").read_text(encoding="utf-8"))

#: How many kinds of failures are made simple and shown.
SHOWN = 4


def local_dirs(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"dirs": [os.environ.get("SPARK_LOCAL_DIRS", "")]})


@pytest.fixture(scope="module")
def fitter(spark: SparkSession) -> Iterator[Fitter]:
    """On four ranks; two of them have the same executor."""
    found = spark.range(3).repartition(3).mapInArrow(local_dirs, "dirs string", barrier=True).collect()
    executors = sorted(row["dirs"] for row in found)
    with Crew([*executors, executors[0]]) as crew:
        yield Fitter(spark, crew)


def search(fitter: Fitter, examples: int) -> Search:
    found = Search(lambda recipe: judge(recipe, fitter))

    @settings(max_examples=examples, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(recipes())
    def look(recipe: Recipe) -> None:
        found.look(recipe)

    look()
    return found


def complain(found: Search) -> None:
    """Fails with the recipes that went wrong, one of each kind and strategy."""
    kinds: dict[tuple[str, str], tuple[Recipe, Verdict]] = {}
    for recipe, verdict in found.wrong:
        kinds.setdefault((verdict.kind, recipe.strategy), (recipe, verdict))
    lines = [f"{len(found.wrong)} recipes went wrong"]
    for recipe, verdict in list(kinds.values())[:SHOWN]:
        simple = simplified(recipe, found.judge, verdict.kind)
        lines += [
            f"{verdict.kind}: {verdict.problem}",
            f"    drawn: {recipe.to_json()}",
            f"    simple: {simple.to_json()}",
        ]
    if found.wrong:
        pytest.fail("\n".join(lines), pytrace=False)


@pytest.mark.parametrize("kept", slow_unless(lambda kept: "slow" not in kept, KEPT), ids=lambda kept: kept["what"])
def test_recipes_that_went_wrong_once(fitter: Fitter, kept: dict) -> None:
    verdict = judge(Recipe.from_dict(kept["recipe"]), fitter)
    assert verdict.kind in kept["outcome"], verdict.problem


@pytest.mark.timeout(1200)  # for making simple what went wrong
def test_some_recipes(fitter: Fitter, capsys: pytest.CaptureFixture[str]) -> None:
    found = search(fitter, 5)
    with capsys.disabled():
        print(f"\n{found.report()}")
    complain(found)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_recipes(fitter: Fitter, capsys: pytest.CaptureFixture[str]) -> None:
    found = search(fitter, 600)
    with capsys.disabled():
        print(f"\n{found.report()}")
    complain(found)
    covered = found.covered
    assert set(covered["parts"]) == set(PARTS)
    assert set(covered["optimizer"]) == set(OPTIMIZERS)
    assert set(covered["features"]) == set(COLUMNS)
    assert set(covered["returns"]) == set(RETURNS)
    assert set(covered["strategy"]) == {"ps", *OTHERS, *COLLECTIVES}
    assert covered["outcome"]["agreed"] > 360, "what is refused hides everything else that is in a recipe"
