"""Topics of documents: sampling topics of words, how well they foretell others, and workers that find them together."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
from benchmarks.fabric.systems import Curve, serve_fabric, work_on_fabric
from benchmarks.fabric.topics import Corpus, Priors, Sampler, Topics, perplexity
from hypothesis import given
from hypothesis import strategies as st

from sparkdl_comm.fabric.params import FabricParams
from tests.slow import slow
from tests.unit.fabric_helpers import raised, run

WORDS, TOPICS = 40, 4


def drawn(documents: int, seed: int, places: int = 20) -> np.ndarray:
    """Each has words of one of four quarters of all words, and fewer words than places at times."""
    draw = np.random.default_rng(seed)
    quarter = WORDS // TOPICS
    found = draw.integers(quarter, size=(documents, places)) + quarter * draw.integers(TOPICS, size=(documents, 1))
    found[np.arange(places) >= draw.integers(2, places + 1, size=(documents, 1))] = -1
    return found.astype(np.int32)


def sampler(documents: np.ndarray, seed: int = 0) -> Sampler:
    return Sampler(documents, WORDS, TOPICS, np.random.default_rng(seed))


@given(st.integers(0, 30), st.integers(0, 10**6), st.integers(0, 9))
def test_counts_are_those_of_the_topics(documents: int, seed: int, of_others: int) -> None:
    words = drawn(documents, seed)
    made = sampler(words, seed)
    others = np.full((WORDS, TOPICS), of_others, np.float32)
    for sweeps in range(3):
        counts = made.sweep(others) if sweeps else made.counts()
        assert counts.dtype == np.float32
        assert np.array_equal(counts.sum(1), np.bincount(words[words >= 0], minlength=WORDS))
        assert np.array_equal(made.topics == -1, words == -1)
        for topic in range(TOPICS):
            assert np.array_equal(counts[:, topic], np.bincount(words[made.topics == topic], minlength=WORDS))
    assert np.array_equal(others, np.full((WORDS, TOPICS), of_others)), "they are another's"


def test_the_same_seed_gives_the_same_topics() -> None:
    words, others = drawn(30, 1), np.ones((WORDS, TOPICS), np.float32)
    first, again, other = (sampler(words, seed).sweep(others) for seed in (5, 5, 6))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_perplexity_falls_towards_that_of_the_topics_that_are_there() -> None:
    words, held_out = drawn(200, 1), drawn(60, 2)
    made = sampler(words)
    others = np.zeros((WORDS, TOPICS), np.float32)
    before = perplexity(made.counts(), held_out)
    for _ in range(60):
        counts = made.sweep(others)
    assert before > 0.8 * WORDS
    assert perplexity(counts, held_out) < 0.5 * WORDS


def test_other_documents_count() -> None:
    """Of two words that others have in a topic each, and of topics that are full of other words."""
    words = np.array([[0, 1] * 10], np.int32)
    others = np.zeros((WORDS, TOPICS), np.float32)
    others[[5, 6, 0, 1], [0, 1, 2, 3]] = 1e6
    made = Sampler(words, WORDS, TOPICS, np.random.default_rng(1), Priors(document=10.0))
    counts = made.sweep(others)
    assert counts[0, 2] == counts[1, 3] == 10


def test_perplexity_of_words_that_are_all_alike_is_their_number() -> None:
    counts = np.full((WORDS, TOPICS), 7, np.float32)
    assert perplexity(counts, drawn(20, 3)) == pytest.approx(WORDS)


def test_a_corpus_knows_the_most_frequent_telling_words() -> None:
    training = [["the", "cat", "cat"], ["the", "dog"], ["the", "cow"], ["the", "ape"], ["the"], ["the"]]
    corpus = Corpus.of(training, [["dog", "bird", "cat"]], most=2)
    assert corpus.words == ["cat", "dog"]
    assert corpus.training[:, :2].tolist() == [[0, 0], [1, -1], [-1, -1], [-1, -1], [-1, -1], [-1, -1]]
    assert corpus.held_out[0, :3].tolist() == [1, 0, -1]


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=12), st.integers(0, 100))
@pytest.mark.slow
def test_the_model_is_the_sum_of_what_was_told(steps: list[tuple[int, bool]], seed: int) -> None:
    """Whatever is dropped, and however old the model is that workers have: what is missing is told later."""
    task = Topics(drawn(15, seed), drawn(5, seed), WORDS, TOPICS, seed)
    learners = [task.learner(worker, 3) for worker in range(3)]
    model, old = task.start(), task.start()
    for number, applied in [*steps, (0, True), (1, True), (2, True)]:
        update = learners[number].update(old if number == 0 and not steps else model)
        old = model.copy()
        learners[number].settle(applied)
        if applied:
            model += update
    there = task.training >= 0
    counts = model.reshape(WORDS, TOPICS)
    assert counts.min() >= 0
    assert np.array_equal(counts.sum(1), np.bincount(task.training[there], minlength=WORDS))


WORKERS, SWEEPS = 3, 30
TASK = Topics(drawn(150, 1), drawn(40, 2), WORDS, TOPICS, seed=4)


def found_over(sync: str) -> tuple[np.ndarray, Curve, int]:
    """The model, how it became one, and the largest delay."""
    params, curve, model = FabricParams(sync), Curve(WORKERS), TASK.start()

    def rank_of_server(fabric):
        server = fabric.register_as_server(params, model)
        serve_fabric(server, curve)
        return server.largest_delay

    def rank_of(worker):
        def learn(fabric):
            learner = TASK.learner(worker, WORKERS)
            with fabric:
                work_on_fabric(fabric.register_as_worker(params, 0), 0, learner, SWEEPS * WORKERS, nullcontext)

        return learn

    results, _ = run([rank_of_server, *map(rank_of, range(WORKERS))])
    raised(results)
    return model, curve, results[0]


@pytest.mark.parametrize("sync", ["async:6", *map(slow, ["async:1", "ssp:1", "bsp"])])
def test_they_find_topics(sync: str) -> None:
    model, curve, delay = found_over(sync)
    counts = model.reshape(WORDS, TOPICS)
    assert counts.min() >= 0
    assert counts.sum() <= (TASK.training >= 0).sum()
    moments = curve.moments(TASK.score)
    assert moments[-1].updates >= SWEEPS * WORKERS
    assert moments[-1].score < 0.7 * moments[0].score
    if sync.startswith("async"):
        assert delay <= int(sync[6:])


def test_bsp_is_what_one_process_finds() -> None:
    model, _, _ = found_over("bsp")
    learners = [TASK.learner(worker, WORKERS) for worker in range(WORKERS)]
    expected = TASK.start()
    for _ in range(SWEEPS):
        updates = [learner.update(expected) for learner in learners]
        for learner, update in zip(learners, updates, strict=True):
            learner.settle(True)
            expected = expected + update
    assert np.array_equal(model, expected)
