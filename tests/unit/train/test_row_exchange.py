"""Rows that ranks get from each other: of a gang of threads, and in the real loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sparkdl_comm.data.cache import RowCache, RowReader
from sparkdl_comm.data.fields import Field
from sparkdl_comm.data.partitions import BatchSampler, deal_rows
from sparkdl_comm.data.ragged import Ragged, offsets_of
from sparkdl_comm.errors import InputError, ProtocolError, RankFailedError, RankLostError
from sparkdl_comm.gang.failure import Failure
from sparkdl_comm.gang.frames import encode_frame, recv_exact, send_all, send_frame
from sparkdl_comm.gang.gang import Gang
from sparkdl_comm.job.rank_rows import keep_resident
from sparkdl_comm.train import row_exchange
from sparkdl_comm.train.row_exchange import RowExchange
from tests.unit.data.test_row_files import PLAIN, batch, disk
from tests.unit.gang_helpers import SECONDS, gang_of, hangs_up
from tests.unit.loop_helpers import BOTH, PARTS, Net, assert_same, momentum, reference, table
from tests.unit.ranks import Gathered, Rows, train

COUNTS = [5, 0, 9, 2]
CONF = {"data_shuffle": "global"}


def exchanged(parts: Sequence[RowCache], body: Callable[[RowExchange, Gang], Any]) -> list[Any]:
    """What ``body`` returns on each rank, or raises."""
    found: list[Any] = [None] * len(parts)
    everybody = threading.Barrier(len(parts))

    def one(gang: Gang) -> None:
        exchange = None
        try:
            exchange = RowExchange(gang, parts[gang.rank], [part.rows for part in parts], SECONDS)
            found[gang.rank] = body(exchange, gang)
        except Exception as error:  # noqa: BLE001 - looked at by the test
            found[gang.rank] = error
        finally:
            everybody.wait(SECONDS)  # nobody needs rows any more
            if exchange is not None:
                exchange.close()

    with gang_of(len(parts)) as gangs:
        threads = [threading.Thread(target=one, args=(gang,), daemon=True) for gang in gangs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * SECONDS)
    return found


def cut(counts: Sequence[int], ragged: bool = False) -> list[RowCache]:
    """Rows whose label is their number."""
    random = torch.Generator().manual_seed(1)
    found, number = [], 0
    for count in counts:
        labels = torch.arange(number, number + count)
        features: Any = torch.stack([labels, labels * 10]).T.float()
        if ragged:
            lengths = torch.randint(0, 5, (count,), generator=random)
            values = labels.repeat_interleave(lengths).to(torch.int32)
            features = Ragged(
                Field("featuresCol", "x", collate=list), values, torch.from_numpy(offsets_of(lengths.numpy()))
            )
        found.append(RowCache((features, labels.to(torch.uint8)), (labels,), labels / 7))
        number += count
    return found


def check(rows: RowCache, index: torch.Tensor, parts: Sequence[RowCache]) -> None:
    assert torch.equal(rows.targets[0], index)
    assert torch.equal(rows.inputs[1], index.to(torch.uint8))
    assert rows.weights is not None
    assert torch.equal(rows.weights, index / 7)
    features = rows.inputs[0]
    if isinstance(features, Ragged):
        lengths = torch.cat([part.inputs[0].lengths for part in parts])
        assert torch.equal(features.lengths, lengths[index])
        assert torch.equal(features.values, index.repeat_interleave(lengths[index]).to(torch.int32))
    else:
        assert torch.equal(features, torch.stack([index, index * 10]).T.float())


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("piece", [row_exchange._PIECE, 1, 60], ids=["at once", "row by row", "a few"])
def test_any_rows_of_any_rank(monkeypatch: pytest.MonkeyPatch, ragged: bool, piece: int) -> None:
    monkeypatch.setattr(row_exchange, "_PIECE", piece)
    parts = cut(COUNTS, ragged)

    def body(exchange: RowExchange, gang: Gang) -> None:
        random = np.random.default_rng(gang.rank)
        for size in (16, 7, 0, 40):
            index = torch.from_numpy(random.integers(0, sum(COUNTS), size))
            check(exchange.pick(index), index, parts)

    assert exchanged(parts, body) == [None] * 4


def test_rows_on_disks_partly_in_memory(tmp_path: Path) -> None:
    readings = [RowReader([batch(list(range(start, start + 4)))], PLAIN, disk(tmp_path)) for start in (0, 4)]
    accounts = [each.account for each in readings]
    parts = [keep_resident(each.rows(accounts), 50).training for each in readings]
    assert all(part.resident is not None and part.needs_read_ahead for part in parts)
    index = torch.tensor([7, 0, 3, 4, 5, 1])
    for rows in exchanged(parts, lambda exchange, gang: exchange.pick(index)):
        assert torch.equal(rows.targets[0], index)
        assert torch.equal(rows.inputs[0][:, 0], index.float())
    for each in readings:
        each.close()


def test_rows_that_are_not_alike() -> None:
    one, other = RowCache((torch.zeros(2, 3),), (torch.zeros(2),)), RowCache((torch.zeros(2, 4),), (torch.zeros(2),))
    for error in exchanged([one, other], lambda exchange, gang: None):
        assert isinstance(error, InputError)
        assert "rows of rank 1 are" in str(error)


@pytest.mark.parametrize("request_", [{"rows": 0}, {"rows": 1 << 20}, {"rows": "2"}, {}, {"rows": 2}])
def test_requests_that_make_no_sense(request_: dict[str, Any]) -> None:
    """The connection ends; others go on."""

    def body(exchange: RowExchange, gang: Gang) -> None:
        if gang.rank == 1:
            deadline = exchange._deadline()
            sock = gang.dial(0, "rows", deadline)
            send_frame(sock, request_, 256, deadline)
            send_all(sock, np.array([1, 7]).tobytes(), deadline)
            assert hangs_up(sock)
            sock.close()
        index = torch.tensor([1, 6])
        check(exchange.pick(index), index, [])

    assert exchanged(cut([5, 3]), body) == [None, None]


def test_a_request_that_stops_halfway() -> None:
    """Its connection ends: the rest of it would be read as the next request. An idle connection goes on."""

    def body(exchange: RowExchange, gang: Gang) -> None:
        if gang.rank == 0:
            exchange._timeout = 0.2
        gang.all_gather(b"", SECONDS)
        if gang.rank == 1:
            deadline = time.monotonic() + SECONDS
            request = encode_frame({"rows": 1}, 256)
            with gang.dial(0, "rows", deadline) as idle, gang.dial(0, "rows", deadline) as cut_short:
                send_all(cut_short, request[:-1], deadline)
                assert hangs_up(cut_short)
                send_all(idle, request + np.array([0]).tobytes(), deadline)
                recv_exact(idle, 1, deadline)

    assert exchanged(cut([5, 3]), body) == [None, None]


def test_lengths_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = row_exchange._row_sizes
    monkeypatch.setattr(row_exchange, "_row_sizes", lambda rows: [(mean, min(most, 1)) for mean, most in sizes(rows)])
    error, _ = exchanged(cut([2, 9], ragged=True), lambda exchange, gang: exchange.pick(torch.arange(2, 11)))
    assert isinstance(error, ProtocolError)
    assert "elements: at most 1" in str(error)


def test_a_rank_that_is_gone() -> None:
    """Its connections have ended, and the gang does not know why."""

    def body(exchange: RowExchange, gang: Gang) -> Any:
        if gang.rank == 1:
            exchange.close()
            gang.store("left").set("1", b"")
            return None
        gang.store("left").get("1")
        return exchange.pick(torch.tensor([0, 6]))

    error, _ = exchanged(cut([5, 3]), body)
    assert isinstance(error, RankLostError)
    assert error.rank == 1


def test_a_gang_that_fails_while_a_rank_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, told = threading.Event(), threading.Event()

    def silent(self: RowExchange, sock: Any, request: dict[str, Any]) -> None:
        asked.set()
        assert told.wait(SECONDS)

    monkeypatch.setattr(RowExchange, "_answer", silent)

    def body(exchange: RowExchange, gang: Gang) -> Any:
        if gang.rank == 0:
            return exchange.pick(torch.tensor([0, 6]))
        assert asked.wait(SECONDS)
        gang.announce_failure(Failure.of(ValueError("boom"), 1, 3, "backward"))
        told.set()
        with pytest.raises(RankFailedError, match="boom"):
            exchange.pick(torch.tensor([0]))
        return None

    error, none = exchanged(cut([5, 3]), body)
    assert isinstance(error, RankFailedError)
    assert none is None


def slow(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=1e-4)


class Seen(nn.Linear):
    """Keeps the inputs that each rank computes, by its thread."""

    def __init__(self) -> None:
        super().__init__(2, 1)
        self.inputs: list[list[float]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.inputs.append(x[:, 0].tolist())
        return super().forward(x)


def numbered(counts: Sequence[int]) -> list[Rows]:
    total = sum(counts)
    features = torch.stack([torch.arange(total) + 0.0, torch.rand(total)]).T
    return Rows(features, torch.zeros(total, 1)).cut(*counts)


@pytest.mark.parametrize("parts", [1, 2])
def test_each_epoch_deals_all_rows_anew(parts: int) -> None:
    counts = [11, 0, 13, 4]
    held = numbered(counts)
    loops = train(Seen, numbered(counts), validation=held, batch=8, conf=CONF, accumulation_steps=parts, optimizer=slow)
    sampler = BatchSampler.of(counts, 8 * parts)
    for rank, loop in enumerate(loops):
        seen = [row for step in loop.model.module.inputs for row in step]
        assert seen == np.concatenate([deal_rows(counts, 5, epoch, rank) for epoch in range(3)]).tolist()
        assert len(loop.progress.history) == 3
        assert loop.progress.step == 3 * sampler.steps
    alive = [each.name for each in threading.enumerate()]
    assert not any(name.startswith("sparkdl-read-ahead") for name in alive)


def test_augment_comes_after_the_exchange() -> None:
    counts = [5, 3]
    loops = train(Seen, numbered(counts), batch=4, conf=CONF, optimizer=slow, augment=lambda x: x + 100)
    seen = sorted(row - 100 for loop in loops for step in loop.model.module.inputs for row in step)
    assert seen == sorted(3 * list(range(8)))


@BOTH
@pytest.mark.parametrize("weights", [False, True])
def test_all_rows_in_one_step_train_as_one_process(strategy: type[Gathered], weights: bool) -> None:
    data = table(weights=weights)
    loss = nn.MSELoss(reduction="none") if weights else None
    loops = train(Net, data.cut(*PARTS), strategy=strategy, epochs=6, optimizer=momentum, conf=CONF, loss=loss)
    assert_same(loops, reference(Net, data, 6))
