"""Settings: parsing, refusals, and that files that repeat the table agree with it."""

import re
from operator import attrgetter
from pathlib import Path

import pytest

from sparkdl_comm.conf import KEYS, PREFIX, CommConf, CompressionSchedule, as_text, seconds
from sparkdl_comm.errors import ConfError

ROOT = Path(__file__).parents[3]


def test_defaults() -> None:
    conf = CommConf.from_mapping({"spark.app.name": "x"})
    assert conf == CommConf()
    assert (conf.timeout, conf.ports, conf.rails, conf.progress) == (300.0, (0, 0), (), True)
    assert (conf.collective.bucket, conf.fabric.divergence, conf.data.cache_limit) == (4 << 20, float("inf"), 100 << 30)
    assert (conf.compression.method, conf.compression.schedule) == (None, CompressionSchedule())


def test_a_key_has_the_name_of_its_field_and_group() -> None:
    names = {key.name: (key.group, key.field, key.argument) for key in KEYS}
    assert names["slotTimeout"] == ("", "slot_timeout", "slot_timeout")
    assert names["ps.sharedMemory"] == ("ps", "shared_memory", "ps_shared_memory")
    assert names["collective.bucket"] == ("collective", "bucket", "bucket")
    assert names["compression"] == ("compression", "method", "compression")
    assert len(names) == len(KEYS) == len({key.argument for key in KEYS})


def test_every_key_has_a_sentence_and_an_example_of_a_value() -> None:
    for key in KEYS:
        sentence = key.meaning.split(". ")[0]  # the reference shows this one
        assert sentence[0].isupper(), key.name
        assert key.meaning.endswith("."), key.name
        is_example = key.default not in ("", "0", "inf") or "|" in key.form.name
        assert is_example or "such as" in sentence, key.name


def test_values_and_overrides() -> None:
    conf = CommConf.from_mapping(
        {
            PREFIX + "strategy": "ps",
            PREFIX + "timeout": "2min",
            PREFIX + "ports": "40000-40100",
            PREFIX + "driver.port": "40200",
            PREFIX + "progress": "False",
            PREFIX + "ps.wire": "bf16",
        },
        strategy="gloo",
        slot_timeout=None,
    )
    assert (conf.strategy, conf.timeout, conf.slot_timeout) == ("gloo", 120.0, 30.0)
    assert (conf.ports, conf.driver.port, conf.progress, conf.ps.wire) == ((40000, 40100), 40200, False, "bf16")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("30s", 30.0), ("30", 30.0), ("500ms", 0.5), ("2min", 120.0), ("2m", 120.0), ("1H", 3600.0), ("1.5 s", 1.5)],
)
def test_seconds(text: str, expected: float) -> None:
    assert seconds(text) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("timeout", "soon"),
        ("timeout", "0s"),
        ("timeout", "-1s"),
        ("timeout", "nan"),
        ("timeout", "1000000001s"),
        ("turnTimeout", "11575d"),
        ("fabric.batchInterval", "9" * 400),
        ("slotTimeout", ""),
        ("maxRestarts", "-1"),
        ("maxRestarts", "1.5"),
        ("strategy", ""),
        ("ports", "80"),
        ("ports", "50000-40000"),
        ("ports", "40000-70000"),
        ("ports", "any"),
        ("driver.port", "40000-40100"),
        ("driver.port", "70000"),
        ("ps.wire", "fp8"),
        ("ps.batching", ""),
        ("ps.batching", "best"),
        ("ps.pushBatching", "fixed:0"),
        ("ps.batching", "parts:0"),
        ("ps.batching", "parts:1000001"),
        ("ps.batching", "parts"),
        ("ps.profileIterations", "0"),
        ("ps.profileIterations", "2147483648"),
        ("ps.replanDrift", "-1"),
        ("ps.replanDrift", "nan"),
        ("data.cache", "none"),
        ("data.cacheName", "../other"),
        ("data.cacheName", "-a"),
        ("data.cacheName", "{row}"),
        ("data.cacheName", "a" * 101),
        ("data.cacheDir", "here"),
        ("data.cacheLimit", "0"),
        ("data.memoryLimit", "2B"),
        ("data.shuffle", "true"),
        ("progress", "1"),
        ("compression", "top"),
        ("compression", "mstopk"),
        ("compression", "mstopk:0"),
        ("compression", "mstopk:1.5"),
        ("compression", "topk:nan"),
        ("compression.schedule", ""),
        ("compression", "powersgd:0"),
        ("compression", "powersgd:0.01"),
        ("compression.schedule", "steps:5-4"),
        ("compression.schedule", "auto,auto"),
        ("compression.schedule", "auto:5"),
        ("compression.schedule", "steps:0-"),
        ("compression.schedule", "steps:7"),
        ("compression.schedule", "warmup:5-6"),
        ("compression.schedule", "epochs:1-2,epochs:4-5"),
        ("compression.schedule", "days:1-"),
        ("compression.values", "int8"),
        ("compression.momentum", "1"),
        ("fabric.sync", "async:0"),
        ("fabric.sync", "async"),
        ("fabric.sync", "ssp:-1"),
        ("fabric.batchInterval", "0s"),
        ("fabric.batchInterval", "999us"),
        ("fabric.momentum", "1"),
        ("fabric.stepScale", "-1"),
        ("fabric.divergence", "0"),
        ("fabric.divergence", "nan"),
        ("fabric.aggregators", "-1"),
        ("fabric.linkRate", "fast"),
    ],
)
def test_bad_value_names_key_value_and_limit(key: str, value: str) -> None:
    with pytest.raises(ConfError, match=re.escape(f"{PREFIX}{key}={value!r}: must be ")):
        CommConf.from_mapping({PREFIX + key: value})


