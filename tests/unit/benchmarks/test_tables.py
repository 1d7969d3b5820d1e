"""Tables of pages: pages and data agree, and a table is of one commit."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks import charts, tables
from benchmarks.ibatch.table import beside_policy, kept, tried
from benchmarks.jobs.table import of_range
from benchmarks.tables import PAGES, Data, at_most, beside, of_paper, seconds, spread
from lab.results import Origin, Results, Row, read

from sparkdl_comm.errors import InputError

TABLES = {name: table for path in PAGES.glob("*/README.md") for name, table in tables.tables(path.parent.name).items()}
COMMAND = "python python/benchmarks ps --steps 50 --json python/benchmarks/ps/results/ps.json"
PAGE = f"""Claim.

<!-- table: ps -->
what was here before
<!-- end -->

    {COMMAND.replace(" --json", " " + chr(92) + chr(10) + "        --json")}
"""


def row(algorithm: str, *samples: float, **changes: Any) -> Row:
    values: dict[str, Any] = {
        "suite": "ps",
        "case": "lenet5",
        "topology": "loopback",
        "rate_mbit": None,
        "world": 2,
        "bytes": 1000,
        "verified": True,
        "versions": {},
        "extra": {"parameters": 3_274_634},
    }
    return Row(**{**values, "algorithm": algorithm, "samples": samples, **changes})


def save(folder: Path, name: str, *rows: Row, **changes: Any) -> None:
    origin = dataclasses.replace(Origin.here(), commit="a" * 40, dirty=False, command=COMMAND, cpu="Fast", cores=2)
    path = folder / "ps" / "results" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(Results(dataclasses.replace(origin, **changes), rows).to_json())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A page, and what its table is made from."""
    save(tmp_path, "ps", row("ps", 0.2, 0.3, 0.25), row("gloo", 0.1, 0.11, 0.1))
    (tmp_path / "ps" / "README.md").write_text(PAGE)
    return tmp_path


def test_pages_and_data_agree() -> None:
    assert tables.main(["--check"]) == 0, "run `make tables`"


def test_every_table_is_on_a_page_and_every_file_in_a_table() -> None:
    pages = "".join(path.read_text() for page in PAGES.iterdir() for path in tables.files(page))
    assert [pages.count(f"<!-- table: {name} -->") for name in TABLES] == [1] * len(TABLES)
    used: set[str] = set()
    for table in TABLES.values():
        data = Data()
        assert {len(line) for line in table.lines(data)} <= {len(table.columns)}
        used |= data.origins.keys()
    assert used == {path.stem for path in PAGES.glob("*/results/*.json")}


def test_a_table_is_written_between_its_markers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--folder", str(folder)]
    assert tables.main(["--check", *arguments]) == 1
    assert (folder / "ps" / "README.md").read_text() == PAGE
    assert "ps/README.md is not what the results make" in capsys.readouterr().err
    assert tables.main(arguments) == 0
    lines = (folder / "ps" / "README.md").read_text().splitlines()
    assert lines[3:6] == [
        "| network | `gloo` in the same run | `ps` | verdict |",
        "| --- | --- | --- | --- |",
        "| lenet5, 3,274,634 parameters, 2 executors | 0.1 s (0.1 to 0.11) | 0.25 s (0.2 to 0.3) | slower: 2.50 of its time |",
    ]
    assert lines[7].startswith("Commit aaaaaaa, ")
    assert tables.main(["--check", *arguments]) == 0


