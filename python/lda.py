"""Find topics in docstrings of the installed libraries, on Spark executors, over the fabric's API.

    spark-submit --jars sparkdl-comm-….jar --conf spark.plugins=sparkdl.comm.CommPlugin python/lda.py \
        --workers 2 --sync async:30 --output DIR

Latent Dirichlet allocation by collapsed Gibbs sampling: each worker samples the topics of its own documents and pushes by how
much its counts of words by topics have changed; the server, one rank more, adds them up. Prints the perplexity of docstrings
of other files, and the first words of each topic, and writes them to DIR/summary.json.
"""

from __future__ import annotations

import argparse
import json
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import benchmarks
import cloudpickle
from benchmarks.fabric.systems import Curve, serve_fabric, work_on_fabric
from benchmarks.fabric.topics import Corpus, Topics
from pyspark.sql import SparkSession

import sparkdl_comm
from sparkdl_comm import CommDistributor, Communicator, fabric
from sparkdl_comm.fabric.params import FabricParams

_SERVER = 0
_SHOWN = 8


@dataclass(frozen=True)
class Job:
    """``sweeps``: how often each word is sampled, in the mean of all workers."""

    task: Topics
    workers: int
    sweeps: int
    params: FabricParams


def one_rank(job: Job) -> dict[str, Any]:
    """Run one rank: the server if it is the first rank, else a worker. The server returns the results."""
    rank = Communicator.current().rank
    if rank != _SERVER:
        worker = fabric.register_as_worker(job.params)
        learner = job.task.learner(rank - 1, job.workers)
        return {"dropped": work_on_fabric(worker, _SERVER, learner, job.sweeps * job.workers, nullcontext)}
    model = job.task.start()
    server = fabric.register_as_server(job.params, model)
    curve = Curve(job.workers)
    serve_fabric(server, curve)
    return {
        "updates": server.version,
        "max_delay": server.largest_delay,
        "perplexity": [moment._asdict() for moment in curve.moments(job.task.score)],
        "counts": model.reshape(job.task.words, job.task.topics),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--output", type=Path, required=True, help="directory for summary.json")
    parser.add_argument("--workers", type=int, default=2, help="ranks that sample; one rank more is the server")
    parser.add_argument("--sync", default="async:30", help="bsp, ssp:K or async:TAU")
    parser.add_argument("--topics", type=int, default=20)
    parser.add_argument("--words", type=int, default=2000, help="that are known, the most frequent ones")
    parser.add_argument("--documents", type=int, default=800, help="of each library, at most")
    parser.add_argument("--sweeps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    SparkSession.builder.config(map=sparkdl_comm.spark_conf(progress=False)).getOrCreate()
    cloudpickle.register_pickle_by_value(benchmarks)  # executors have not got it
    corpus = Corpus.of_docstrings(options.words, options.documents)
    task = Topics(corpus.training, corpus.held_out, len(corpus.words), options.topics, options.seed)
    job = Job(task, options.workers, options.sweeps, FabricParams(options.sync))
    found = CommDistributor(options.workers + 1).run(one_rank, job)

    counts = found.pop("counts")
    summary = {
        "sync": options.sync,
        "documents": len(corpus.training),
        **found,
        "topics": [[corpus.words[word] for word in (-column).argsort()[:_SHOWN]] for column in counts.T],
    }
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    for moment in found["perplexity"][:: max(1, len(found["perplexity"]) // 10)]:
        print(f"{moment['updates']:5} updates, {moment['seconds']:6.1f} s: perplexity {moment['score']:.0f}")
    for topic in summary["topics"]:
        print(" ".join(topic))


if __name__ == "__main__":
    main()