@pytest.mark.parametrize(
    ("key", "most", "limit"),
    [("timeout", "1000000000s", "at most 1000000000s"), ("ps.profileIterations", "2147483647", "at most 2147483647")],
)
def test_what_is_too_large_names_the_limit_which_is_accepted(key: str, most: str, limit: str) -> None:
    CommConf.from_mapping({PREFIX + key: most})
    with pytest.raises(ConfError, match=limit):
        CommConf.from_mapping({PREFIX + key: "9" + most})


def test_unknown_key_names_the_nearest() -> None:
    with pytest.raises(ConfError, match=r"unknown key spark\.sparkdl\.comm\.slot_timeout; did you mean .*slotTimeout"):
        CommConf.from_mapping({PREFIX + "slot_timeout": "1s"})
    with pytest.raises(ConfError, match="did you mean timeout"):
        CommConf.from_mapping({}, timeuot="1s")


@pytest.mark.parametrize(
    ("key", "text", "meant"),
    [
        ("ps.batching", "layerwsie", "layerwise"),
        ("data.cache", "dsik", "disk"),
        ("progress", "ture", "true"),
        ("compression", "topkk:0.1", "topk"),
        ("collective.loop", "decopled", "decoupled"),
        ("topology", "start:3", "star"),
        ("strategy", "ring+decopled", r"ring\+decoupled"),
        ("strategy", "ps+layerwsie", "layerwise"),
    ],
)
def test_a_choice_that_is_misspelled_names_the_nearest(key: str, text: str, meant: str) -> None:
    with pytest.raises(ConfError, match=rf"{PREFIX}{key}='{re.escape(text)}'.*; did you mean {meant}\?$"):
        CommConf.from_mapping({PREFIX + key: text})


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("ring+decoupled", {"strategy": "ring", "loop": "decoupled"}),
        ("lp+root-overlap", {"strategy": "lp", "loop": "root-overlap"}),
        ("ring+decoupled+ibatch", {"strategy": "ring", "loop": "decoupled", "batching": "ibatch"}),
        ("ps+layerwise", {"strategy": "ps", "ps_batching": "layerwise"}),
        ("ps+parts:24", {"strategy": "ps", "ps_batching": "parts:24"}),
        ("rnig", {"strategy": "rnig"}),
    ],
)
def test_the_name_of_a_strategy_may_say_how(text: str, fields: dict[str, str]) -> None:
    expected = CommConf.from_mapping({}, **fields)
    assert CommConf.from_mapping({PREFIX + "strategy": text}) == expected
    assert CommConf.from_mapping({PREFIX + "strategy": "gloo"}, strategy=text) == expected
    assert CommConf.from_mapping({}, **{**fields, "strategy": text}) == expected, "said twice"


@pytest.mark.parametrize(
    ("text", "key", "other"),
    [
        ("ring+decoupled", "collective.loop", "root"),
        ("ring+decoupled+ibatch", "collective.batching", "fixed"),
        ("ps+layerwise", "ps.batching", "whole"),
    ],
)
def test_what_a_name_says_is_not_set_otherwise(text: str, key: str, other: str) -> None:
    with pytest.raises(
        ConfError, match=rf"strategy '{re.escape(text)}' stands for {PREFIX}{key}=.*set to {other}: remove"
    ):
        CommConf.from_mapping({PREFIX + key: other}, strategy=text)


@pytest.mark.parametrize("text", ["", "+decoupled", "ring+", "ring+rot", "ring+decoupled+", "ps+", "ps+decoupled"])
def test_what_is_no_name_of_a_strategy(text: str) -> None:
    with pytest.raises(ConfError, match=rf"{PREFIX}strategy='{re.escape(text)}': must be"):
        CommConf.from_mapping({PREFIX + "strategy": text})


def test_text_of_a_value_reads_back() -> None:
    conf = CommConf.from_mapping(
        {
            PREFIX + "ports": "40000-40100",
            PREFIX + "compression": "mstopk:0.001",
            PREFIX + "compression.schedule": "auto,steps:3-,epochs:1-4,warmup:20",
        }
    )
    texts = {key.full: as_text(attrgetter(f"{key.group}.{key.field}".strip("."))(conf)) for key in KEYS}
    assert CommConf.from_mapping(texts) == conf


def test_the_defaults_file_has_the_defaults() -> None:
    text = (ROOT / "conf/sparkdl-defaults.conf").read_text()
    settings = [line.removeprefix("# ") for line in text.splitlines() if line.startswith("# " + PREFIX)]
    chosen = {key.full for key in KEYS if key.is_chosen}
    pairs = [(line + " ").split(" ", 1) for line in settings]
    values = {key: value.strip() for key, value in pairs}
    assert not any(values.pop(key) for key in chosen)
    assert CommConf.from_mapping(values) == CommConf.from_mapping({})


def test_scala_uses_only_keys_of_the_table() -> None:
    known = {key.full for key in KEYS}
    sources = [path for kind in ("scala", "java") for path in (ROOT / "scala").glob(f"**/*.{kind}")]
    used = {
        (key, path.name)
        for path in sources
        for key in re.findall(r'"(spark\.sparkdl\.comm\.[A-Za-z0-9.]+)"', path.read_text(encoding="utf-8"))
    }
    assert [pair for pair in sorted(used) if pair[0] not in known] == []
    assert not sources or used, "the pattern finds nothing any more"