def test_a_file_is_parsed_once_for_all_tables(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[Path] = []

    def counting(path: Path) -> Results:
        parsed.append(path)
        return read(path)

    monkeypatch.setattr(tables, "read", counting)
    for data in (Data(folder), Data(folder)):
        assert [(ours.algorithm, other.algorithm) for ours, other in data.pairs("ps", ["gloo"])] == [("ps", "gloo")]
        assert list(data.origins) == ["ps"]
    assert len(parsed) == 1


def test_what_is_not_measured_is_said_to_be_so(folder: Path) -> None:
    (folder / "ps" / "results" / "ps.json").unlink()
    assert tables.main(["--folder", str(folder)]) == 0
    assert "<!-- table: ps -->\n*Not measured" in (folder / "ps" / "README.md").read_text()


@pytest.mark.parametrize("changes", [{"commit": "b" * 40}, {"cpu": "Slow"}])
def test_a_table_is_of_one_commit_and_one_machine(tmp_path: Path, changes: dict[str, str]) -> None:
    save(tmp_path, "lp-2", row("lp", 1.0, case="reduce", theory_seconds=1.0))
    save(tmp_path, "lp-9", row("lp", 1.0, case="reduce", theory_seconds=1.0), **changes)
    page = "<!-- table: pipeline -->\n<!-- end -->\n"
    with pytest.raises(
        InputError, match=f"one {next(iter(changes))}, but lp-2: .*lp-9: {next(iter(changes.values()))}"
    ):
        tables.render("collectives", page, [COMMAND], tmp_path)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: save(folder, "ps", row("ps", 1.0), dirty=True), "commit the code, and measure again"),
        (lambda folder: save(folder, "ps", row("ps", 1.0), commit=None, dirty=None), "commit the code"),
        (lambda folder: save(folder, "ps", row("ps", 1.0, verified=False)), "not verified: lenet5 ps"),
        (lambda folder: save(folder, "ps", row("ps", 1.0), row("gloo", 1.0), row("gloo", 1.0)), "2 rows are"),
        (lambda folder: save(folder, "ps", row("ps", 1.0), row("gloo", 1.0), command="a b"), "what `a b` measured"),
        (lambda folder: (folder / "ps" / "results" / "ps.json").write_text("{}"), "format 1"),
        (
            lambda folder: (folder / "ps" / "README.md").write_text("<!-- table: tea -->\n<!-- end -->"),
            "'tea': must be one of ps",
        ),
        (lambda folder: (folder / "ps" / "README.md").write_text("<!-- table: ps -->\n"), "needs an `<!-- end -->`"),
    ],
)
def test_what_cannot_stand_in_a_table(
    folder: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], object], said: str
) -> None:
    damage(folder)
    before = (folder / "ps" / "README.md").read_text()
    assert tables.main(["--folder", str(folder)]) == 1
    assert said in capsys.readouterr().err
    assert (folder / "ps" / "README.md").read_text() == before


def test_spreads_and_verdicts() -> None:
    assert spread([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert spread([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 99.0]) == (2.0, 6.0)
    assert seconds(row("ps", 0.0123, 0.0125, 0.0131)) == "12.5 ms (12.3 to 13.1)"
    slow, fast, wide = row("a", 2.0, 2.1, 2.2), row("b", 1.0, 1.05, 1.1), row("c", 0.5, 1.9, 3.0)
    assert beside(fast, slow) == "faster: 0.50 of its time"
    assert beside(slow, fast) == "slower: 2.00 of its time"
    assert beside(wide, slow) == "no difference shown: 0.90 of its time"
    assert beside(row("d", 1.0, 1.0), slow) == "too few samples: 0.48 of its time"
    assert (at_most(1.084, 1.08), at_most(1.09, 1.08)) == ("reached: 1.08", "**missed**: 1.09")
    assert of_paper(1.5, 2.0) == "the paper's **missed**: 0.75 of it"
    assert of_paper(1.999, 2.0, "its gain") == "its gain reached: 1.00 of it"
    assert of_range(0.18, 18.7, 56.4) == "**less than the paper's least**"
    assert of_range(0.187, 18.7, 56.4) == of_range(0.564, 18.7, 56.4) == "within the paper's range"
    assert of_range(0.6, 18.7, 56.4) == "more than the paper's most"


PARTS_TRIED = {"whole": 2.9, "ibatch": 2.8, "parts:24": 1.8}


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"kept": {"pull": "plan, 7 pulls", "push": "plan, 1 push"}}, "plan, 7 pulls, 1 push"),
        ({"kept": {"pull": "parts:24", "push": "parts:24"}}, "`parts:24`"),
        ({"kept": {"pull": "plan, 2 pulls", "push": "whole"}}, "plan, 2 pulls; pushes whole"),
        (
            {"runs": [{"kept": {"pull": each, "push": each}} for each in ("whole", "parts:24", "whole")]},
            "`whole` or `parts:24`",
        ),
        ({"batches": {"pull": 22, "push": 22}, "tried": PARTS_TRIED}, "`parts:24`"),
        (
            {"batches": {"pull": 30, "push": 30}, "tried": PARTS_TRIED | {"ibatch": 1.5}},
            "plan, 30 pulls, 30 pushes, one per layer",
        ),
        ({"batches": {"pull": 30, "push": 30}, "tried": {"ibatch": 1.9, "layerwise": 1.8}}, "`layerwise`"),
        ({"batches": {"pull": 4, "push": 30}, "tried": {"ibatch": 1.9, "layerwise": 1.8}}, "plan, 4 pulls, 30 pushes"),
    ],
)
def test_what_ibatch_kept_is_told(extra: dict[str, Any], said: str) -> None:
    """Of a network with 30 layers."""
    assert kept(row("ibatch", 1.0, extra=extra), layers=30) == said


