"""Where BigDL is, and whether it can run here. No BigDL, and no Spark."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from unittest import mock

import pyspark
import pytest
from py4j.protocol import Py4JJavaError

from sparkdl_comm import bigdl
from sparkdl_comm.bigdl import installation
from sparkdl_comm.errors import PluginError

_LINE = ".".join(pyspark.__version__.split(".")[:2])
needs_spark_3 = pytest.mark.skipif(_LINE != "3.5", reason="BigDL has no build for another Spark")


@pytest.mark.parametrize(
    ("numpy_version", "spark_version", "said"),
    [
        ("2.2.6", "4.2.0", "runs on Spark 3.5 with Scala 2.12.*this is Spark 4.2.0"),
        ("2.2.6", "3.4.1", "this is Spark 3.4.1"),
        ("2.3.0", "3.5.9", "numpy below 2.3, and this is numpy 2.3.0"),
        ("2.10.1rc1", "3.5.9", "this is numpy 2.10.1rc1"),
    ],
)
def test_what_bigdl_cannot_run_with_is_refused(numpy_version: str, spark_version: str, said: str) -> None:
    with pytest.raises(PluginError, match=said):
        installation.check_python(numpy_version, spark_version)


def test_java() -> None:
    for version in ("1.8.0_392", "11.0.2", "17.0.9"):
        installation.check_java(version)
    with pytest.raises(PluginError, match="Java up to 17, and this is Java 21.0.1"):
        installation.check_java("21.0.1")


def test_scala() -> None:
    installation.check_scala("2.12.18")
    with pytest.raises(PluginError, match="compiled for Scala 2.12, and this Spark is for Scala 2.13.8"):
        installation.check_scala("2.13.8")


def context(java: str = "17.0.9", scala: str = "2.12.18", missing: str = "") -> Any:
    """A session's, on a JVM of these versions that does not load the class ``missing``."""

    def load(name: str, *_: Any) -> None:
        if name == missing:
            raise Py4JJavaError("no class", mock.Mock(_target_id="o1"))

    session = mock.MagicMock()
    session._jvm.java.lang.System.getProperty.return_value = java
    session._jvm.scala.util.Properties.versionNumberString.return_value = scala
    session._jvm.java.lang.Class.forName.side_effect = load
    return session


@pytest.mark.parametrize(
    ("session", "said"),
    [
        (context(java="21.0.1"), "Java up to 17, and this is Java 21.0.1"),
        (context(scala="2.13.8"), "this Spark is for Scala 2.13.8"),
        *(
            (context(missing=name), f"class {re.escape(name)} is not loaded: start the session with .*spark_conf")
            for name in ("com.intel.analytics.bigdl.dllib.utils.Engine", "sparkdl.comm.bigdl.PythonIBatch")
        ),
    ],
)
def test_the_engine_does_not_start_where_bigdl_cannot_run(
    session: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "check_python", lambda: None)
    with pytest.raises(PluginError, match=said):
        installation.start_engine(session, 2, 1)
    session._jvm.com.intel.analytics.bigdl.dllib.utils.Engine.init.assert_not_called()


def test_java_is_known_before_a_session_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert installation.java_version() is None
    (tmp_path / "release").write_text('IMPLEMENTOR="Some"\nJAVA_VERSION="25.0.3"\nJAVA_VERSION_DATE="2026-04-21"\n')
    assert installation.java_version() == "25.0.3"
    with pytest.raises(PluginError, match="Java up to 17, and this is Java 25.0.3: set JAVA_HOME"):
        installation.spark_conf(tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch(mode=0o755)
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert installation.java_version() == "25.0.3"


def test_without_bigdl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [])
    with pytest.raises(PluginError, match="BigDL is not installed"):
        installation.check_python("2.2.6", "3.5.9")


@pytest.mark.parametrize("name", ["BigDLEstimator", "BigDLModel", "IBatchOptimizer"])
def test_what_needs_bigdl_says_so_when_it_is_imported(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [])
    with pytest.raises(PluginError, match=r"BigDL is not installed|this is Spark 4"):
        getattr(bigdl, name)
    assert name in dir(bigdl)


def test_names_that_need_no_bigdl() -> None:
    assert bigdl.spark_conf is installation.spark_conf
    assert bigdl.start_engine is installation.start_engine
    with pytest.raises(AttributeError, match="BigDLTrainer"):
        _ = bigdl.BigDLTrainer


@needs_spark_3
def test_all_four_jars_are_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = tmp_path / "jars", tmp_path / "packages" / "bigdl" / "share"
    for folder in (ours, theirs / "core" / "lib", theirs / "dllib" / "lib"):
        folder.mkdir(parents=True)
    monkeypatch.setattr("sys.path", [str(tmp_path / "packages")])

    with pytest.raises(PluginError, match="no jar sparkdl-comm-bigdl.*make bigdl-jar"):
        installation.jars(ours)
    (ours / "sparkdl-comm-bigdl-spark3.5_2.12-0.1.0.jar").touch()
    (theirs / "core" / "lib" / "all-2.3.0.jar").touch()
    with pytest.raises(PluginError, match="BigDL has 1 of its 2 jars"):
        installation.jars(ours)
    (theirs / "dllib" / "lib" / "bigdl-dllib.jar").touch()
    with pytest.raises(PluginError, match="no plugin jar"):
        installation.jars(ours)
    (ours / "sparkdl-comm-spark3.5_2.12-0.1.0.jar").touch()
    names = [path.name for path in installation.jars(ours)]
    assert names == [
        "sparkdl-comm-spark3.5_2.12-0.1.0.jar",
        "sparkdl-comm-bigdl-spark3.5_2.12-0.1.0.jar",
        "all-2.3.0.jar",
        "bigdl-dllib.jar",
    ]
    conf = installation.spark_conf(ours)
    assert conf["spark.driver.extraClassPath"] == conf["spark.executor.extraClassPath"]
    assert conf["spark.plugins"] == "sparkdl.comm.CommPlugin"
