"""What benchmarks reckon, and what their verification finds."""

import itertools
import json
import math
import threading
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
import torch
from benchmarks.case import case_of, share_of
from benchmarks.compression import run as compression
from benchmarks.compression import run_convergence, run_record
from benchmarks.compression.run_pto import resnet50
from benchmarks.fabric.simulation import batches
from benchmarks.jobs import run as jobs
from benchmarks.scale import run_auto
from benchmarks.scale.validation import FITTED, cells
from benchmarks.workload import check, fits

from sparkdl_comm.compress.selection import operator
from sparkdl_comm.errors import ConfError, LabError
from sparkdl_comm.fabric.core.messages import DroppedUpdate, Push
from sparkdl_comm.sim.profile import Layer, Profile
from sparkdl_comm.topology import Topology

ROOT = Path(__file__).parents[3]


def test_all_ways_are_settings_that_the_driver_takes() -> None:
    for settings in [*run_convergence.WAYS.values(), *itertools.chain(*run_record.ways(3).values())]:
        check(settings, 4)


def test_the_notebook_reads_the_rows_that_the_convergence_benchmark_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    curves = [[0.5, 0.75], [0.5, 1.0]]  # by seed and epoch
    fits = [{"seconds_per_step": [0.1] * 3, "accuracy": curve, "compression": [], "verified": True} for curve in curves]
    row = run_convergence._row("lenet5", "dense", 1000.0, fits)
    results = tmp_path / "python/benchmarks/compression/results"
    results.mkdir(parents=True)
    (results / "compress-accuracy-lenet5.json").write_text(json.dumps({"rows": [row.as_dict()]}))
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    notebook = nbformat.read(ROOT / "notebooks/compression.ipynb", as_version=4)
    cells = {cell.id: cell.source for cell in notebook.cells}
    found: dict[str, Any] = {}
    exec(cells["read"] + "\n" + cells["last"], found)  # noqa: S102 - this repository's own code
    assert found["fits"].accuracy.tolist() == [0.5, 0.75, 0.5, 1.0]
    assert found["table"].to_dict() == {"lenet5": {"dense": 87.5}}


def test_the_bucket_that_backward_completes_last_has_what_is_left() -> None:
    shapes = [2, 4, 1, 3]
    profile = Profile("four", 1, "by hand", tuple(Layer(str(n), {"w": [n]}, 1.0, 1.0) for n in shapes))
    # From the last layer on: 3 and 1, 4, and what is left.
    assert jobs.first_layers(profile, 16) == 4 * 2
    assert jobs.first_layers(profile, 4) == 4 * 2
    assert jobs.first_layers(profile, 1 << 20) == 4 * 10


def test_the_time_to_an_accuracy_is_that_of_all_epochs_up_to_the_first_that_has_it() -> None:
    stages = [{"seconds": [3.0, 1.0], "accuracy": [0.5, 0.8]}, {"seconds": [2.0, 2.0], "accuracy": [0.9, 0.7]}]
    assert run_record.time_to(0.8, stages) == (4.0, True)
    assert run_record.time_to(0.9, stages) == (6.0, True)
    assert run_record.time_to(0.95, stages) == (8.0, False)


@pytest.mark.parametrize("case", ["even", "drawn"])
def test_a_schedule_that_was_tampered_with_is_not_verified(case):
    batch = batches.drawn(30, case, np.random.default_rng(5))
    decisions = batches.decided(batch).decisions
    assert batches.right(batch, decisions)
    first = next(decision for decision in decisions if isinstance(decision, Push) and decision.schedule)
    rest = [decision for decision in decisions if decision is not first]
    piece = first.schedule[0]
    faster = piece._replace(rate=piece.rate * 1.1, end=piece.start + (piece.end - piece.start) / 1.1)
    assert not batches.right(batch, rest), "an update that nobody decided on"
    assert not batches.right(batch, [*decisions, DroppedUpdate(0, 0, "deadline")]), "one that is both sent and dropped"
    assert not batches.right(batch, [replace(first, schedule=()), *rest]), "bytes that are not sent"
    assert not batches.right(batch, [replace(first, schedule=(faster, *first.schedule[1:])), *rest]), (
        "too fast for a link"
    )
    late = batch._replace(deadlines=[0] * 30)
    assert not batches.right(late, decisions), "deadlines that were missed"


def test_the_layers_of_resnet50():
    shapes = resnet50()
    assert len(shapes) == 161
    assert sum(map(math.prod, shapes)) == 25_557_032
    assert (2048, 1024, 1, 1) in shapes
    assert shapes[-2:] == [(1000, 2048), (1000,)]


def test_what_is_fitted_is_not_counted():
    every = cells()
    assert sum(cell.is_fitted for cell in every) == len(FITTED)
    assert sum(not cell.is_fitted for cell in every) >= 40


