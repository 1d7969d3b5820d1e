"""Races over emulated hosts: which system is first to a goal, where links change their rates and hosts compute unevenly.

Raajay Viswanathan and Aditya Akella, "Network-accelerated Distributed Machine Learning Using MLfabric", section 7. All
systems meet the same rates and stragglers, from the moment when training begins. Each worker has its own host. A server
has one more, whose link always has the full rate, as in the paper. The scheduler is beside the first worker. Links have
100 Mbit/s in place of the paper's 10 Gbit/s.

``--train``: digits, by a perceptron of 238,510 parameters and SGD. ``--lda``: topics of docstrings, by collapsed Gibbs
sampling. Both really compute, and then wait until a step has lasted ``--computing`` seconds. No system sends while it
computes.

Systems: ``fabric-TAU`` and ``fabric-bsp`` over this package's fabric (``fabric``: with a bound of 30), ``ring`` by its
all-reduce, ``ddp`` by torch's DistributedDataParallel over gloo, ``async`` with a parameter server without a schedule.

Seconds count from the beginning until the goal was reached, a sample for each seed. The model is copied after as many
updates as there are workers, and the copies are evaluated after the race. Verified: each seed reaches the goal, and no
delay is above the bound. ``busy_cores``: busy cores of this machine, in the mean. Times are the network's only if this
is well below all.
"""

from __future__ import annotations

import json
import re
import statistics
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from benchmarks.fabric import systems
from benchmarks.fabric.conditions import NETWORKS, Computing, SteadyServer
from benchmarks.fabric.digits import Digits, Task
from benchmarks.fabric.systems import Curve, Moment, Start, first
from benchmarks.fabric.topics import Corpus, Topics
from benchmarks.ranks import gloo_group, join_gang, rank_job, run_ranks
from lab import Lab, Place
from lab.bench import Row

from sparkdl_comm.conf import CommConf
from sparkdl_comm.errors import ConfError
from sparkdl_comm.fabric.api import Fabric
from sparkdl_comm.fabric.params import FabricParams
from sparkdl_comm.networks import digits_28x28
from sparkdl_comm.topology import Topology
from sparkdl_comm.units import format_rate

#: Rate of a host's link, bit/s. It stands for the paper's 10 Gbit/s.
RATE = 100_000_000
_SYSTEM = re.compile(r"fabric(?:-(bsp|\d+))?|ring|ddp|async")


@dataclass(frozen=True)
class System:
    """System that trains. ``kind``: fabric, ring, ddp or async. ``sync``: synchrony of the fabric."""

    name: str
    kind: str
    sync: str = ""

    @classmethod
    def parse(cls, name: str) -> System:
        """Return the system of a name. ``fabric`` has a bound of 30 on delays.

        :raises ConfError: the name is unknown, or its bound is 0.
        """
        found = _SYSTEM.fullmatch(name)
        if not found:
            raise ConfError(f"{name}: there are fabric, fabric-TAU, fabric-bsp, ring, ddp and async")
        kind = name.partition("-")[0]
        if kind != "fabric":
            return cls(name, kind)
        sync = "bsp" if found[1] == "bsp" else f"async:{found[1] or 30}"
        FabricParams(sync)
        return cls(name, kind, sync)

    @property
    def has_server(self) -> bool:
        """True if the last rank is a server, on its own host."""
        return self.kind in ("fabric", "async")

    @property
    def delay_bound(self) -> int | None:
        return FabricParams(self.sync).delay_bound if self.sync else None


@dataclass(frozen=True)
class Race:
    """Job of all ranks of a race.

    - ``updates``: updates of the model until the race ends.
    - ``computing``: seconds of an update without slowdown. ``stragglers``: a compute setting of conditions.py.
    - ``timeout``: seconds that a rank waits for others.
    - ``data``: file of the digits, or of the documents if ``topics`` is not 0. ``topics``: number of topics.
    - ``begun``: file that exists once the race has begun.
    """

    system: str
    workers: int
    updates: int
    computing: float
    stragglers: str
    seed: int
    timeout: float
    data: str
    begun: str
    topics: int = 0

    def task(self) -> Task:
        with np.load(self.data, allow_pickle=False) as found:
            if not self.topics:
                return Digits(torch.from_numpy(found["pixels"]), torch.from_numpy(found["labels"]), self.seed)
            return Topics(found["training"], found["held_out"], int(found["words"]), self.topics, self.seed)

    def step(self, worker: int) -> Computing:
        return Computing(self.computing, self.stragglers, self.seed, worker)

    def conf(self, topology: str) -> CommConf:
        return CommConf.from_mapping(
            {}, topology=topology, timeout=f"{self.timeout}s", fabric_link_rate=format_rate(RATE)
        )


