"""What gloo really raises when a rank is late or gone, told apart in one place."""

import datetime
import os
import re
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from sparkdl_comm.gang.failure import is_peer_failure, is_peer_late
from tests.forkserver import context


def _rank(rank: int, store: str, answers: Any, given_up: Any) -> None:
    meeting, limit = datetime.timedelta(seconds=60), datetime.timedelta(seconds=3)
    dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2, timeout=meeting)
    dist.barrier()  # processes start slowly beside others; from now on both are there
    late, gone = dist.new_group(timeout=limit), dist.new_group(timeout=limit)
    dist.barrier()
    if rank == 1:
        given_up.wait(60)
        os._exit(0)
    for group in (late, gone):
        try:
            dist.all_reduce(torch.ones(4), group=group)
        except RuntimeError as error:
            answers.put((is_peer_late(error), is_peer_failure(error), str(error)))
        given_up.set()


def test_a_rank_that_is_late_and_then_gone(tmp_path: Path) -> None:
    answers, given_up = context.SimpleQueue(), context.Event()
    ranks = [
        context.Process(target=_rank, args=(rank, str(tmp_path / "store"), answers, given_up)) for rank in range(2)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(60)
    for late in (True, False):
        assert not answers.empty(), "the all-reduce went through"
        *kind, text = answers.get()
        assert kind == [late, True], text


def test_the_models_own_errors_are_neither() -> None:
    error = RuntimeError("mat1 and mat2 shapes cannot be multiplied (4x3 and 2x1)")
    assert not is_peer_late(error)
    assert not is_peer_failure(error)
    assert not is_peer_failure(ValueError("timed out"))


def test_the_text_is_looked_at_in_one_place() -> None:
    package = Path(__file__).parents[3] / "sparkdl_comm"
    found = {path.name for path in package.rglob("*.py") if re.search(r'"[^"\n]*timed out[^"\n]*"', path.read_text())}
    assert found == {"failure.py"}
