"""Session settings and pre-flight checks, without a session."""

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest
import torch
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from sparkdl_comm import CommDistributor, TorchEstimator, TorchModel, plugin
from sparkdl_comm.conf import CommConf
from sparkdl_comm.errors import ConfError, InputError, PluginError, SlotsError
from sparkdl_comm.job import session
from sparkdl_comm.job.slots import check_slots, warn_about_threads

JAR_3 = "sparkdl-comm-spark3.5_2.12-0.1.0.jar"
JAR_4 = "sparkdl-comm-spark4.2_2.13-0.1.0.jar"
PLUGIN = {"spark.plugins": "org.example.Other, sparkdl.comm.CommPlugin"}


@pytest.fixture
def jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(plugin, "JARS", tmp_path)
    monkeypatch.setattr(SparkContext, "_gateway", None)  # of other tests' applications
    for name in (JAR_3, JAR_4, "other.jar"):
        (tmp_path / name).touch()
    return tmp_path


def test_spark_conf(jars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "3.5.9")
    conf = session.spark_conf(timeout="2min", progress=False, ports=(40000, 40100))
    assert conf == {
        "spark.jars": str(jars / JAR_3),
        "spark.plugins": "sparkdl.comm.CommPlugin",
        "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sparkdl.comm.timeout": "2min",
        "spark.sparkdl.comm.progress": "false",
        "spark.sparkdl.comm.ports": "40000-40100",
    }
    monkeypatch.setattr(pyspark, "__version__", "4.2.0")
    assert session.spark_conf()["spark.jars"] == str(jars / JAR_4)
    with pytest.raises(ConfError):
        session.spark_conf(timeout="soon")
    both = session.spark_conf(slotTimeout="8s", ps_profileIterations=5), session.spark_conf(slot_timeout="8s")
    assert [each["spark.sparkdl.comm.slotTimeout"] for each in both] == ["8s", "8s"]
    assert both[0]["spark.sparkdl.comm.ps.profileIterations"] == "5"
    with pytest.raises(ConfError, match="slot_timeout is given twice, by slotTimeout and slot_timeout"):
        session.spark_conf(slotTimeout="8s", slot_timeout="9s")


class Submitted:
    """The JVM that spark-submit has started, with ``jars``. ``takes``: its class loader takes more of them."""

    def __init__(self, takes: bool, jars: str | None) -> None:
        self.added: list[str] = []
        lang = SimpleNamespace(
            Thread=SimpleNamespace(currentThread=lambda: SimpleNamespace(getContextClassLoader=lambda: self)),
            System=SimpleNamespace(getProperty={"spark.jars": jars}.get),
        )
        file = lambda path: SimpleNamespace(toURI=lambda: SimpleNamespace(toURL=lambda: path))  # noqa: E731
        self.jvm = SimpleNamespace(java=SimpleNamespace(lang=lang, io=SimpleNamespace(File=file)))
        self.takes, self.jars = takes, jars or ""

    def addURL(self, url: str) -> None:  # noqa: N802 - Java's name
        self.added.append(url)

    def loadClass(self, name: str) -> None:  # noqa: N802
        if JAR_3 not in self.jars and not any(JAR_3 in url for url in self.added):
            raise Py4JJavaError(f"ClassNotFoundException: {name}", SimpleNamespace(_target_id="o1"))


@pytest.fixture
def submit(jars: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Submitted]:
    """Has spark-submit start this process."""

    def submit(takes: bool = True, given: str | None = None) -> Submitted:
        jvm = Submitted(takes, given)
        monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "4711")
        monkeypatch.setattr(
            SparkContext, "_ensure_initialized", lambda: monkeypatch.setattr(SparkContext, "_gateway", jvm)
        )
        monkeypatch.setattr(session, "is_instance_of", lambda gateway, loader, name: jvm.takes)
        monkeypatch.setattr(pyspark, "__version__", "3.5.9")
        return jvm

    return submit