def test_equal_cuts_are_no_gain() -> None:
    each, two = ({"batches": {"pull": count, "push": count}} for count in (30, 2))
    layerwise = row("layerwise", 3.0, 3.0, 3.0, extra=each)
    assert beside_policy(row("ibatch", 2.0, 2.0, 2.0, extra=each), layerwise) == "the same cuts: 0.67 of its time"
    assert beside_policy(row("ibatch", 2.0, 2.0, 2.0, extra=two), layerwise) == "faster: 0.67 of its time"
    assert (
        beside_policy(row("ibatch", 2.0, 2.0, 2.0, extra=each), row("ring", 3.0, 3.0, 3.0))
        == "faster: 0.67 of its time"
    )


def test_a_sample_below_its_bound_is_refused_and_is_no_base(tmp_path: Path) -> None:
    bound, runs = {"theory_seconds": 0.15, "case": "vgg19"}, {"runs": [{"kept": {"pull": "whole", "push": "whole"}}]}

    def lines(alone: float) -> list[tuple[str, ...]]:
        tables._read_checked.cache_clear()
        rows = [row("ibatch", alone, 0.16, world=world, extra=runs, **bound) for world in (1, 2)]
        save(tmp_path, "bigdl-scaling", *rows)
        return list(TABLES["bigdl_scaling"].lines(Data(tmp_path)))

    assert lines(0.16)[1][2] == "2.00 x: 1.00 of linear; 0.16 s (0.16 to 0.16)"
    for *_, ours, verdict in lines(0.06):
        assert ours == "0.11 s (0.06 to 0.16)"
        assert verdict == "refused: a sample of 0.06 s is below theory, 0.15 s"


def test_the_papers_figures_are_those_of_the_ways_that_were_run(tmp_path: Path) -> None:
    save(tmp_path, "ibatch-nodes-1", row("whole", 1.0, case="vgg19", world=1))
    for nodes, ways in ((8, ("whole", "paper")), (16, ("whole",))):
        save(tmp_path, f"ibatch-nodes-{nodes}", *(row(way, 2.0, 2.0, case="vgg19", world=nodes) for way in ways))
    lines = TABLES["ibatch_nodes"].lines(Data(tmp_path))
    assert [line[1] for line in lines] == ["on 30: `whole` 23; `paper` 26", "on 30: `whole` 23"]


def test_what_was_tried_has_its_prediction_where_that_is_known() -> None:
    found = {"whole": 3.0, "ibatch": 2.0, "layerwise": 1.0}
    assert tried(row("ibatch", 1.0, extra={"tried": found})) == "`whole` 3 s; the plan: 2 s; `layerwise` 1 s"
    predicted = {"tried": {"ibatch": 2.0}, "tried_predicted": {"ibatch": 1.25}}
    assert tried(row("ibatch", 1.0, extra=predicted)) == "the plan, one per layer: 2 s (1.25 s predicted)"


def test_a_rejected_plan_is_told_in_the_table(tmp_path: Path) -> None:
    about = {"pull_seconds": 0.6, "forward_seconds": 0.5, "predicted_seconds": 1.1}
    save(
        tmp_path,
        "ibatch-rivals-vgg19",
        row(
            "ibatch",
            1.8,
            theory_seconds=1.5,
            extra={**about, "batches": {"pull": 22, "push": 22}, "tried": PARTS_TRIED},
        ),
        row("whole", 2.9, extra=about),
        row("paper", 2.6, extra=about),
    )
    first, *_, last = TABLES["ibatch_vgg19"].lines(Data(tmp_path))
    assert first[1:] == (
        "`whole` 2.9 s; the plan, one per layer: 2.8 s; `parts:24` 1.8 s",
        "`parts:24`: 1.8 s (1.8 to 1.8)",
        "plan rejected",
    )
    assert last[0] == "a pull 1.2 x forward: `paper` beside `whole`; the paper: 1.13 x"
    assert last[3].startswith("the paper's **missed**: 0.99 of it"), "the paper batches pulls alone, as `paper` does"


def test_norms_that_are_dealt_out_are_judged_by_the_papers_gain(tmp_path: Path) -> None:
    save(tmp_path, "pto-8", *(row(way, taken, case="norms") for way, taken in (("local", 3.0), ("pto-gang", 2.0))))
    [line] = TABLES["pto"].lines(Data(tmp_path))
    assert line[1] == "11 ms to 7 ms, 128 GPUs"
    assert line[3].startswith("the paper's gain **missed**: 0.95 of it; ")


