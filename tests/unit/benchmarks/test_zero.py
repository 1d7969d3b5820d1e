"""The benchmark `zero`: its cells, the rows that it makes of what ranks measure, and its tables."""

import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from benchmarks.case import Case
from benchmarks.tables import Data
from benchmarks.workload import network, right
from benchmarks.zero import job as zero_job
from benchmarks.zero import run as zero
from benchmarks.zero import table
from benchmarks.zero.job import DEFAULT, Job
from benchmarks.zero.run import Cell, cells_of
from lab.arguments import parser

from sparkdl_comm.errors import LabError
from sparkdl_comm.topology import Topology

STAR, ALONE = Topology.parse("star:3"), Topology.parse("hosts:1x2")
#: Report of a fit about its batches.
BATCHING = {way: {"batches": [[0]], "kept": f"plan, 1 {way}", "outcome": "used"} for way in ("pull", "push")}


def a_job(folder: Path, network_name: str = "lenet5", **changes: Any) -> Job:
    known = {"systems": ["ddp"], "forward": 0.001, "ranks": 1, "rows": 2, "first": 3, "steps": 2, "samples": 2}
    return Job(network=network_name, folder=str(folder), root=os.getpid(), **{**known, **changes})  # type: ignore[arg-type]


def test_a_cell_that_leaves_something_out_stands_for_all() -> None:
    assert cells_of("star3-resnet50-1.2,hosts1x2-lenet5") == [
        Cell(STAR, "resnet50", 1.2),
        Cell(ALONE, "lenet5", None),
    ]
    assert [cell.pull for cell in cells_of("hosts4x2-bert_base")] == list(zero.PULLS)
    assert {cell.network for cell in cells_of("hosts1x4")} == set(zero.NETWORKS)
    assert len(zero.arguments(parser(""), []).cells) == 3 * 5 * 3 + 2 * 5
    quick = zero.arguments(parser(""), ["--quick"])
    assert (len(quick.cells), quick.steps) == (3, 2)
    assert str(quick.cells[0]) == "resnet50 on star:3, a pull 1.2 x forward"


def test_the_rate_is_that_by_which_a_pull_takes_its_share_of_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    case, facts = zero.case_of_cell(Cell(Topology.parse("hosts:4x2"), "vgg19", 1.2), 0.5)
    assert case.profile is not None
    assert case.rate == pytest.approx(32 * case.profile.parameters * 3 / 4 / 0.6), "of a host: both ranks share its NIC"
    assert facts["pull_seconds"] == pytest.approx(0.6)
    assert facts["bound_seconds"] >= 1.2
    monkeypatch.setattr(zero, "forward_seconds", lambda cell: 1.0 if cell.pull == 2 else 1e-6)
    case, facts = zero.case_of_cell(Cell(STAR, "lenet5", 2.0), 0.5)
    assert (case.profile, facts["forward_seconds"]) == (None, 1.0)
    assert case.rate == pytest.approx(32 * 3_274_634 * 2 / 3 / 2)
    assert zero.case_of_cell(Cell(STAR, "lenet5", 0.5), 0.5)[0].rate == 10e9, "as fast as the lab's links"


