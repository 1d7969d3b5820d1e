"""python/lda.py finds topics on three executors' JVMs: a server and two workers."""

import json
import runpy
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "python/lda.py"


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_topics_foretell_other_docstrings(tmp_path, monkeypatch, capsys):
    arguments = ["--documents", "100", "--words", "300", "--topics", "6", "--sweeps", "10", "--sync", "async:6"]
    monkeypatch.setattr(sys, "argv", ["lda.py", "--output", str(tmp_path / "new"), *arguments])
    runpy.run_path(str(PROGRAM), run_name="__main__")
    summary = json.loads((tmp_path / "new/summary.json").read_text())
    assert summary["updates"] >= 20
    assert summary["max_delay"] <= 6
    perplexities = [moment["score"] for moment in summary["perplexity"]]
    assert perplexities[-1] < perplexities[0] < 300
    assert [len(words) for words in summary["topics"]] == [8] * 6
    assert " ".join(summary["topics"][0]) in capsys.readouterr().out