def test_both_readings_of_the_loops_are_told(tmp_path: Path) -> None:
    """Section 4.2's Alg. 1 follows computing, its Alg. 3 overlaps; in the pseudo-code Alg. 1 overlaps."""
    times = {"root-overlap": {"lp": 1.55, "be": 1.94}, "root": {"lp": 2.01, "be": 2.45}, "all-reduce": {"lp": 1.77}}
    rows = [
        row(name, taken, extra={"loop": loop, "computing": 1.36, "exchange": 1.03})
        for loop, found in times.items()
        for name, taken in found.items()
    ]
    save(tmp_path, "lp-alexnet", *rows)
    found = {
        paper: (about, ours[:6], verdict.partition(";")[0])
        for about, paper, ours, verdict in TABLES["lp_training"].lines(Data(tmp_path))
        if paper != "-"
    }
    assert found == {
        "2.12 x: Alg. 3 beside Alg. 1, as 4.2 describes them": (
            "alexnet: `lp`, `root-overlap`, beside `be`, `root`",
            "1.58 x",
            "the paper's **missed**: 0.75 of it",
        ),
        "1.91 x: Alg. 1 beside Alg. 1, as 4.2 describes them": (
            "alexnet: `lp`, `root`, beside `be`",
            "1.22 x",
            "the paper's **missed**: 0.64 of it",
        ),
        "2.12 x: Alg. 3 beside Alg. 1, as 3.3 numbers them": (
            "alexnet: `lp`, `all-reduce`, beside `be`, `root-overlap`",
            "1.10 x",
            "the paper's **missed**: 0.52 of it",
        ),
        "1.91 x: Alg. 1 beside Alg. 1, as 3.3 numbers them": (
            "alexnet: `lp`, `root-overlap`, beside `be`",
            "1.25 x",
            "the paper's **missed**: 0.66 of it",
        ),
    }
    # MST sends 2 T beside forward and 2 T beside backward; an all-reduce by the links takes 1.5 T.
    assert [*TABLES["lp_exchanges"].lines(Data(tmp_path))] == [("alexnet", "0.47", "1.03", "1.03")]


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ([0.97, 0.98, 0.99], "within 0.5 points: 0.0 ± 0.0 points more"),
        ([0.98, 0.99, 1.0], "within 0.5 points: 1.0 ± 0.0 points more"),
        ([0.95, 0.965, 0.97], "1.8 ± 0.3 points less"),
        ([0.95, 0.96], "too few seeds: 2.0 points less"),
        ([0.967, 0.977, 0.977], "not decided: 0.6 ± 0.7 points less"),
        ([0.968, 0.978, 0.98], "not decided: 0.5 ± 0.5 points less"),
    ],
)
def test_a_verdict_on_accuracy_knows_how_seeds_differ(tmp_path: Path, shares: list[float], said: str) -> None:
    rows = {"dense": [0.97, 0.98, 0.99][: len(shares)], "hitopk": shares}
    save(
        tmp_path, "compress-accuracy-lenet5", *(row(way, 1.0, extra={"accuracies": each}) for way, each in rows.items())
    )
    [line] = TABLES["accuracy_lenet5"].lines(Data(tmp_path))
    assert line[-1] == said


def test_accuracies_are_compared_with_dense_fits_of_the_same_task(tmp_path: Path) -> None:
    tasks = {"lenet5": [0.9, 0.9, 0.9], "resnet": [0.7, 0.7, 0.7]}
    save(
        tmp_path,
        "compress-mstopk-accuracy",
        *(
            row(way, 1.0, case=task, extra={"accuracies": each})
            for task, each in tasks.items()
            for way in ("dense", "mstopk")
        ),
    )
    lines = list(TABLES["accuracy_mstopk"].lines(Data(tmp_path)))
    assert [line[0] for line in lines] == ["`mstopk`, lenet5", "`mstopk`, resnet"]
    assert {line[-1] for line in lines} == {"within 0.5 points: 0.0 ± 0.0 points more"}


def test_predictions_of_races_that_were_not_run_are_left_out(tmp_path: Path) -> None:
    raced = {"updates": 90, "raced_seconds": [1.1], "raced_commit": "abc"}
    save(tmp_path, "fabric-predicted", row("async", 1.0, extra=raced), row("ring-2", 1.0, extra={"updates": 90}))
    [line] = TABLES["fabric_predicted"].lines(Data(tmp_path))
    assert line[0] == "lenet5, `async`, 90 updates"


