"""`sparkdl-comm predict`: an iteration on other networks, from what a timeline tells."""

import itertools
import json
import re
import shlex
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from sparkdl_comm.cli import main
from sparkdl_comm.collectives.algorithms import make_plan
from sparkdl_comm.collectives.plan import Collective
from sparkdl_comm.errors import ConfError, InputError, PersistenceError
from sparkdl_comm.report.drawing import new_figure, save_figure
from sparkdl_comm.report.timeline import Timeline, read_trace
from sparkdl_comm.sim.forecast import STRATEGIES, Setting, forecast
from sparkdl_comm.sim.network import HEADERS, ethernet_cost
from sparkdl_comm.sim.plan_run import simulate
from sparkdl_comm.sim.server_run import Overhead, TimedLayer
from sparkdl_comm.sim.traced_timings import TracedTimings, timings_from_spans, traced_overhead
from sparkdl_comm.topology import Topology

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "timeline.md"
#: Of one rank, iteration after iteration: forward 2 s of work, backward 4 s, update 1 s, whatever waits there are.
PLAIN = [("forward", 0.0, 3.0), ("wait for pull", 1.0, 2.0), ("backward", 3.0, 7.0), ("wait for push", 7.0, 9.0)]
PLAIN += [("update", 9.0, 10.0)]
BATCHES: list[dict[str, Any]] = [
    {"name": "pull batch", "begin": 0.5, "end": 1.0, "batch": 0, "layers": [1, 1], "bytes": 300, "startup": 0.25},
    {"name": "pull batch", "begin": 1.0, "end": 2.0, "batch": 1, "layers": [2, 3], "bytes": 900, "startup": 0.75},
    {"name": "forward batch", "begin": 2.0, "end": 2.5, "batch": 0, "layers": [1, 1]},
    {"name": "forward batch", "begin": 2.5, "end": 3.0, "batch": 1, "layers": [2, 3]},
    {"name": "backward batch", "begin": 3.0, "end": 6.0, "batch": 0, "layers": [2, 3]},
    {"name": "backward batch", "begin": 6.0, "end": 7.0, "batch": 1, "layers": [1, 1]},
    {"name": "push batch", "begin": 7.0, "end": 8.0, "batch": 0, "layers": [1, 3], "bytes": 1200, "startup": 9.0},
    {"name": "aggregate batch", "begin": 8.0, "end": 9.0, "batch": 0, "layers": [1, 3]},
]
LAYERS = (TimedLayer(1.0, 1.0, 400), TimedLayer(0.5, 1.5, 600), TimedLayer(0.5, 1.5, 600))


def saved(folder: Path, *, ranks: int = 4, batches: bool = True, parameter_bytes: int = 1600) -> Path:
    clocks = {"boot": "a", "sent": [0.0], "received": [0.0]}
    spans = [{"name": name, "begin": begin, "end": end} for name, begin, end in PLAIN]
    spans += BATCHES if batches else []
    iterations = [
        {
            "iteration": number,
            "spans": [{**span, "begin": span["begin"] + later, "end": span["end"] + later} for span in spans],
        }
        for number, later in ((7, 0.0), (8, 20.0))
    ]
    report = {"clocks": clocks, "parameter_bytes": parameter_bytes, "iterations": iterations}
    path = folder / "trace.json"
    Timeline([report] * ranks).save(path)
    return path


def test_computing_is_what_the_timeline_tells_without_waits(tmp_path):
    found = timings_from_spans(read_trace(saved(tmp_path)).spans, 1)
    for layer, wanted in zip(found.layers, LAYERS, strict=True):
        assert asdict(layer) == pytest.approx(asdict(wanted))
    assert found.update == pytest.approx(4.0), "each of four has updated its part"
    assert (found.pulls, found.pushes) == (((0, 0), (1, 2)), ((0, 2),))


def spans_of(*told: tuple[int, int, str, float, float]) -> list[dict[str, Any]]:
    """Of (rank, iteration, name, begin, end)."""
    keys = ("rank", "iteration", "name", "begin", "end")
    return sorted((dict(zip(keys, one, strict=True)) for one in told), key=lambda span: span["begin"])