@pytest.mark.parametrize(
    ("given", "session_jars"),
    [(None, "{ours}"), ("file:/b/mine.jar", "file:/b/mine.jar,{ours}"), (f"file:/b/{JAR_3}", f"file:/b/{JAR_3}")],
)
def test_spark_conf_under_spark_submit(
    jars: Path, submit: Callable[..., Submitted], given: str | None, session_jars: str
) -> None:
    jvm = submit(given=given)
    assert session.spark_conf()["spark.jars"] == session_jars.format(ours=jars / JAR_3)
    assert jvm.added == [str(jars / JAR_3)]


def test_a_running_jvm_that_takes_no_jar(jars: Path, submit: Callable[..., Submitted]) -> None:
    submit(takes=False)
    with pytest.raises(
        PluginError, match=rf"runs already.* Pass spark-submit --jars {jars / JAR_3} --conf spark\.plugins="
    ):
        session.spark_conf()
    submit(takes=False, given=f"/b/{JAR_3}")
    assert session.spark_conf()["spark.jars"] == f"/b/{JAR_3}"


def test_no_jar_for_this_spark(jars: Path, tmp_path: Path) -> None:
    (jars / JAR_4).unlink()
    with pytest.raises(PluginError, match=r"Spark 4\.2 in .*" + JAR_3 + ".*make jar"):
        plugin.jar_for("4.2.0", jars)
    with pytest.raises(PluginError, match="no jar at all"):
        plugin.jar_for("3.5.9", tmp_path / "nowhere")


def test_plugin_loaded() -> None:
    plugin.check_conf({**PLUGIN, "spark.jars": f"/a/x.jar,file:/b/{JAR_3}"}, "3.5.9", "2.12.18")
    plugin.check_conf(PLUGIN, "3.5.9", None)


@pytest.mark.parametrize("conf", [{}, {"spark.plugins": ""}, {"spark.plugins": "org.example.Other"}])
def test_plugin_missing(conf: dict[str, str]) -> None:
    with pytest.raises(PluginError, match=r"spark\.plugins=sparkdl\.comm\.CommPlugin") as error:
        plugin.check_conf(conf, "3.5.9", "2.12.18")
    assert "spark_conf()" in str(error.value)


@pytest.mark.parametrize(
    ("jar", "spark", "scala"), [(JAR_4, "3.5.9", "2.12.18"), (JAR_3, "3.5.9", "2.13.8"), (JAR_3, "4.2.0", "2.13.17")]
)
def test_plugin_of_another_spark_or_scala(jar: str, spark: str, scala: str) -> None:
    with pytest.raises(PluginError) as error:
        plugin.check_conf({**PLUGIN, "spark.jars": f"file:/b/{jar}"}, spark, scala)
    assert jar in str(error.value)
    assert spark in str(error.value)
    assert scala in str(error.value)


def _dotted(key: str) -> str:
    return key if key.endswith("OMP_NUM_THREADS") else key.replace("_", ".")


_applications = itertools.count()


class FakeSpark:
    """A classic session whose cluster has ``slots[i]`` slots when asked for the i-th time, each an executor of its own unless
    ``slots_each`` says otherwise."""

    _jsparkSession = None
    slots_each = 1

    def __init__(self, slots: list[int], master: str = "spark://m:7077", **conf: str) -> None:
        self._slots = slots
        self.asked = self.slept = 0
        settings = [("spark." + _dotted(key), value) for key, value in conf.items()]
        jvm = SimpleNamespace(
            maxNumConcurrentTasks=self._next,
            resourceProfileManager=lambda: SimpleNamespace(defaultResourceProfile=lambda: None),
            getExecutorMemoryStatus=lambda: SimpleNamespace(keys=lambda: SimpleNamespace(mkString=self._executors)),
        )
        self.sparkContext: Any = SimpleNamespace(
            master=master,
            applicationId=f"app {next(_applications)}",
            getConf=lambda: SimpleNamespace(getAll=lambda: settings),
            _jsc=SimpleNamespace(sc=lambda: jvm),
        )

    def _next(self, profile: None) -> int:
        self.asked += 1
        return self._slots[min(self.asked, len(self._slots)) - 1]

    def _executors(self, separator: str) -> str:
        there = self._slots[min(self.asked, len(self._slots)) - 1] // self.slots_each
        return separator.join(["driver:1", *(f"host:{number}" for number in range(there))])

    def check(self, num_workers: int | None, timeout: float = 1.0) -> int:
        def sleep(seconds: float) -> None:
            self.slept += seconds  # type: ignore[assignment]

        return check_slots(self, num_workers, timeout, lambda: self.slept, sleep)  # type: ignore[arg-type]