#: Seconds that a race may take, and that a rank waits for another.
RACE_SECONDS, WAIT_SECONDS = 180.0, 60.0
TOPICS = 40


class Subject(NamedTuple):
    """Defaults of what is learned. Each system reaches the goal well before all ``updates``."""

    updates: int
    systems: str
    settings: str


DIGITS = Subject(420, "fabric,ring,ddp,async", "C2-N2")
DOCUMENTS = Subject(300, "fabric-30,fabric-bsp,ring,async", "C1-N1")


def defaults(options: Namespace) -> dict[str, Any]:
    """Return the races' defaults of the options whose defaults differ from the simulator's."""
    subject = DOCUMENTS if options.lda else DIGITS
    return {"workers": 6, "accuracy": 0.92, **subject._asdict()}


def check(parser: ArgumentParser, options: Namespace) -> None:
    """Replace the systems' names by systems, and end the program if an option makes no sense."""
    try:
        options.systems = [System.parse(name) for name in options.systems.split(",")]
    except ConfError as error:
        parser.error(f"--systems: {error}")
    if options.lda and any(system.kind == "ddp" for system in options.systems):
        parser.error("--systems ddp: DistributedDataParallel sums gradients; --lda has none")
    if options.workers < 2:
        parser.error(f"--workers {options.workers}: at least 2")
    if options.quick:
        options.computing, options.updates = 0.01, 20 * options.workers


def rows(options: Namespace) -> Iterator[Row]:
    """Run all races. Yield a row of results for each system in each setting.

    A setting names conditions of computing and of the network, such as C2-N2 (see conditions.py). A row has the seconds
    to the goal of one race for each seed.
    """
    with tempfile.TemporaryDirectory(prefix="sparkdl-race-") as folder:
        data = Path(folder) / "data.npz"
        _write_data(options, data)
        for setting in options.settings:
            for system in options.systems:
                runs = [_run(system, setting, seed, data, options) for seed in range(options.repeats)]
                yield _row(system, setting, runs, options)


def _write_data(options: Namespace, path: Path) -> None:
    """Write the data to a file. Reading the sources takes longer than all else that ranks do before they begin."""
    if options.lda:
        corpus = Corpus.of_docstrings(options.words)
        np.savez(path, training=corpus.training, held_out=corpus.held_out, words=len(corpus.words))
    else:
        pixels, labels = digits_28x28()
        np.savez(path, pixels=pixels.numpy(), labels=labels.numpy())


def _run(system: System, setting: str, seed: int, data: Path, options: Namespace) -> dict[str, Any]:
    """Run a race. Return the results of the rank with the model."""
    compute, _, network = setting.partition("-")
    begun = data.with_name(f"{setting} {system.name} {seed} begun")
    counts = options.workers, options.updates, options.computing
    topics = TOPICS if options.lda else 0
    race = Race(system.name, *counts, compute, seed, WAIT_SECONDS, str(data), str(begun), topics)
    topology = Topology.parse(_star(system, options.workers)).with_rates(RATE)
    changing = SteadyServer(NETWORKS[network], seed=seed, workers=options.workers)
    with Lab(topology) as lab, lab.schedule(changing, Start(begun, options.workers).wait):
        [found] = run_ranks(lab, Path(__file__), race, RACE_SECONDS)
    return found | {"curve": [Moment(*moment) for moment in found["curve"]]}


def _star(system: System, workers: int) -> str:
    return f"star:{workers + system.has_server}"


