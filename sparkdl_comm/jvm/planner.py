"""Client of the iBatch planner, which groups layers into buckets. The planner is in the plugin's jar.

It needs Java, but no Spark session. A rank that trains with the parameter server asks its executor instead (``replan`` on the
bridge).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkdl_comm import plugin
from sparkdl_comm.errors import DeadlineError, InputError, PluginError

_MAIN = "sparkdl.comm.ibatch.PlanMain"
#: Jars of Spark that the planner needs.
_LIBRARIES = ("scala-library-*.jar", "jackson-core-2*.jar", "jackson-databind-*.jar", "jackson-annotations-*.jar")


@dataclass(frozen=True)
class Bucketing:
    """Bucketing of layers, and its prediction.

    ``batches``: first and last layer of each bucket, counted from 1, in the order in which they travel.
    ``predicted_seconds``: from the first pull to the end of forward, or from the start of backward to the end of the last
    push. ``optimal_ratio``: ``predicted_seconds`` divided by those of the best possible bucketing. ``schedule``: for each
    bucket, the seconds at which its transfer begins and ends and its computation begins and ends.
    """

    batches: list[list[int]]
    predicted_seconds: float
    optimal_ratio: float
    schedule: list[list[float]]


def plan_buckets(requests: Sequence[Mapping[str, Any]], timeout: float = 60.0) -> list[Bucketing]:
    """Return a bucketing for each request. One JVM makes them all.

    Keys of a request: ``startup`` (seconds), ``transfer`` and ``compute`` (lists: seconds of each layer), ``bytes`` (of each
    layer; only policy ``fixed:BYTES`` needs it), ``policy`` (whole, layerwise, greedy1, greedy2, ibatch, paper, optimal,
    parts:COUNT, fixed:BYTES), ``direction`` (pull or push).

    :raises InputError: a request is invalid; the message names the first such request.
    :raises PluginError: Java or a jar is missing.
    :raises DeadlineError: the planner takes more than ``timeout`` seconds.
    """
    return [Bucketing(**answer) for answer in _ask(requests, timeout)]


def predict_iteration_seconds(plans: Sequence[Mapping[str, Mapping[str, Any]]], timeout: float = 60.0) -> list[float]:
    """Return the seconds of an iteration with each of ``plans``. Both directions share the network: IterationModel.scala.

    Keys of a plan: ``pull`` and ``push``, each with ``startup``, ``transfer``, ``compute`` and ``batches``. If small batches
    travel inside their notices, also ``bytes`` of each layer, and ``notice_bytes``, the size limit of such a batch. Optional:
    ``gap``, ``sum``, ``update`` and ``in_turn`` (see Profile.scala).

    Raises the errors of :func:`plan_buckets`.
    """
    return [answer["predicted_iteration_seconds"] for answer in _ask(plans, timeout)]


def why_unavailable() -> str | None:
    """Return why the planner cannot run here; None if it can."""
    try:
        _find_java(), _find_classpath()
    except PluginError as error:
        return error.message
    return None


def _ask(requests: Sequence[Mapping[str, Any]], timeout: float) -> list[dict[str, Any]]:
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    try:
        done = subprocess.run(
            [_find_java(), "-XX:TieredStopAtLevel=1", "-cp", _find_classpath(), _MAIN],
            input=lines,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired as exc:
        raise DeadlineError(f"the planner did not answer {len(requests)} requests within {timeout:g} s") from exc
    if done.returncode:
        raise PluginError(f"the planner failed ({_MAIN}): {done.stderr.strip()[-1000:]}")
    answers: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    for number, answer in enumerate(answers):
        if "error" in answer:
            raise InputError(f"no plan for request {number}: {answer['error']}" if number else answer["error"])
    return answers


def _find_java() -> str:
    home = os.environ.get("JAVA_HOME")
    path = shutil.which("java", path=os.path.join(home, "bin") if home else None)
    if path is None:
        raise PluginError(
            f"no java {'in JAVA_HOME, ' + home if home else 'on the PATH'}. The planner needs Java: set JAVA_HOME."
        )
    return path


def _find_classpath() -> str:
    with plugin.needs_pyspark("the planner"):
        import pyspark  # noqa: PLC0415 - Spark is needed only to plan

    spark = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent) / "jars"
    libraries = [path for pattern in _LIBRARIES for path in sorted(spark.glob(pattern))]
    if len(libraries) < len(_LIBRARIES):
        raise PluginError(
            f"the planner needs Spark's jars {', '.join(_LIBRARIES)}, but {spark} lacks some of them. Check SPARK_HOME."
        )
    return os.pathsep.join(map(str, [plugin.jar_for(pyspark.__version__, plugin.JARS), *libraries]))