def test_slots_waits_for_executors() -> None:
    spark = FakeSpark([0, 1, 3])
    assert spark.check(3) == 3
    assert spark.asked == 3


def test_slots_all() -> None:
    instances = {"executor_instances": "4", "executor_cores": "2", "task_cpus": "2"}
    assert FakeSpark([1, 3, 4], **instances).check(None) == 4
    assert FakeSpark([1, 3], **instances).check(None) == 3  # the fourth never came
    assert FakeSpark([0, 2]).check(None) == 2
    assert FakeSpark([2], "local[2]").check(None) == 2


GPUS = {"executor_instances": "3", "executor_cores": "4", "task_resource_gpu_amount": "1"}


@pytest.mark.parametrize(("taken", "there", "slots"), [("1", "1", 3), ("0.5", "1", 6), ("2", "5", 6), ("0.1", "1", 12)])
def test_slots_are_limited_by_gpus_too(taken: str, there: str, slots: int) -> None:
    conf = {**GPUS, "task_resource_gpu_amount": taken, "executor_resource_gpu_amount": there}
    spark = FakeSpark([slots], **conf)
    assert spark.check(None, timeout=100) == slots
    assert spark.slept == 0
    assert check_slots(FakeClient(master="yarn", **conf), None, 1.0) == slots  # type: ignore[arg-type]


def test_waiting_for_executors_is_told(caplog: pytest.LogCaptureFixture) -> None:
    spark = FakeSpark([1], executor_instances="4", executor_cores="2")
    with pytest.raises(SlotsError):
        spark.check(8, timeout=100)
    (told,) = caplog.messages
    assert told == "waiting for executors: 1 slots of 8 so far, for up to 100 s (spark.sparkdl.comm.slotTimeout)"


@pytest.mark.parametrize("cores", [{}, {"executor_cores": "2"}, {"executor_cores": "4", "task_cpus": "2"}])
@pytest.mark.parametrize("master", ["yarn", "k8s://h", "spark://m:7077"])
def test_fewer_executors_than_asked_for(caplog: pytest.LogCaptureFixture, master: str, cores: dict[str, str]) -> None:
    each = 2 if cores else 1
    spark = FakeSpark([each, 3 * each], master, executor_instances="5", **cores)
    spark.slots_each = each
    assert spark.check(None, timeout=30) == 3 * each
    assert spark.slept >= 30
    waiting, told = caplog.messages
    assert waiting.startswith("waiting for executors: 3 of 5 so far, for up to 30 s")
    assert told.startswith(
        f"training with 3 of 5 executors, so with {3 * each} ranks: the others did not register within 30 s"
    )
    waited = spark.slept
    assert spark.check(None, timeout=30) == 3 * each  # said again, and not waited for again
    assert spark.slept == waited
    assert len(caplog.messages) == 3
    with pytest.raises(SlotsError, match=f"num_workers={5 * each}, but"):
        spark.check(5 * each, timeout=30)


def test_executors_that_come_late_are_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    for conf in ({}, {"executor_cores": "1"}):
        spark = FakeSpark([1, 2, 3, 4, 5], "yarn", executor_instances="5", **conf)
        assert spark.check(None, timeout=30) == 5
    assert FakeSpark([1, 2], "yarn").check(None, timeout=30) == 2  # by default
    assert caplog.messages == []


def test_the_executors_of_a_standalone_cluster_are_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    conf, master = {"executor_cores": "4", "task_cpus": "4"}, "spark://host:7077"
    assert FakeSpark([1, 2, 4], master, cores_max="17", **conf).check(None) == 4
    assert caplog.messages == []
    assert FakeSpark([1, 2], master, cores_max="16", **conf).check(None, timeout=30) == 2
    assert "training with 2 of 4 executors" in caplog.messages[-1]
    assert FakeSpark([1, 2], master, **conf).check(None) == 1, "nothing says how many are to come"