@pytest.mark.parametrize(
    ("measured", "said"),
    [(1.15, "within 15 %: +15 %"), (0.84, "**not within** 15 %: -16 %"), (3.2, "**not within** 15 %: +220 %")],
)
def test_a_verdict_on_theory_says_by_how_much_it_is_missed(tmp_path: Path, measured: float, said: str) -> None:
    save(tmp_path, "compress-0.01", row("ring", measured, theory_seconds=1.0, extra={"count": 9, "density": 1.0}))
    [line] = TABLES["sum_theory"].lines(Data(tmp_path))
    assert line == (
        "`ring`, 9 elements, density 1",
        "1 s",
        f"{measured:.3g} s ({measured:.3g} to {measured:.3g})",
        said,
    )


def test_lines_of_other_tables_stand_in_a_summary(folder: Path) -> None:
    picks = [("one machine, ", "ps", "lenet5", "0.1 s"), ("", "ps", "vgg", ""), ("", "ps", "lenet5", "9 s")]
    [line] = tables.summary(TABLES, picks).lines(Data(folder))
    [there] = TABLES["ps"].lines(Data(folder))
    assert line == ("one machine, " + there[0], *there[1:])


def test_a_summary_has_at_most_twelve_lines() -> None:
    for name, table in TABLES.items():
        assert not table.about_origins or 0 < len(list(table.lines(Data()))) <= 12, name


def test_a_chart_has_a_bar_for_each_value_and_round_ticks() -> None:
    bars = [charts.Bar("ours", 3.0, 2.0, 4.0), charts.Bar("theirs", 8.0, 8.0, 8.0)]
    drawn = charts.svg(charts.Chart("Seconds <of> two", "s", [("star:3", bars)]))
    assert "Seconds &lt;of&gt; two" in drawn
    scale = 760 - 110 - (24 + 7 * len("star:3"))
    assert [f'width="{scale * value / 8:.1f}"' in drawn for value in (3, 8, 4)] == [True, True, False]
    assert drawn.count('<path class="range"') == 1, "one value has a range"
    assert [charts._ticks(most) for most in (8.0, 0.3, 97.0)] == [
        [0, 1, 2, 3, 4, 5, 6, 7, 8],
        [0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3],
        [0, 20, 40, 60, 80],
    ]


def test_commands_of_a_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "ps" / "README.md").write_text(PAGE + "\ntext\n\n    python python/benchmarks lab\n")
    assert tables.main(["--folder", str(folder), "--commands", "ps"]) == 0
    assert capsys.readouterr().out.splitlines() == [COMMAND, "python python/benchmarks lab"]
    with pytest.raises(SystemExit):
        tables.main(["--folder", str(folder), "--commands", "tea"])


def test_every_command_writes_what_a_table_reads() -> None:
    """Of all pages: each to a file of its own in its page's results, which a table would use."""
    told = [command for page in PAGES.iterdir() for command in tables.commands(page)]
    wanted = {Path(command.split(" --json ")[1]).stem for command in told}
    asked: set[str] = set()

    class Asked(Data):
        def rows(self, name: str, **wanted: object) -> list[Row]:
            asked.add(name)
            return []

    for table in TABLES.values():
        list(table.lines(Asked()))
    assert len(told) == len(wanted)
    assert wanted == asked


def test_an_iteration_by_parts_is_told_in_shares_of_the_default_ones(tmp_path: Path) -> None:
    phases = {"forward": 0.2, "backward": 0.4, "update": 0.1, "wait for push": 0.3}
    stays = {"pull": "whole", "push": "whole"}
    rows = [
        row("whole", 2.0, world=8, extra={"phases": phases, "overlapped": 0.0}),
        row("ibatch", 1.0, world=8, extra={"phases": phases, "overlapped": 0.5, "kept": stays}),
    ]
    save(tmp_path, "ibatch-nodes-8", *rows)
    save(tmp_path, "ibatch-nodes-1", row("whole", 0.7, world=1))
    assert [line[1:] for line in TABLES["ibatch_split"].lines(Data(tmp_path))] == [
        ("0.000", "0.650", "0.350", "1.000"),
        ("0.250", "0.150", "0.100", "0.500"),
    ]
    [line] = TABLES["ibatch_nodes"].lines(Data(tmp_path))
    assert line == (
        "lenet5, 8 nodes",
        "-",
        "`whole` 2.8; `ibatch` (`whole`) 5.6",
        "0.35; 0.70 of linear; samples each: 1",
    )
