"""The command line as a person meets it."""

import pytest

from sparkdl_comm.cli import main


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["explain"],
        ["predict"],
        ["lab"],
        *(["lab", action] for action in ("up", "status", "exec", "down", "check", "run", "submit")),
    ],
    ids=" ".join,
)
def test_help(words, capsys):
    with pytest.raises(SystemExit) as exited:
        main([*words, "--help"])
    assert exited.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: {' '.join(['sparkdl-comm', *words])}")


def test_an_error_is_one_line(capsys):
    assert main(["lab", "check", "--topology", "ring:3", "--rate", "100mbit"]) == 1
    assert "ring" in capsys.readouterr().err
