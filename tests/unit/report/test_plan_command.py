"""`sparkdl-comm plan` as a person meets it."""

import json
from pathlib import Path

import pytest

from sparkdl_comm.cli import main
from sparkdl_comm.sim.profile import Profile
from tests.slow import slow

#: The paper's worked case, Fig. 4: layer 2 computes long, layer 11 transfers long.
TWELVE = {
    "startup": 1,
    "transfer": [1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 9, 1],
    "compute": [1, 4, 2, 2, 2, 9, 1, 1, 0, 1, 0, 0],
}


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(TWELVE))
    return path


def test_the_papers_case(profile, capsys):
    assert main(["plan", "--profile", str(profile), "--policy", "ibatch", "--json"]) == 0
    batches = [[1, 5], [6, 10], [11, 12]]
    expected = {"batches": batches, "predicted_seconds": 29.0, "optimal_ratio": 1.0}
    assert json.loads(capsys.readouterr().out) == expected


def test_for_people_and_drawn(profile, capsys):
    drawing = profile.with_suffix(".png")
    assert main(["plan", "--profile", str(profile), "--direction", "push", "--plot", str(drawing)]) == 0
    assert capsys.readouterr().out == "3 batches: 11-12 6-10 1-5; predicted 29 s, 1.0000 x the optimum\n"
    assert drawing.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("content", "options", "said"),
    [
        (TWELVE, ["--policy", "best"], "--policy best: must be one of whole"),
        (TWELVE, ["--policy", "layerwsie"], "; did you mean layerwise?"),
        (TWELVE, ["--policy", "fixed:100"], "needs the bytes of each layer"),
        slow({**TWELVE, "compute": [1]}, [], "as many layers in transfer (12) as in compute (1)"),
        slow({**TWELVE, "startup": -1}, [], "not negative"),
        ([1], [], "expected an object"),
        (TWELVE, ["--plot", "plan.xyz"], "--plot plan.xyz"),
    ],
)
def test_what_makes_no_sense_is_said(profile, capsys, content, options, said):
    profile.write_text(json.dumps(content))
    assert main(["plan", "--profile", str(profile), *options]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("direction", ["pull", slow("push")])
def test_a_shipped_profile_is_found_by_its_name(tmp_path, capsys, direction):
    layers = Profile.load("lenet5").layers
    sizes = [4 * layer.parameters for layer in layers]
    written = {
        "startup": 0.002,
        "transfer": [8 * size / 200e6 for size in sizes],
        "compute": [layer.forward if direction == "pull" else layer.backward for layer in layers],
        "bytes": sizes,
    }
    file = tmp_path / "written.json"
    file.write_text(json.dumps(written))
    told = []
    for words in (["lenet5", "--rate", "200mbit", "--startup", "2ms"], [str(file)]):
        assert main(["plan", "--direction", direction, "--json", "--profile", *words]) == 0
        told.append(json.loads(capsys.readouterr().out))
    assert told[0] == told[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["resnet5"], "resnet5: No such file or directory. Give a file, or one of alexnet, "),
        (["resnet5"], "; did you mean resnet50?"),
        (["resnet50", "--startup", "soon"], "--startup soon: must be a time"),
        (["resnet50", "--rate", "fast"], "rate 'fast'"),
    ],
)
def test_what_is_wrong_with_a_shipped_profile_is_said(capsys, words, said):
    assert main(["plan", "--profile", *words]) == 1
    assert said in capsys.readouterr().err


def test_without_java_or_a_profile(profile, capsys, monkeypatch):
    assert main(["plan", "--profile", "nowhere.json"]) == 1
    assert "--profile nowhere.json: No such file" in capsys.readouterr().err
    monkeypatch.setenv("JAVA_HOME", str(profile.parent))
    assert main(["plan", "--profile", str(profile)]) == 1
    assert "no java in JAVA_HOME" in capsys.readouterr().err
