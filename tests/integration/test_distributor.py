"""Training functions of users' own on three executors, each a JVM of its own."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from lab.settings import applied
from pyspark.ml.linalg import Vectors
from pyspark.ml.torch.distributor import TorchDistributor

from sparkdl_comm import CommDistributor, Communicator
from sparkdl_comm.errors import ConfError, GangError, InputError, ModelError, RankFailedError, RankLostError, SlotsError
from tests.integration import training_functions as functions
from tests.slow import slow


@pytest.mark.slow
def test_the_same_as_torch_distributor_by_changing_the_class_name(spark):
    theirs, ours, local = (
        kind(num_processes=2, local_mode=local, use_gpu=False).run(functions.train_ddp, 20, lr=0.05)
        for kind, local in ((TorchDistributor, False), (CommDistributor, False), (CommDistributor, True))
    )
    assert local[0] == ours[0] == theirs[0] == 0
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-5)
    np.testing.assert_array_equal(local[1], ours[1])
    assert np.abs(np.subtract(ours[1], CommDistributor(2).run(functions.train_ddp, 0)[1])).max() > 0.01


@pytest.mark.slow
def test_the_same_on_this_machine(spark):
    theirs, ours = (
        kind(2, True, False).run(functions.train_ddp, 20, lr=0.05) for kind in (TorchDistributor, CommDistributor)
    )
    assert ours[0] == 0  # theirs is of the rank that wrote it last
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-5)
    assert CommDistributor(local_mode=True).run(functions.train_ddp, 0)[0] == 0


@pytest.mark.slow
def test_what_rank_0_prints_is_seen(spark, capsys):
    CommDistributor(num_workers=2).run(functions.prints)
    assert capsys.readouterr().out == "rank 0 printed\nand its child\n"
    with applied(spark, {"logs": "false"}):
        CommDistributor(num_workers=2).run(functions.prints)
    assert capsys.readouterr().out == ""


def test_runs_at_the_same_time_take_turns(spark):
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(lambda _: CommDistributor(num_workers=2).run(functions.values)["text"], range(3)))
    assert found == ["x"] * 3


@pytest.mark.slow
def test_hooks_give_what_ddp_does(spark):
    plain, hooked = (CommDistributor(2).run(functions.train_ddp, 5, hook=hook)[1] for hook in (None, "bml"))
    np.testing.assert_allclose(hooked, plain, rtol=1e-5)
    elsewhere = TorchDistributor(2, local_mode=False, use_gpu=False).run(functions.train_ddp, 5, hook="bml")[1]
    np.testing.assert_array_equal(elsewhere, hooked)


@pytest.mark.parametrize("strategy", ["ps", slow("auto"), "lp"])
def test_communicator(spark, strategy):
    with applied(spark, {"strategy": strategy}):
        found = CommDistributor(num_workers=3).run(functions.every_collective)
    each = [torch.arange(6.0).reshape(3, 2) + 10 * rank for rank in range(3)]
    total = sum(each)
    assert torch.equal(found["sum"], total)
    assert torch.equal(found["async"], total)
    assert torch.equal(found["min"], each[0])
    assert torch.equal(found["max"], each[2])
    assert torch.equal(found["from 2"], each[2])
    assert torch.equal(found["all"], torch.stack(each).transpose(1, 2))
    assert torch.equal(found["scattered"], total[0])
    assert torch.equal(found["everybody's"], total)
    assert found["refused"] == 2
    assert found["batches"] == [0, 1, 2]
    assert found["who"] == (0, 3, 0, ("127.0.0.1",) * 3)
    assert found["environment"] == ("0", "0", "127.0.0.1")
    with pytest.raises(GangError, match="no Communicator"):
        Communicator.current()


def test_functions_that_make_their_groups_themselves(spark):
    assert CommDistributor(num_workers=3).run(functions.several_groups) == [2.0, 2.0]


def test_values_come_back_from_rank_0(spark):
    found = CommDistributor(num_workers=2).run(functions.values)
    np.testing.assert_array_equal(found.pop("array"), [0, 1, 2])
    assert found == {"text": "x", 1: (None, b"bytes")}
    with pytest.raises(InputError, match=r"value is torch\.nn.*Linear.*state_dict"):
        CommDistributor(num_workers=2).run(functions.a_model)


@pytest.mark.slow
def test_every_row_goes_to_one_rank_in_each_epoch(spark):
    rows = [(n, [float(n), 0.5], Vectors.dense([n, 1.0]), f"row {n}", n % 2 == 0) for n in range(31)]
    data = spark.createDataFrame(rows, ["id", "list", "vector", "text", "even"]).coalesce(1)
    found = CommDistributor(num_workers=3).run_on_df(functions.rows_of, data, epochs=2)
    for first, second in found["seen"]:
        assert first == second
    counts = [len(epochs[0]) for epochs in found["seen"]]
    assert sorted(n for epochs in found["seen"] for n in epochs[0]) == list(range(31))
    assert found["steps"] == min(-(-count // 2) for count in counts)
    assert found["workers"]
    batch = found["batch"]
    ids = batch["id"]
    assert ids.dtype == torch.int64
    assert torch.equal(batch["list"], torch.stack([ids.double(), torch.full((4,), 0.5).double()], 1))
    assert torch.equal(batch["vector"], torch.stack([ids.float(), torch.ones(4)], 1))
    assert batch["text"] == [f"row {n}" for n in ids.tolist()]
    assert torch.equal(batch["even"], ids % 2 == 0)


@pytest.mark.slow
def test_partitions_without_rows(spark):
    found = CommDistributor(num_workers=3).run_on_df(functions.rows_of, spark.range(1), 1)
    assert sorted(len(epochs[0]) for epochs in found["seen"]) == [0, 0, 1]
    assert found["steps"] == 0


@pytest.mark.slow
def test_rows_that_cannot_be_used(spark):
    with pytest.raises(InputError, match=r"column 'm' is map<string,int>"):
        CommDistributor(2).run_on_df(functions.rows_of, spark.sql("select map('a', 1) as m"), 1)
    with pytest.raises(InputError, match="not a file"):
        CommDistributor(2).run_on_df("train.py", spark.range(3))
    with pytest.raises(InputError, match="1 of 1 rows have a null in 'id'"):
        CommDistributor(1).run_on_df(functions.rows_of, spark.createDataFrame([(None,)], "id long"), 1)


def test_a_rank_that_raises(spark):
    begin = time.monotonic()
    with pytest.raises(RankFailedError, match="LookupError: the user's mistake") as caught:
        CommDistributor(num_workers=3).run(functions.fails, rank=1)
    assert time.monotonic() - begin < 30
    assert caught.value.rank == 1
    assert caught.value.phase == "train_fn"
    assert caught.value.log_tail.splitlines()[-100:] == [f"rank 1, line {n}" for n in range(21, 120)] + ["from a child"]
    assert "rank 1, line 119\nfrom a child" in str(caught.value)
    assert 'raise LookupError("the user\'s mistake")' in caught.value.remote_traceback
    assert CommDistributor(num_workers=3).run(functions.several_groups) == [2.0, 2.0]


@pytest.mark.slow
def test_a_rank_that_stands_still_after_all_have_left(spark):
    with applied(spark, {"timeout": "8s"}), pytest.raises(RankLostError, match="after all had left the gang"):
        CommDistributor(num_workers=3).run(functions.stands_still_at_the_end)
    assert CommDistributor(num_workers=3).run(functions.several_groups) == [2.0, 2.0]


@pytest.mark.slow
def test_a_wait_ends_at_its_deadline(spark):
    message = CommDistributor(num_workers=2).run(functions.waits_too_short)
    assert message.startswith("rank 0 waited 0.3 s for the others in all-reduce")


def test_a_file(spark, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys\n"
        "import torch.distributed as dist\n"
        "if __name__ == '__main__':\n"
        "    dist.init_process_group('gloo')\n"
        "    with open(f'{sys.argv[2]}/{dist.get_rank()}', 'w') as file:\n"
        "        file.write(sys.argv[1] + os.environ['WORLD_SIZE'])\n"
        "    sys.exit(0)\n"
    )
    assert CommDistributor(num_processes=3, local_mode=False, use_gpu=False).run(str(script), 1, str(tmp_path)) is None
    assert [(tmp_path / str(rank)).read_text() for rank in range(3)] == ["13"] * 3


def test_refused_before_any_executor_is_touched(spark):
    with pytest.raises(ConfError, match="local_mode"):
        CommDistributor(2, local_mode=True).run_on_df(functions.rows_of, spark.range(3), 1)
    with pytest.raises(ConfError, match="num_workers=0"):
        CommDistributor(0)
    with pytest.raises(ConfError, match="device='tpu'"):
        CommDistributor(2, device="tpu")
    with pytest.raises(InputError, match="train_fn is of type int"):
        CommDistributor(2).run(3)
    with pytest.raises(InputError, match="keyword arguments: lr"):
        CommDistributor(2).run("train.py", lr=1)
    with pytest.raises(ModelError, match="args.*cannot be shipped"):
        CommDistributor(2).run(functions.values, threading.Lock())
    with pytest.raises(SlotsError, match="num_workers=4"):
        CommDistributor(4).run(functions.values)
