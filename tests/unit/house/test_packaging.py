"""What pyproject.toml, the Makefile and the documentation say of installing, beside what is there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
import tomllib
from packaging.requirements import Requirement

from sparkdl_comm import plugin
from sparkdl_comm.errors import PluginError

ROOT = Path(__file__).parents[3]
MAVEN = "{http://maven.apache.org/POM/4.0.0}"


@pytest.mark.parametrize(
    "version", ["3.4.4", "3.5.0", "3.5.9", "4.0.0", "4.0.2", "4.1.1", "4.2.0", "4.2.7", "4.3.0", "4.3.0.dev1", "5.0.0"]
)
def test_the_extra_allows_what_the_package_takes(tmp_path: Path, version: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (allowed,) = (each for each in map(Requirement, extras["spark"]) if each.name == "pyspark")
    for line in plugin.SPARK_LINES:
        (tmp_path / f"sparkdl-comm-spark{line}_2.13-0.1.0.jar").touch()
    if allowed.specifier.contains(version):
        assert plugin.jar_for(version, tmp_path).is_file()
    else:
        with pytest.raises(PluginError, match=rf"pyspark {re.escape(version)}: .* Spark 3\.5 and 4\.2 only"):
            plugin.jar_for(version, tmp_path)


def test_the_lines_of_spark_are_those_that_maven_builds() -> None:
    profiles = ElementTree.parse(ROOT / "scala" / "pom.xml").iter(f"{MAVEN}profile")
    names = [profile.findtext(f"{MAVEN}id") or "" for profile in profiles]
    assert {name.removeprefix("spark-") for name in names if name.startswith("spark-")} == set(plugin.SPARK_LINES)


def test_commands_of_the_documentation_can_be_run_in_its_order() -> None:
    """What is in .venv is there only after a target that makes it."""
    pages = [(ROOT / "README.md").read_text(), *(path.read_text() for path in (ROOT / "docs").rglob("*.md"))]
    code = "\n".join(
        each for page in pages for each in re.findall(r"^```.*?^```|`[^`\n]+`", page, re.MULTILINE | re.DOTALL)
    )
    targets = set(re.findall(r"\bmake ([a-z][a-z0-9-]*)", code))
    database = subprocess.run(["make", "-npq", "-C", str(ROOT)], capture_output=True, text=True, check=False).stdout
    assert targets
    assert targets <= set(re.findall(r"^([a-z0-9-]+):", database, re.MULTILINE))
    for page in pages:
        first = page.find(".venv/bin")
        assert first < 0 or "make env" in page[:first]
    programs = re.findall(r"(?:python )?python/benchmarks (?=[a-z])", code)
    assert programs
    assert all(program.startswith("python python/") for program in programs), "they are not executable by themselves"


def test_the_wheel_needs_no_environment_but_its_own() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "-n", "-B", "-o", "jar", "-C", str(ROOT), "wheel"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "pip wheel" in done.stdout
    assert ".venv" not in done.stdout
