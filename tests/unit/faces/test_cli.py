"""The command line as a person meets it."""

import pytest
from lab.commands import main as lab_main

from sparkdl_comm.cli import main


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["cache"],
        ["explain"],
        ["predict"],
    ],
    ids=" ".join,
)
def test_help(words, capsys):
    with pytest.raises(SystemExit) as exited:
        main([*words, "--help"])
    assert exited.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: {' '.join(['sparkdl-comm', *words])}")


@pytest.mark.parametrize("words", [[], *([it] for it in ("up", "status", "exec", "down", "check", "run", "submit"))])
def test_help_of_the_lab(words, capsys):
    with pytest.raises(SystemExit) as exited:
        lab_main([*words, "--help"])
    assert exited.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: {' '.join(['sparkdl-lab', *words])}")


def test_an_error_is_one_line(capsys):
    assert lab_main(["check", "--topology", "ring:3", "--rate", "100mbit"]) == 1
    assert "ring" in capsys.readouterr().err