def test_overhead_is_what_waits_take_beside_the_last_rank_and_what_moves():
    spans = spans_of(
        (0, 1, "backward", 0.0, 4.0),
        (1, 1, "backward", 0.0, 10.0),  # the last rank: until then rank 0 waits for it
        (0, 1, "wait for push", 4.0, 15.0),  # 10 to 15, of which 2 s are bytes and sums
        (0, 1, "push batch", 11.0, 12.0),
        (0, 1, "aggregate batch", 12.0, 13.0),
        (1, 1, "wait for push", 10.0, 13.0),
        (0, 1, "update", 15.0, 16.0),
        (1, 1, "update", 13.0, 20.0),
        (0, 2, "wait for pull", 16.0, 22.0),  # 20 to 22
        (0, 2, "pull batch", 21.0, 21.5),
        (1, 2, "wait for pull", 20.0, 21.5),
        (0, 2, "wait for pull", 23.0, 24.0),  # a later batch, though nothing moves
    )
    push, pull = (3.0 + 3.0) / 2, (1.5 + 1.5) / 2
    found = traced_overhead(spans, batches=2)
    assert (found.startup, found.handling) == (pytest.approx((push + pull) / 2), pytest.approx(0.5 / 2))


def test_the_server_is_not_ranked_first_where_its_way_through_the_jvm_takes_longest():
    """A step of 1.6 ms of computing, as of 72,000 parameters; of a timeline of ps, and of another strategy."""
    layers = tuple(TimedLayer(2e-4, 3e-4, 96_000) for _ in range(3))
    setting = {strategy: Setting(Topology.parse("star:2,10gbit"), strategy) for strategy in ("ps", "ring")}
    for found in (
        TracedTimings(layers, 1e-4, ((0, 2),), ((0, 2),), 0.0, Overhead(0.003, 0.001)),
        TracedTimings(layers, 1e-4, (), ()),
    ):
        seconds = {strategy: forecast(found, each).seconds for strategy, each in setting.items()}
        assert seconds["ring"] < seconds["ps"]
        assert seconds["ps"] > 2 * found.server.startup + found.server.handling + 1.5e-3
        whole = forecast(found, Setting(Topology.parse("star:2,10gbit"), "ps", "whole"))
        assert whole.computing == pytest.approx(1.5e-3 + 1e-4 / 2), "the server's way is no computing"


def test_what_grows_with_bytes_is_told_from_what_a_batch_takes(tmp_path):
    spans = read_trace(saved(tmp_path)).spans
    spans = [span for span in spans if span["name"] != "push batch"]
    for first, last, seconds in ((3, 3, 0.1 + 0.06), (1, 2, 0.1 + 0.1)):  # 600 and 1000 bytes
        for rank, iteration in itertools.product(range(4), (7, 8)):
            span = {"rank": rank, "iteration": iteration, "begin": 9.0, "batch": 0, "layers": [first, last]}
            spans.append({**span, "name": "update batch", "end": 9.0 + seconds})
            spans.append({**span, "name": "push batch", "end": 9.5, "bytes": 0})
    found = timings_from_spans(spans, 1600)
    # Of a second in each iteration 0.16 are what 1600 bytes take; the rest is for two batches.
    assert (found.update, found.handling) == (pytest.approx(4 * 0.16), pytest.approx((1 - 0.16) / 2))
    topology = Topology.parse("star:8,8gbit")
    server = forecast(found, Setting(topology, "ps", "layerwise"))
    assert server.computing == pytest.approx(6 + 4 * 0.16 / 8 + 3 * found.handling)
    ring = forecast(found, Setting(topology, "ring"))
    assert ring.computing == pytest.approx(6 + 4 * 0.16 + found.handling)
    assert ring.seconds >= ring.computing


def test_without_batches_gradients_come_evenly(tmp_path):
    spans = read_trace(saved(tmp_path, batches=False)).spans
    found = timings_from_spans(spans, 6400)
    assert {layer.nbytes for layer in found.layers} == {100}
    assert found.passes + found.update == pytest.approx(7.0)
    assert not found.pulls