def test_an_executor_that_is_lost_later_is_waited_for_again() -> None:
    spark = FakeSpark([3] * 200 + [2] * 5 + [3], "yarn", executor_instances="5")
    assert spark.check(None, timeout=30) == 3
    spark.asked = 200
    assert spark.check(None, timeout=30) == 3


@pytest.mark.parametrize(
    ("conf", "slots", "ranks", "threads"),
    [
        ({}, 8, 2, 4),
        ({"task_cpus": "2"}, 4, 2, 4),
        ({**GPUS, "executor_resource_gpu_amount": "1"}, 3, 3, 4),
        ({}, 3, 2, None),
        ({"executorEnv.OMP_NUM_THREADS": "1"}, 8, 2, None),
    ],
)
def test_cores_that_are_not_used_are_told(
    caplog: pytest.LogCaptureFixture, conf: dict[str, str], slots: int, ranks: int, threads: int | None
) -> None:
    warn_about_threads(FakeSpark([slots], **conf), ranks)  # type: ignore[arg-type]
    assert [f"spark.task.cpus={threads}, or" in message for message in caplog.messages] == ([True] if threads else [])


def test_rows_are_not_written_in_clear_where_spark_encrypts_disks() -> None:
    disk, memory = (CommConf.from_mapping({}, data_cache=where) for where in ("disk", "memory"))
    encrypted = FakeSpark([1], io_encryption_enabled="true")
    session.check_disk_cache(FakeSpark([1]), disk)  # type: ignore[arg-type]
    session.check_disk_cache(encrypted, memory)  # type: ignore[arg-type]
    for conf in (disk, CommConf.from_mapping({}, data_cache_name="clicks")):
        with pytest.raises(ConfError, match=r"data\.cache=disk .*spark\.io\.encryption\.enabled"):
            session.check_disk_cache(encrypted, conf)  # type: ignore[arg-type]


def test_memory_is_bounded_only_where_rows_are_on_disks_too() -> None:
    disk, memory = (
        CommConf.from_mapping({}, data_cache=where, data_memory_limit="1MiB") for where in ("disk", "memory")
    )
    session.check_disk_cache(FakeSpark([1]), disk)  # type: ignore[arg-type]
    with pytest.raises(ConfError, match=r"data\.memoryLimit=1048576 .*data\.cache=memory .*Set data\.cache=disk"):
        session.check_disk_cache(FakeSpark([1]), memory)  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["network_crypto_enabled", "ssl_rpc_enabled"])
def test_what_travels_in_clear_is_told_where_spark_encrypts(caplog: pytest.LogCaptureFixture, key: str) -> None:
    session.warn_unencrypted(FakeSpark([1]), "gradients")  # type: ignore[arg-type]
    session.warn_unencrypted(FakeSpark([1], **{key: "false"}), "gradients")  # type: ignore[arg-type]
    assert caplog.messages == []
    session.warn_unencrypted(FakeSpark([1], **{key: "true"}), "gradients")  # type: ignore[arg-type]
    (told,) = caplog.messages
    assert told.startswith(f"spark.{_dotted(key)}=true encrypts only what Spark sends. Not encrypted: gradients.")


def test_slots_too_few() -> None:
    spark = FakeSpark([0, 2], executor_instances="8", executor_cores="1")
    with pytest.raises(SlotsError) as error:
        spark.check(3)
    for part in ("num_workers=3", "2 slots", "slotTimeout", "spark.executor.instances=8", "spark.cores.max=not set"):
        assert part in str(error.value)
    assert spark.slept >= 1


@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]"])
def test_slots_does_not_wait_in_vain(master: str) -> None:
    spark = FakeSpark([2], master)
    with pytest.raises(SlotsError, match=r"2 slots after 0\.0 s \(the limit is 100 s"):
        spark.check(3, timeout=100)
    assert spark.slept == 0


def test_slots_none_at_all() -> None:
    with pytest.raises(SlotsError, match="all slots"):
        FakeSpark([0]).check(None)