def test_forward_is_measured_as_ranks_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(float(number) for number in range(18))
    monkeypatch.setattr(zero, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert zero.forward_seconds(Cell(Topology.parse("star:8"), "perceptron", 1.2)) == 4.0


@pytest.mark.parametrize("network_name", ["lenet5", "perceptron", "vgg19"])
def test_a_row_has_what_ranks_measured(network_name: str, tmp_path: Path) -> None:
    job = a_job(tmp_path, network_name)
    module = network(job.model)
    zero_job.train(job, "ddp", 0, module, module, torch.optim.SGD(module.parameters(), lr=job.learning_rate))
    assert right(module, job.model, 1, 7, job.learning_rate)
    assert not right(module, job.model, 1, 6, job.learning_rate)
    rank = json.loads((tmp_path / "ddp-0.json").read_text())
    assert (len(rank["ends"]), rank["verified"]) == (8, True)
    assert rank["ends"] == sorted(rank["ends"])
    assert rank["cpu_seconds"] >= 0
    assert rank["rank_bytes"] > 1 << 20

    other = {**rank, "verified": False, "rank_bytes": 1 << 50}
    ranks = [{**rank, "ends": [0, 5, 6, 7, 8, 9, 12, 15], "cpu_seconds": 10.0}, other]
    case = Case(network_name, None, 3, 5e6)
    result = {"system": "default", "ranks": ranks, "strategy": "ps", "batching": BATCHING}
    row = zero.row_of(Cell(STAR, network_name, 1.2), case, {"pull": 1.2}, job, result)
    assert (row.samples, row.rate_mbit, row.verified) == ([1.0, 3.0], 5.0, False)
    assert {
        "first_steps": 3,
        "first_seconds": 7,
        "cpu_seconds": 2.5,
        "rank_bytes": 1 << 50,
    }.items() <= row.extra.items()
    assert row.extra["kept"] == {"pull": "plan, 1 pull", "push": "plan, 1 push"}
    plain = zero.row_of(Cell(ALONE, network_name, None), case, {"pull": None}, job, {"system": "ddp", "ranks": [rank]})
    assert (plain.rate_mbit, plain.verified, "kept" in plain.extra) == (None, True, False)


@pytest.mark.parametrize("system", zero_job.BUCKETS)
def test_ddp_trains_the_same(system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": 0, "WORLD_SIZE": 1}.items():
        monkeypatch.setenv(name, str(value))
    zero_job.train_with_ddp(a_job(tmp_path, "vgg19"), system)
    assert json.loads((tmp_path / f"{system}-0.json").read_text())["verified"]


def test_horovod_trains_if_it_can_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its module is a stand-in with one rank."""
    monkeypatch.setitem(sys.modules, "horovod", None)
    assert zero.why_no_horovod().startswith("could not be installed: ")
    called: list[str] = []
    hvd = SimpleNamespace(
        init=lambda: called.append("init"),
        rank=lambda: 0,
        DistributedOptimizer=lambda optimizer, named_parameters: optimizer,
        shutdown=lambda: called.append("shutdown"),
    )
    spark = SimpleNamespace(run=lambda function, arguments, num_proc: function(*arguments))
    for name, module in {"horovod": SimpleNamespace(), "horovod.torch": hvd, "horovod.spark": spark}.items():
        monkeypatch.setitem(sys.modules, name, module)
    assert not zero.why_no_horovod()
    [found] = zero_job.results(None, a_job(tmp_path, systems=["horovod"]))  # type: ignore[arg-type]
    assert called == ["init", "shutdown"]
    assert found["ranks"][0]["verified"]


def test_a_fit_tells_what_it_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fit(spark: object, job: Job, system: str) -> dict[str, object]:
        (tmp_path / f"{system}-0.json").write_text("{}")
        return {"strategy": "ps", "batching": BATCHING, "iterations": 7}

    monkeypatch.setattr(zero_job, "fit", fit)
    [found] = zero_job.results(None, a_job(tmp_path, systems=[DEFAULT]))  # type: ignore[arg-type]
    assert found == {"system": DEFAULT, "ranks": [{}], "strategy": "ps", "batching": BATCHING}


def test_an_application_that_fails_is_named_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[str], dict[str, str]]] = []

    def submit(spark: object, program: Path, job: Job, timeout: float, conf: Any, *, has_plugin: bool) -> Iterator[Any]:
        assert program.is_file()
        assert has_plugin == (job.systems == [DEFAULT])
        asked.append((job.systems, conf))
        if not has_plugin:
            raise LabError("it broke")
        rank = {"ends": [*range(63)], "cpu_seconds": 1.0, "rank_bytes": 1, "executor_bytes": 1, "verified": True}
        yield {"system": DEFAULT, "ranks": [rank], "strategy": "ps"}

    memory: list[str] = []
    layout = SimpleNamespace(node=lambda host: SimpleNamespace(interface=lambda rail: "rail0"))
    lab = SimpleNamespace(layout=layout, spark=lambda memory: nullcontext(memory_of(memory)))

    def memory_of(text: str) -> None:
        memory.append(text)

    monkeypatch.setattr(zero, "Lab", lambda topology: nullcontext(lab))
    monkeypatch.setattr(zero, "set_rate", lambda lab, rate: None)
    monkeypatch.setattr(zero, "submit", submit)
    monkeypatch.setattr(zero, "why_no_horovod", lambda: "could not be installed: no")
    told: list[str] = []
    options = zero.arguments(parser(""), ["--quick", "--cells", "hosts1x2-vgg19,star3-vgg19-2"])
    found = zero.rows(options, told.append)
    first, second = next(found), next(found)
    assert (first.case, first.algorithm, first.extra["horovod"]) == ("vgg19", DEFAULT, "could not be installed: no")
    assert [first.topology, second.topology] == ["hosts:1x2", "star:3"]
    with pytest.raises(LabError, match=r"^ddp: vgg19 on hosts:1x2; ddp: vgg19 on star:3, a pull 2 x forward$"):
        next(found)
    assert "ddp, ddp-4, ddp-1, gloo failed: it broke" in told
    assert memory == ["2g", "1g"]
    assert [conf.get("spark.executor.instances") for _, conf in asked] == ["2", "2", None, None]


def test_tables_compare_with_the_fastest_buckets(tmp_path: Path) -> None:
    from tests.unit.benchmarks.test_tables import row, save

    def of(algorithm: str, seconds: float, pull: float | None, **more: Any) -> Any:
        costs = {"first_seconds": 60.0, "cpu_seconds": 2.0, "rank_bytes": 3e8, "executor_bytes": 4e8}
        topology = "star:3" if pull else "hosts:1x2"
        extra = {**costs, "pull": pull, **more}
        return row(algorithm, *[seconds] * 3, suite="zero", case="vgg19", topology=topology, extra=extra)

    kept = {"pull": "plan, 7 pulls", "push": "plan, 19 pushes"}
    ours = of("default", 0.9, 1.2, kept=kept, horovod="could not be installed: no")
    star = [of("ddp", 1.2, 1.2), of("ddp-4", 1.0, 1.2), of("ddp-1", 1.1, 1.2), of("gloo", 1.5, 1.2), ours]
    save(tmp_path, "zero-star3", *star)
    save(tmp_path, "zero-machine", of("ddp", 1.0, None), of("default", 1.1, None, strategy="ps"))
    data = Data(tmp_path)
    assert [line[:3] for line in table.zero(data)] == [
        (
            "vgg19, star:3, a pull 1.2 x forward",
            "`ddp-4`: 1 s (1 to 1)",
            "plan, 7 pulls, 19 pushes: 0.9 s (0.9 to 0.9)",
        ),
        (
            "vgg19, star:3, a pull 1.2 x forward",
            "`gloo`: 1.5 s (1.5 to 1.5)",
            "plan, 7 pulls, 19 pushes: 0.9 s (0.9 to 0.9)",
        ),
        ("vgg19, hosts:1x2", "`ddp`: 1 s (1 to 1)", "`ps`: 1.1 s (1.1 to 1.1)"),
        ("all cells", "`horovod` could not be installed: no", "-"),
    ]
    assert next(iter(table.costs(data)))[1:] == ("60 s; 60 s", "2 s; 2 s", "300 MB; 300 MB", "400 MB; 400 MB")
    assert [(*line[:1], *line[2:]) for line in table.aims(data)] == [
        ("the median cell", "1.00", "**missed**: 1.00"),
        ("the slowest cell: vgg19, hosts:1x2", "1.10", "**missed**: 1.10"),
        ("the slowest cell with a pull 1.2 x forward: vgg19, star:3, a pull 1.2 x forward", "0.90", "reached: 0.90"),
    ]
    assert [label for label, _ in table.chart(data).groups] == ["vgg19, star:3", "vgg19, hosts:1x2"]