@pytest.mark.parametrize(("given", "nbytes"), [([], "40MB"), (["--bytes", "80MB"], "80MB")])
def test_a_timeline_of_a_collective_tells_the_bytes_of_the_model(tmp_path, capsys, given, nbytes):
    path = saved(tmp_path, batches=False, parameter_bytes=40_000_000)
    words = ["predict", "--timeline", str(path), "--rate", "1gbit", "--json"]
    assert main([*words, *given]) == 0
    told = json.loads(capsys.readouterr().out)
    assert main([*words, "--bytes", nbytes]) == 0
    assert json.loads(capsys.readouterr().out) == told
    assert told["predictions"][0]["strategy"] == "ring"


def test_a_faster_link_gains_what_shows_of_communication():
    found = TracedTimings((TimedLayer(1.0, 2.0, 40e6),), 0.5, (), ())
    topology = Topology.parse("star:2,100mbit")
    result = forecast(found, Setting(topology, "ring"))
    plan = make_plan("ring", Collective("all_reduce", topology, 10_000_000))
    alone = simulate(plan, ethernet_cost(topology)).seconds
    assert result.seconds == pytest.approx(3.5 + alone)
    assert (result.computing, result.communication) == (pytest.approx(3.5), pytest.approx(alone))
    assert result.doubled[0] == pytest.approx(3.5 + alone / 2, rel=1e-3)
    assert result.faster == pytest.approx(1.75 + alone)
    assert result.bottleneck == "computing"
    assert forecast(found, Setting(topology.with_rates("10mbit"), "ring")).bottleneck == "rail 0"


def test_the_server_overlaps_what_its_batches_allow():
    found = TracedTimings(LAYERS, 0.0, ((0, 0), (1, 2)), ((0, 2),))
    topology = Topology.parse("star:2,8kbit")
    whole = forecast(found, Setting(topology, "ps", "whole"))
    assert whole.seconds == pytest.approx(6 + whole.communication)
    assert forecast(found, Setting(topology, "ps", "layerwise")).seconds < whole.seconds


def test_decoupled_collectives_hide_what_forward_takes():
    layers = tuple(TimedLayer(1.0, 2.0, 4e3) for _ in range(12))
    found, topology = TracedTimings(layers, 0.3, (), ()), Topology.parse("star:3")

    def seconds(strategy, rate):
        return forecast(found, Setting(topology.with_rates(rate), strategy, bucket=4000))

    slow, fast = (seconds("ring+decoupled", rate) for rate in ("16kbit", "1gbit"))
    assert fast.seconds == pytest.approx(36 + 0.1, rel=1e-3)
    assert fast.computing == pytest.approx(36 + 0.1)
    # For what travels links need 32 s, 24 of which can be beside backward.
    assert slow.communication == pytest.approx(32 * HEADERS, rel=0.05)
    assert slow.seconds < 0.95 * seconds("ring", "16kbit").seconds