@pytest.mark.parametrize(
    ("name", "indices", "right"),
    [
        ("exact", [1, 3, 4], True),
        ("exact", [1, 3, 5], False),
        ("mstopk", [1, 3, 5], True),
        ("mstopk", [1, 4, 5], False),
        ("mstopk", [3, 1, 4], False),
        ("mstopk", [1, 1, 3], False),
        ("mstopk", [1, 3], False),
        ("mstopk", [1, 3, 6], False),
        ("mstopk", [-1, 1, 3], False),
    ],
)
def test_verification(name: str, indices: list[int], right: bool) -> None:
    values = torch.tensor([1.0, -9.0, 0.0, 8.0, 3.0, -2.0])
    assert (
        compression.right(operator(name), values, torch.tensor(indices), torch.tensor([9.0, 8.0, 3.0]), 4.0, 2) is right
    )


def test_gradient_like_vectors_have_heavy_tails_and_zeros():
    torch.manual_seed(0)
    values = compression.gradient_like(300_001)
    assert len(values) == 300_001
    assert 0.05 < float((values == 0).float().mean()) < 0.2
    assert float(values.pow(4).mean() / values.pow(2).mean() ** 2) > 30, "a Gaussian has 3"


DECISIONS = [{"step": 6, "since": 14, "chosen": "ring"}, {"step": 108, "since": 117, "chosen": "lp"}]


@pytest.mark.parametrize(("change", "steps"), [(100, 17), (108, None), (4, 10)])
def test_steps_until_it_was_decided_again(change: int, steps: int | None) -> None:
    assert run_auto._switched(DECISIONS, change) == steps
    assert run_auto._switched([{"step": 200, "since": None, "chosen": None}], change) is None


def test_all_steps_of_auto_count_and_settled_ones_of_others() -> None:
    options, profile = Namespace(topology=Topology.parse("star:2")), Profile.load("lenet5")
    result: dict[str, Any] = {"seconds": [9.0] * 10 + [1.0] * 20, "bytes": 5.0, "verified": True}
    ways = {"ring": 1.0}
    ours = {**result, "way": "auto", "auto": {"chosen": "lp", "decisions": DECISIONS, "server": None}}
    auto = run_auto._row(options, "x", profile, 1_000_000, ours, {"exchange": 2.0, "ways": ways}, 1.0)
    assert auto.extra["regret"] == pytest.approx(110 / 30 - 1)
    assert auto.seconds / auto.theory_seconds - 1 == pytest.approx(auto.extra["regret"])
    ring = run_auto._row(
        options, "x", profile, 1_000_000, {**result, "way": "ring"}, {"exchange": 2.0, "ways": ways}, 1.0
    )
    assert ring.seconds == 1.0
    assert "ways" not in ring.extra


def test_what_is_timed_of_a_plan_is_what_was_kept() -> None:
    def plans(outcome: str) -> dict[str, Any]:
        plan = {"batches": [(0, 1), (2, 2)], "kept": "parts:2", "outcome": outcome, "tried": {}}
        return {"pull": plan, "push": plan}

    found = run_auto._kept(plans("tried, and rejected: parts:2 was faster"))
    assert found["kept"] == {"pull": "parts:2", "push": "parts:2"}
    assert found["batches"] == {"pull": 2, "push": 2}
    for outcome in ("used: on trial when the run ended, ibatch in use", "not planned: the run ended before"):
        with pytest.raises(LabError, match=f"ps.ibatch, 70 steps: {outcome}.*Raise PLANNED_STEPS"):
            run_auto._kept(plans(outcome))


def test_what_stays_is_what_can_run_there() -> None:
    ways = list(run_auto.WAYS)

    def kept(topology: str) -> list[str]:
        return [way for way in ways if fits(way, Topology.parse(topology))]

    assert kept("star:4") == kept("star:8") == kept("bcube:2,2") == ways
    assert kept("hosts:2x2") == [way for way in ways if not way.startswith("bml")]


def test_links_change_when_the_file_is_there_and_not_before(tmp_path: Path) -> None:
    done = threading.Event()
    with run_auto._once(tmp_path / "signal", done.set):
        assert not done.is_set()
        (tmp_path / "signal").touch()
        assert done.wait(10)
    done.clear()
    with run_auto._once(tmp_path / "never", done.set):
        pass
    assert not done.is_set()


def test_at_a_rate_that_is_found_a_pull_takes_so_many_times_forward() -> None:
    profile = share_of("vgg19", forward=0.25)
    about = case_of("vgg19", 0.25, 8, "auto:1.5").about
    assert about["forward_seconds"] == pytest.approx(0.25)
    assert about["pull_seconds"] == pytest.approx(1.5 * 0.25)
    assert about["scale"] == pytest.approx(profile.parameters / Profile.load("vgg19").parameters)


def test_alone_a_rank_only_computes() -> None:
    case = case_of("lenet5", 0.1, 1, "200")
    about = case.about
    assert about["pull_seconds"] == 0
    assert about["bound_seconds"] == pytest.approx(case.profile.seconds)


def test_of_a_network_that_computes_no_rate_is_found() -> None:
    assert case_of("vgg", None, 4, "200").about == {}
    with pytest.raises(ConfError, match="vgg is not emulated"):
        case_of("vgg", None, 4, "auto:1")
    with pytest.raises(ConfError, match="--rate fast: must be a number"):
        case_of("vgg", None, 4, "fast")
