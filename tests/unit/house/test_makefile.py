"""Targets of the Makefile, with a Maven that only prints."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DOWNLOAD = "Downloading https://repository.invalid/a.jar"


def make(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "--no-print-directory", "-C", str(ROOT), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("status", [0, 1])
def test_downloads_of_scalafmt_are_not_shown_but_why_it_fails(tmp_path: Path, status: int) -> None:
    maven = tmp_path / "mvn"
    maven.write_text(f"#!/bin/sh\necho '{DOWNLOAD}'\necho 'ERROR: Pin.scala is not formatted' >&2\nexit {status}\n")
    maven.chmod(0o755)
    done = make("scalafmt", f"MVN={maven}")
    shown = done.stdout + done.stderr
    assert (done.returncode != 0, "Pin.scala is not formatted" in shown) == (status != 0, status != 0), shown
    assert DOWNLOAD not in shown
    assert "build/scalafmt.log" in shown
    assert DOWNLOAD in (ROOT / "build" / "scalafmt.log").read_text()


@pytest.mark.parametrize(
    ("target", "given", "seed"),
    [("test", None, None), ("test-all", None, "random"), ("test-all", "17", "17"), ("test", "17", "17")],
)
def test_draws_are_new_only_in_test_all(tmp_path: Path, target: str, given: str | None, seed: str | None) -> None:
    """Python's programs are replaced, and all prerequisites count as done."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python").write_text('#!/bin/sh\necho "seed ${SPARKDL_TEST_SEED-unset}"\n')
    (programs / "python").chmod(0o755)
    done = (
        "ready",
        "check",
        "docs",
        "scala-test",
        "scala-test-4",
        "connect-jar",
        "test-oldest",
        ".spark4/.stamp",
        ".venv/.stamp",
    )
    environment = {} if given is None else {"SPARKDL_TEST_SEED": given}
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SPARKDL_TEST_SEED", raising=False)
        result = make(
            target, f"BIN={programs}", "MVN=true", "ARCHIVES=", *(f"-o{name}" for name in done), **environment
        )
    assert f"seed {seed or 'unset'}" in result.stdout, result.stderr