def test_the_command_tells_time_bottleneck_and_gain(tmp_path, capsys):
    words = ["predict", "--timeline", str(saved(tmp_path)), "--rate", "8kbit"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("ps on star:4,8kbit, 4 ranks: ")
    assert "bottleneck: " in shown
    assert "rail 0 twice as fast: " in shown
    assert main([*words, "--strategy", "bml", "--topology", "bcube:2,2", "--json"]) == 0
    [told] = json.loads(capsys.readouterr().out)["predictions"]
    assert (told["strategy"], len(told["doubled"])) == ("bml", 2)
    assert told["seconds"] >= told["computing"] == pytest.approx(6.0 + 4.0)


def test_the_command_ranks_strategies(tmp_path, capsys):
    words = ["predict", "--timeline", str(saved(tmp_path)), "--rate", "100kbit", "--strategy", "mst"]
    assert main([*words, "--strategy", "ring", "--strategy", "mst"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["an", "strategy", "ring", "mst"]
    assert main([*words, "--strategy", "all", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    ranked = [row["strategy"] for row in told["predictions"]]
    assert (ranked[-1], set(ranked) | set(told["left_out"])) == ("mst", set(STRATEGIES))
    assert [row["seconds"] for row in told["predictions"]] == sorted(row["seconds"] for row in told["predictions"])


@pytest.mark.slow
def test_the_guide_ranks_strategies_and_draws(tmp_path, monkeypatch, capsys):
    """Its command as it stands, on a timeline of that name."""
    (command,) = re.findall(r"^sparkdl-comm predict .*$", GUIDE.read_text(), re.MULTILINE)
    saved(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(command)[1:]) == 0
    assert "left out: " in capsys.readouterr().out
    assert (tmp_path / "prediction.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(PersistenceError, match=r"--plot .*tea"):
        save_figure(new_figure(1, 1), tmp_path / "prediction.tea")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--rate", "1gbit", "--strategy", "tea"], "strategy 'tea' cannot be simulated: there are ps, "),
        (["--rate", "1gbit", "--batching", "tea"], "batching 'tea'"),
        (["--rate", "1gbit", "--strategy", "rnig"], "; did you mean ring?"),
        (["--rate", "1gbit", "--strategy", "ring+decopled"], "; did you mean ring+decoupled?"),
        (["--rate", "1gbit", "--strategy", "ring+decoupled+ibatch"], "'ring+decoupled+ibatch' cannot be simulated"),
        (["--rate", "1gbit", "--strategy", "ps+ibatch"], "batching 'ibatch' of ps cannot be simulated"),
        (["--rate", "1gbit", "--strategy", "bml", "--topology", "hosts:2x2"], "bml on hosts:2x2,1gbit"),
        (["--rate", "1gbit", "--topology", "bcube:2,2"], "ps is simulated with one NIC"),
        (["--rate", "1gbit", "--topology", "star:3", "--world", "4"], "--world 4: star:3 has 3 ranks"),
        (["--rate", "1gbit", "--world", "0"], "number of hosts"),
        ([], "has no rates"),
        (["--rate", "1gbit", "--bytes", "tea"], "tea"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path, capsys, words, complaint):
    assert main(["predict", "--timeline", str(saved(tmp_path)), *words]) == 1
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "not JSON"),
        ("[]", "no list 'traceEvents'"),
        ('{"traceEvents": 5}', "no list 'traceEvents'"),
        ('{"traceEvents": []}', "no 'parameter_bytes'"),
        ('{"traceEvents": [], "otherData": {"parameter_bytes": 4}}', "no spans"),
        ('{"traceEvents": [{"ph": "X", "ts": 1}], "otherData": {"parameter_bytes": 4}}', "event 0 .* it lacks 'dur'"),
        ('{"traceEvents": [1], "otherData": {"parameter_bytes": 4}}', "event 0 "),
    ],
)
def test_what_is_no_timeline_is_refused(tmp_path, capsys, content, problem):
    path = tmp_path / "trace.json"
    path.write_text(content)
    assert main(["predict", "--timeline", str(path), "--rate", "1gbit"]) == 1
    told = capsys.readouterr().err
    assert re.search(rf"InputError: .*trace\.json.*{problem}", told), told
    assert "Error(" not in told
    with pytest.raises(InputError, match=r"nowhere\.json: No such file"):
        read_trace(tmp_path / "nowhere.json")


def test_a_timeline_without_backward_is_refused(tmp_path):
    spans = [span for span in read_trace(saved(tmp_path)).spans if span["name"] != "backward"]
    with pytest.raises(InputError, match="no span 'backward'"):
        timings_from_spans(spans, 1600)
    with pytest.raises(ConfError, match="no all_reduce|there are"):
        Setting(Topology.parse("star:2,1gbit"), "hitopk")


def test_the_servers_batching_may_follow_its_name(tmp_path, capsys):
    words = ["predict", "--timeline", str(saved(tmp_path)), "--rate", "1gbit", "--json"]
    found = {}
    for ways in (
        ["--strategy", "ps", "--batching", "layerwise"],
        ["--strategy", "ps+layerwise", "--strategy", "ps+whole"],
    ):
        assert main([*words, *ways]) == 0
        found |= {row["strategy"]: row["seconds"] for row in json.loads(capsys.readouterr().out)["predictions"]}
    assert found["ps+layerwise"] == found["ps"] != found["ps+whole"]


def test_a_prediction_needs_no_torch():
    """It takes milliseconds, and torch takes seconds to load."""
    modules = ("cli", "report.drawing", "report.timeline", "sim.forecast", "sim.traced_timings")
    code = f"import sys, {', '.join(f'sparkdl_comm.{name}' for name in modules)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
