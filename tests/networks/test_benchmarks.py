"""Benchmarks on emulated networks: ``--quick`` prints rows, all of which are verified (see the fixture ``rows_of``)."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks.breakdown import PARTS
from benchmarks.compression.run_cache import WAYS as CACHE_WAYS
from benchmarks.scale.blind import PREDICTIONS

pytestmark = pytest.mark.usefixtures("networks")

Rows = Callable[..., list[dict[str, Any]]]
PROGRAM = Path(__file__).parents[2] / "python" / "benchmarks"
WAYS = ["whole", "layerwise", "paper", "paper-layerwise", "ibatch"]


@pytest.mark.slow
def test_auto(rows_of: Rows) -> None:
    rows = rows_of("scale/auto", "--topology", "star:2", "--drop")
    assert [row["algorithm"] for row in rows] == ["ring", "ps+layerwise", "auto"] * 2 + ["auto"]
    for row in rows:
        assert row["compute"] == "emulated"
        assert row["theory_seconds"] > 0
    for row in rows:
        if row["algorithm"] == "auto":
            assert row["regret"] == pytest.approx(row["seconds"] / row["theory_seconds"] - 1)
            assert row["decisions"][0]["predicted"].keys() >= {"ring", "ps+layerwise"}
    assert rows[-1]["case"] == "vgg19 drop"
    assert rows[-1]["changed"] == 20


@pytest.mark.slow
def test_zero(rows_of: Rows) -> None:
    found = {row["algorithm"]: row for row in rows_of("zero", "--cells", "hosts1x2-lenet5", timeout=500)}
    assert found.keys() >= {"ddp", "ddp-4", "ddp-1", "gloo", "default"}
    for row in found.values():
        assert (row["rate_mbit"], row["world"], row["compute"], row["first_steps"]) == (None, 2, "real", 60)
        assert min(row[name] for name in ("first_seconds", "cpu_seconds", "rank_bytes", "executor_bytes")) > 0
    assert found["default"]["strategy"] == "ps"
    assert found["default"]["kept"].keys() == {"pull", "push"}


@pytest.mark.slow
def test_ps(rows_of: Rows) -> None:
    found = {row["algorithm"]: row for row in rows_of("ps", "--topology", "star:2", "--delay", "20")}
    assert list(found) == [*WAYS, "ring", "bml", "ddp"]
    for row in found.values():
        assert (row["compute"], row["world"], row["delay"]) == ("emulated", 2, 0.02)
    for way in WAYS:
        row = found[way]
        assert row["pull_seconds"] == pytest.approx(row["forward_seconds"]), "the rate was chosen so"
        assert row["predicted_seconds"] > 0
        assert row["theory_seconds"] >= 2 * row["pull_seconds"]
        assert {"forward", "backward", "update"} <= row["phases"].keys()
        assert 0 <= row["overlapped"] < sum(row["phases"][name] for name in ("forward", "backward", "update"))
    assert {way: found[way]["kept"]["pull"] for way in ("whole", "layerwise")} == {
        "whole": "whole",
        "layerwise": "layerwise",
    }
    assert found["ibatch"]["tried"].keys() == found["ibatch"]["tried_predicted"].keys() >= {"whole", "ibatch"}
    for way, pushes in {"layerwise": 19, "whole": 1, "paper": 1, "paper-layerwise": 1}.items():
        assert found[way]["batches"]["push"] == pushes
    for direction in ("pull", "push"):
        assert found["ibatch"]["startup_seconds"][direction] >= 0.02, "as the lab delays it"


@pytest.mark.slow
def test_ps_that_computes(rows_of: Rows) -> None:
    for row in rows_of(
        "ps",
        "--topology",
        "star:2",
        "--model",
        "real:vgg",
        "--rate",
        "200",
        "--batching",
        "whole,ibatch,whole-sparse,ibatch-sparse",
    ):
        assert (row["case"], row["compute"], row["theory_seconds"]) == ("real:vgg", "real", None)


@pytest.mark.slow
def test_cache(rows_of: Rows) -> None:
    rows = rows_of("compression/cache")
    assert [row["algorithm"] for row in rows] == list(CACHE_WAYS)
    for row in rows:
        assert len(row["epochs"]) == 2
        assert (row["disk"] > 0) == row["algorithm"].startswith("disk")
        assert (row["held"] > 0) == ("half" in row["algorithm"])
        assert row["held"] <= row["disk"] / 2


@pytest.mark.slow
def test_collectives_beside_gloo(rows_of: Rows) -> None:
    rows = rows_of("collectives", "--topology", "bcube:2,2", "--algorithms", "lp", "--peers", "gloo", "--calls", "2")
    assert [(row["algorithm"], row["topology"], row["case"]) for row in rows] == [
        ("lp", "bcube:2,2", "allreduce"),
        ("gloo", "star:4", "allreduce"),
    ]
    lp, gloo = rows
    # Two rails: half of what one allows.
    assert lp["theory_seconds"] == pytest.approx(gloo["theory_seconds"] / 2)
    assert lp["predicted"] >= lp["theory_seconds"]
    assert lp["block"] > 0
    assert lp["best"]
    assert lp["calls"] == 2


@pytest.mark.slow
def test_collectives_on_rails_that_differ(rows_of: Rows) -> None:
    words = ["--topology", "bcube:2,2", "bcube:3,2", "--rate", "100,200", "--algorithms", "bml", "--block", "0,4096"]
    rows = rows_of("collectives", *words)
    assert [(row["topology"], row["best"]) for row in rows] == [
        (topology, best) for topology in ("bcube:2,2", "bcube:3,2") for best in (True, False)
    ]
    for row in rows:
        assert row["rates"] == [100, 200]
        # Both rails together.
        hosts = row["world"]
        assert row["theory_seconds"] == pytest.approx(2 * (hosts - 1) / hosts * row["bytes"] * 8 / 300e6)


@pytest.mark.slow
def test_collectives_of_peers(rows_of: Rows) -> None:
    words = ["--topology", "star:3", "--algorithms", "lp", "--operations", "reduce", "--peers", "gloo"]
    lp, gloo = rows_of("collectives", *words)
    assert lp["case"] == gloo["case"] == "reduce"
    assert lp["theory_seconds"] == gloo["theory_seconds"]


@pytest.mark.slow
def test_compression(rows_of: Rows) -> None:
    rows = {row["algorithm"]: row for row in rows_of("compression", "--topology", "hosts:2x2")}
    assert list(rows) == ["hitopk", "naive-ag", "tree-ar", "torus2d"]
    for row in rows.values():
        assert (row["world"], row["topology"], row["count"]) == (4, "hosts:2x2", 1 << 18)
    assert rows["hitopk"]["theory_seconds"] < rows["naive-ag"]["theory_seconds"] < rows["torus2d"]["theory_seconds"]
    assert {"select_seconds", "gather_between_seconds"} <= rows["hitopk"].keys()


@pytest.mark.slow
def test_convergence(rows_of: Rows) -> None:
    made = rows_of("compression/convergence", "--tasks", "resnet", "--ways", "dense,hitopk,auto")
    rows = {row["algorithm"]: row for row in made}
    assert list(rows) == ["dense", "hitopk", "auto"]
    for row in rows.values():
        assert (row["verified"], row["case"], row["world"]) == (True, "resnet", 4)
        [curve] = row["curves"]
        assert len(curve) == 3
        assert row["accuracies"] == curve[-1:] != [0.0]
    assert rows["auto"]["tried"][0][0]["steps"] in ("dense", "sparse")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "case"),
    [
        (["--train", "--systems", "fabric-20,ring,ddp,async", "--accuracy", "0.5"], "train C2-N2"),
        (
            ["--lda", "--systems", "fabric-20,fabric-bsp,ring,async", "--perplexity", "760", "--words", "2000"],
            "lda C1-N1",
        ),
    ],
)
def test_fabric_races(rows_of: Rows, arguments: list[str], case: str) -> None:
    rows = rows_of("fabric", "--workers", "3", *arguments)
    assert [row["algorithm"] for row in rows] == arguments[2].split(",")
    for row in rows:
        hosts = 4 if row["algorithm"].startswith(("fabric", "async")) else 3
        assert (row["verified"], row["case"], row["topology"], row["world"]) == (True, case, f"star:{hosts}", 3)
        assert row["busy_cores"] > 0
        [curve] = row["curves"]
        assert curve[-1][1] >= 60
        assert sorted(curve) == curve
    assert rows[0]["max_delay"] <= 20


@pytest.mark.slow
def test_fetch(rows_of: Rows) -> None:
    options = ["--topology", "star:3", "--rate", "50,200", "--windows", "64KiB,1MiB"]
    found = rows_of("fetch", *options)
    ways = ["own", "fixed 65536", "fixed 1048576"]
    assert [(row["rate_mbit"], row["algorithm"]) for row in found] == [
        *((50, way) for way in ways),
        *((200, way) for way in ways),
    ]
    for row in found:
        assert row["seconds"] > 0.9 * row["theory_seconds"], "no link carries more than it can"


@pytest.mark.slow
def test_jobs(rows_of: Rows) -> None:
    systems = ["bml@bcube:2,2", "ddp@star:2"]
    bml, ddp = rows = rows_of("jobs", "--rate", "100", "--systems", *systems)
    assert [f"{row['algorithm']}@{row['topology']}" for row in rows] == systems
    for row in rows:
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
def test_jobs_with_compressed_gradients(rows_of: Rows) -> None:
    systems = ["torus2d@hosts:2x2", "hitopk+mstopk:0.01@hosts:2x2"]
    dense, sparse = rows_of("jobs", "--rate", "20", "--paper-rate", "400", "--systems", *systems)
    assert (dense["algorithm"], sparse["algorithm"]) == ("torus2d", "hitopk+mstopk:0.01")
    assert dense["theory_seconds"] > sparse["theory_seconds"] == pytest.approx(sparse["computing"])
    assert sparse["seconds"] < dense["seconds"]
    assert sparse["parts"]["compression"] > 0


@pytest.mark.slow
def test_jobs_with_decoupled_loops(rows_of: Rows) -> None:
    words = ["--exchange", "1.5", "--loop", "all-reduce", "decoupled", "--bucket", "4KiB"]
    whole, decoupled, ddp = rows_of("jobs", "--rate", "20", *words, "--systems", "ring@star:2", "ddp@star:2")
    assert [row["loop"] for row in (whole, decoupled, ddp)] == ["all-reduce", "decoupled", "all-reduce"]
    for row in (whole, decoupled, ddp):
        assert row["exchange"] == 1.5
        assert row["computing"] == whole["computing"]
    assert decoupled["parts"]["communication"] > 0
    # An all-reduce has backward alone to travel beside; in halves it has forward, too.
    assert decoupled["theory_seconds"] < whole["theory_seconds"] == ddp["theory_seconds"]


@pytest.mark.slow
def test_jobs_with_planned_buckets(rows_of: Rows) -> None:
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
    sized, planned = rows_of("jobs", "--rate", "20", *words)
    assert [row["loop"] for row in (sized, planned)] == ["decoupled", "decoupled+ibatch"]
    assert sized["buckets"] == 1
    names = {"ring+decoupled", "ring+decoupled+ibatch"}
    assert planned["decisions"][0]["predicted"].keys() == names
    assert planned["decisions"][0]["chosen"] in names
    assert planned["theory_seconds"] <= sized["theory_seconds"]


@pytest.mark.slow
def test_jobs_with_loops_of_the_linear_pipeline_paper(rows_of: Rows) -> None:
    loops = ["root-overlap", "root", "all-reduce"]
    words = ["--exchange", "1", "--loop", *loops, "--bucket", "4KiB", "--systems", "lp@star:3"]
    rows = rows_of("jobs", "--rate", "20", *words)
    assert [row["loop"] for row in rows] == loops
    overlapped, apart, reduced = (row["theory_seconds"] for row in rows)
    links = rows[0]["bytes"] * 8 / 20e6
    # An all-reduce takes as long as backward, 4/3 of what a link needs for all bytes once.
    backward = 4 / 3 * links
    forward = rows[0]["computing"] - backward
    assert overlapped == pytest.approx(max(forward, links) + backward, rel=1e-3)
    assert apart == pytest.approx(forward + backward + links, rel=1e-3)
    assert reduced == pytest.approx(forward + backward, rel=1e-3)


@pytest.mark.slow
def test_jobs_at_several_computing_rates(rows_of: Rows) -> None:
    slow, fast = rows_of("jobs", "--teraflops", "100,200", "--systems", "ring@star:2")
    assert (slow["teraflops"], fast["teraflops"]) == (100, 200)
    assert slow["computing"] == pytest.approx(2 * fast["computing"])


@pytest.mark.slow
def test_record(rows_of: Rows) -> None:
    rows = {(row["algorithm"], row["case"]): row for row in rows_of("compression/record")}
    cases = ("8 x 8", "16 x 16", "training")
    assert list(rows) == [(way, case) for way in ("dense", "sparse", "record") for case in cases]
    for row in rows.values():
        assert (row["verified"], row["world"]) == (True, 4)
        assert all(0 < accuracy < 1 for accuracy in row["accuracies"])
    strategies = {place: row["strategy"] for place, row in rows.items() if place[1] != "training"}
    assert [strategies["record", case] for case in cases[:2]] == ["hitopk", "torus2d"]
    for way in ("dense", "sparse", "record"):
        training = rows[way, "training"]
        assert 0 <= training["reached"] <= 1
        assert training["accuracies"] == rows[way, "16 x 16"]["accuracies"]


@pytest.mark.slow
def test_blind_simulation(rows_of: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = rows_of("scale", "--blind")
    written = json.loads((tmp_path / PREDICTIONS).read_text())
    assert {row["bytes"]: row["simulated"] for row in rows} == {
        one["bytes"]: one["seconds"] for one in written["cells"]
    }
    for row in rows:
        assert row["error"] == pytest.approx(row["simulated"] / row["seconds"] - 1)


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.timeout(900)  # alone it takes between three and five minutes
def test_predictions(rows_of: Rows) -> None:
    rows = rows_of("scale", "--predict", timeout=880)
    assert [row["algorithm"] for row in rows if row["source"]] == ["ibatch"]
    assert {row["topology"] for row in rows} == {"star:4", "bcube:2,2"}
    for row in rows:
        assert row["error"] == pytest.approx(row["predicted"] / row["seconds"] - 1)


@pytest.mark.slow
def test_lab(networks: None) -> None:
    command = [sys.executable, str(PROGRAM), "lab", "--quick", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    made, links = json.loads(done.stdout)
    assert (made["case"], made["topology"], made["rate_mbit"], made["verified"]) == ("set-up", "star:3", 100.0, True)
    assert made["seconds"] > 0
    assert (links["case"], links["links"], links["theory_seconds"]) == ("links", 6, 0.5)
    assert 0 < links["slowest"] <= 1 / links["ratio"] <= links["fastest"]
    # Whether links are off is for a quiet machine to judge; that the exit status says so, is not.
    assert done.returncode == int(not links["verified"])
    assert links["verified"] == (links["slowest"] >= 0.92 and links["fastest"] <= 1.08)
