"""bench_jobs on an emulated network: what it prints."""

import bench_jobs
import pytest
from lab.results import FIELDS
from peers.breakdown import PARTS

from sparkdl_comm.sim.profile import Layer, Profile


@pytest.mark.slow
def test_job_completion_times(networks, rows_of):
    systems = ["bml@bcube:2,2", "ddp@star:2"]
    bml, ddp = rows = rows_of(bench_jobs, "--rate", "100", "--systems", *systems)
    assert [f"{row['algorithm']}@{row['topology']}" for row in rows] == systems
    for row in rows:
        assert list(row)[: len(FIELDS)] == list(FIELDS)
        assert row["verified"]
        assert row["compute"] == "emulated"
        # 128 rows of LeNet-5 take 10.5 ms at 1 teraflop/s: 1/4 of that, as links 400 times as slow, 1/64 of the network.
        assert row["computing"] == pytest.approx(0.0105 / 4 * 400 / 64, rel=0.01)
        assert row["theory_seconds"] >= row["computing"]
    assert bml["theory_seconds"] <= ddp["theory_seconds"]
    assert bml["bytes"] == ddp["bytes"]
    assert list(bml["parts"]) == list(PARTS)
    assert bml["parts"]["compression"] == 0 < bml["parts"]["communication"]
    assert bml["parts"]["computing"] >= bml["computing"]
    assert ddp["parts"] == {}


@pytest.mark.slow
def test_hosts_with_several_ranks_and_compressed_gradients(networks, rows_of):
    systems = ["torus2d@hosts:2x2", "hitopk+mstopk:0.01@hosts:2x2"]
    dense, sparse = rows_of(bench_jobs, "--rate", "20", "--paper-rate", "400", "--systems", *systems)
    assert (dense["algorithm"], sparse["algorithm"]) == ("torus2d", "hitopk+mstopk:0.01")
    assert dense["verified"]
    assert sparse["verified"]
    assert dense["theory_seconds"] > sparse["theory_seconds"] == pytest.approx(sparse["computing"])
    assert sparse["seconds"] < dense["seconds"]
    assert sparse["parts"]["compression"] > 0


@pytest.mark.slow
def test_loops_where_an_exchange_takes_a_given_time(networks, rows_of):
    words = ["--exchange", "1.5", "--loop", "all-reduce", "decoupled", "--bucket", "4KiB"]
    whole, decoupled, ddp = rows_of(bench_jobs, "--rate", "20", *words, "--systems", "ring@star:2", "ddp@star:2")
    assert [row["loop"] for row in (whole, decoupled, ddp)] == ["all-reduce", "decoupled", "all-reduce"]
    for row in (whole, decoupled, ddp):
        assert row["verified"]
        assert row["exchange"] == 1.5
        assert row["computing"] == whole["computing"]
    assert decoupled["parts"]["communication"] > 0
    # An all-reduce has backward alone to travel beside; in halves it has forward, too.
    assert decoupled["theory_seconds"] < whole["theory_seconds"] == ddp["theory_seconds"]


@pytest.mark.slow
def test_planned_buckets_beside_those_of_a_size(networks, rows_of):
    words = [
        "--exchange",
        "1.5",
        "--loop",
        "decoupled",
        "decoupled+ibatch",
        "--warmup",
        "12",
        "--systems",
        "ring@star:2",
    ]
    sized, planned = rows_of(bench_jobs, "--rate", "20", *words)
    assert [row["loop"] for row in (sized, planned)] == ["decoupled", "decoupled+ibatch"]
    assert sized["verified"]
    assert planned["verified"]
    assert sized["buckets"] == 1
    names = {"ring+decoupled", "ring+decoupled+ibatch"}
    assert planned["decisions"][0]["predicted"].keys() == names
    assert planned["decisions"][0]["chosen"] in names
    assert planned["theory_seconds"] <= sized["theory_seconds"]


def test_the_bucket_that_backward_completes_last_has_what_is_left() -> None:
    shapes = [2, 4, 1, 3]
    profile = Profile("four", 1, "by hand", tuple(Layer(str(n), {"w": [n]}, 1.0, 1.0) for n in shapes))
    # From the last layer on: 3 and 1, 4, and what is left.
    assert bench_jobs.first_layers(profile, 16) == 4 * 2
    assert bench_jobs.first_layers(profile, 4) == 4 * 2
    assert bench_jobs.first_layers(profile, 1 << 20) == 4 * 10


@pytest.mark.slow
def test_loops_of_the_linear_pipeline_paper(networks, rows_of):
    loops = ["root-overlap", "root", "all-reduce"]
    words = ["--exchange", "1", "--loop", *loops, "--bucket", "4KiB", "--systems", "lp@star:3"]
    rows = rows_of(bench_jobs, "--rate", "20", *words)
    assert [row["loop"] for row in rows] == loops
    assert all(row["verified"] for row in rows)
    overlapped, apart, reduced = (row["theory_seconds"] for row in rows)
    links = rows[0]["bytes"] * 8 / 20e6
    # An all-reduce takes as long as backward, 4/3 of what a link needs for all bytes once.
    backward = 4 / 3 * links
    forward = rows[0]["computing"] - backward
    assert overlapped == pytest.approx(max(forward, links) + backward, rel=1e-3)
    assert apart == pytest.approx(forward + backward + links, rel=1e-3)
    assert reduced == pytest.approx(forward + backward, rel=1e-3)


@pytest.mark.slow
def test_several_computing_rates(networks, rows_of):
    slow, fast = rows_of(bench_jobs, "--teraflops", "100,200", "--systems", "ring@star:2")
    assert (slow["teraflops"], fast["teraflops"]) == (100, 200)
    assert slow["computing"] == pytest.approx(2 * fast["computing"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--systems", "bml@ring:3"], "unknown kind 'ring'"),
        (["--systems", "ddp@bcube:2,2"], "one NIC per host"),
        (["--rows", "0"], "--rows: must be whole numbers, at least 1"),
        (["--exchange", "0"], "--exchange: must be numbers above 0"),
        (
            ["--loop", "decoupled", "--systems", "auto@star:2"],
            "collective.loop=decoupled: cheapest and auto may choose",
        ),
        (["--profile", "lenet6"], "--profile: invalid choice: 'lenet6' (choose from"),
        (["--systems", "gloo+topk:0.1@star:2"], "strategy gloo"),
        (["--systems", "ddp+topk:0.1@star:2"], "sends whole gradients"),
    ],
)
def test_what_it_refuses(arguments, said, refused):
    assert said in refused(bench_jobs.main, *arguments)