def test_dynamic_allocation() -> None:
    session.check_dynamic_allocation(FakeSpark([1]))  # type: ignore[arg-type]
    with pytest.raises(ConfError, match=r"spark\.dynamicAllocation\.enabled=true"):
        session.check_dynamic_allocation(FakeSpark([1], dynamicAllocation_enabled="TRUE"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "told"), [("file:///a/b c", "/a/b c"), ("file:/a", "/a"), ("hdfs://name:1/a", "hdfs://name:1/a")]
)
def test_a_shared_directory_told_by_a_client(monkeypatch: pytest.MonkeyPatch, path: str, told: str) -> None:
    client: Any = SimpleNamespace()
    monkeypatch.setattr(session, "check_plugin", lambda spark: None)
    assert session.shared_directory(client, path, "checkpointDir") == told
    with pytest.raises(ConfError, match="checkpointDir=/a: begin it with the file system's scheme"):
        session.shared_directory(client, "/a", "checkpointDir")


class FakeClient:
    """A Spark Connect session."""

    def __init__(self, server: str = "127.0.0.1", **conf: str) -> None:
        self.client = SimpleNamespace(host=server)
        self._conf = [("spark." + _dotted(key), value) for key, value in conf.items()]

    def sql(self, text: str) -> Any:
        assert text == "SET"
        return SimpleNamespace(collect=lambda: self._conf)


def test_slots_of_a_spark_connect_client() -> None:
    def check(spark: FakeClient, num_workers: int | None = None) -> int:
        return check_slots(spark, num_workers, 1.0)  # type: ignore[arg-type]

    assert check(FakeClient(), 5) == 5
    assert check(FakeClient(master="local-cluster[3,2,1024]")) == 6
    assert check(FakeClient(executor_instances="4", executor_cores="2", master="yarn")) == 8
    assert check(FakeClient(master="yarn")) == 2
    with pytest.raises(SlotsError, match="num_workers=None.*Set num_workers"):
        check(FakeClient(master="spark://m:7077"))


def test_driver_host() -> None:
    conf = CommConf.from_mapping({})
    client: Any = FakeClient()
    assert session.driver_host(client, conf) == "127.0.0.1"
    assert session.driver_host(client, CommConf.from_mapping({"spark.sparkdl.comm.driver.host": "h"})) == "h"
    with pytest.raises(ConfError, match=r"server nowhere\.invalid .* Set spark\.sparkdl\.comm\.driver\.host"):
        session.driver_host(FakeClient("nowhere.invalid"), conf)  # type: ignore[arg-type]
    classic: Any = SimpleNamespace(_jsparkSession=None, conf={"spark.driver.host": "there"})
    assert session.driver_host(classic, conf) == "there"


def _ended(context: Any) -> Any:
    return SimpleNamespace(_jsparkSession=None, sparkContext=SimpleNamespace(_jsc=context))


STOPPED = [
    _ended(None),  # spark.stop()
    _ended(SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: True))),  # the cluster ended the application
    SimpleNamespace(is_stopped=True),  # of Spark Connect
]


@pytest.mark.parametrize("spark", STOPPED)
def test_a_stopped_session(monkeypatch: pytest.MonkeyPatch, spark: Any) -> None:
    rows: Any = SimpleNamespace(sparkSession=spark)
    estimator = TorchEstimator(model=torch.nn.Linear(1, 1), loss="MSELoss")
    model = TorchModel(torch.nn.Linear(1, 1), classification=False)
    uses: list[Callable[[], object]] = [
        lambda: estimator.fit(rows),
        lambda: model.transform(rows),
        lambda: CommDistributor(1).run_on_df(print, rows),
    ]
    for use in uses:
        with pytest.raises(InputError, match=r"session is stopped\. Start one with .*getOrCreate\(\), and create the"):
            use()
    monkeypatch.setattr(SparkSession, "active", lambda: spark)
    with pytest.raises(InputError, match=r"no Spark session runs\. Start one"):
        CommDistributor(1).run(print)


def test_no_session_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def none() -> None:
        raise PySparkRuntimeError("[NO_ACTIVE_OR_DEFAULT_SESSION] none")

    monkeypatch.setattr(SparkSession, "active", none)
    model = TorchModel(torch.nn.Linear(1, 1), classification=False)
    for use in (lambda: CommDistributor(1).run(print), lambda: model.export_torchscript(str(tmp_path / "script"))):
        with pytest.raises(InputError, match=r"no Spark session runs\. Start one"):
            use()