def _row(system: System, setting: str, runs: list[dict[str, Any]], options: Namespace) -> Row:
    if options.lda:
        reached = [first(run["curve"], lambda score: score <= options.perplexity) for run in runs]
    else:
        reached = [first(run["curve"], lambda score: score >= options.accuracy) for run in runs]
    max_delay = max(run["max_delay"] for run in runs)
    return Row(
        suite="fabric",
        case=f"{'lda' if options.lda else 'train'} {setting}",
        algorithm=system.name,
        topology=_star(system, options.workers),
        rate_mbit=RATE / 1e6,
        world=options.workers,
        bytes=4 * runs[0]["elements"],
        samples=[(moment or run["curve"][-1]).seconds for moment, run in zip(reached, runs, strict=True)],
        verified=None not in reached and max_delay <= (system.delay_bound or max_delay),
        compute="emulated",
        extra={
            "max_delay": max_delay,
            "dropped": statistics.median(run["dropped"] for run in runs),
            "busy_cores": max(run["busy"] for run in runs),
            "curves": [run["curve"] for run in runs],
        },
    )


# --- The rank program -------------------------------------------------------------------------------------------------

#: Result of the rank with the model. The other ranks have none.
Result = dict[str, Any] | None


def main() -> None:
    """Race, and print the result of the rank with the model.

    It has the ``curve`` of seconds, updates and scores; ``max_delay`` and ``dropped``, in updates; ``busy``, the machine's
    busy cores in the mean; ``elements`` of the model.
    """
    folder, race, place = rank_job(Race)
    task, start = race.task(), Start(Path(race.begun), race.workers)
    result = RUNS[System.parse(race.system).kind](race, task, place, folder, start)
    if result is not None:
        scored = {"curve": result["curve"].moments(task.score), "elements": task.elements}
        print(json.dumps(result | scored), flush=True)


def _result(curve: Curve | None, start: Start, max_delay: int) -> Result:
    return curve and {"curve": curve, "max_delay": max_delay, "busy": start.busy_cores(), "dropped": 0}


def over_fabric(race: Race, task: Task, place: Place, folder: str, start: Start) -> Result:
    params = FabricParams(System.parse(race.system).sync)
    learner = task.learner(place.rank, race.workers) if place.rank < race.workers else None
    result: Result = None
    dropped = 0
    with join_gang(folder, place, race.timeout) as gang:
        with Fabric(gang, race.conf(str(place.topology))) as fabric:
            if learner is None:
                server = fabric.register_as_server(params, task.start())
                curve = start.begin()
                systems.serve_fabric(server, curve)
                result = _result(curve, start, server.largest_delay)
            else:
                worker, step = fabric.register_as_worker(params), race.step(place.rank).step
                dropped = systems.work_on_fabric(worker, race.workers, learner, race.updates, step)
        all_dropped = gang.all_gather(json.dumps(dropped).encode(), race.timeout)
    return result and {**result, "dropped": sum(map(json.loads, all_dropped))}


def over_ring(race: Race, task: Task, place: Place, folder: str, start: Start) -> Result:
    with join_gang(folder, place, race.timeout) as gang:
        conf, step = race.conf(str(place.topology)), race.step(place.rank).step
        return _result(systems.train_by_ring(gang, conf, task, race.updates, step, start.begin), start, race.workers)


def over_ddp(race: Race, task: Any, place: Place, folder: str, start: Start) -> Result:
    with gloo_group(folder, race.timeout):
        curve = systems.train_by_ddp(task, race.updates, race.step(place.rank).step, start.begin)
        return _result(curve, start, race.workers)


def without_schedule(race: Race, task: Task, place: Place, folder: str, start: Start) -> Result:
    learner = task.learner(place.rank, race.workers) if place.rank < race.workers else None
    with gloo_group(folder, race.timeout) as group:
        dist.barrier()
        if learner is None:
            serving = systems.Serving(task, race.updates, start.begin())
            serving.run(group)
            return _result(serving.curve, start, serving.largest_delay)
        systems.work_for_server(group, task, learner, race.updates, race.step(place.rank).step)
        return None


RUNS: dict[str, Callable[[Race, Any, Place, str, Start], Result]] = {
    "fabric": over_fabric,
    "ring": over_ring,
    "ddp": over_ddp,
    "async": without_schedule,
}


if __name__ == "__main__":
    main()
