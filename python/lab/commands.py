"""``python/sparkdl-lab``: emulated networks from the command line.

``lab up NAME`` leaves a lab in the background. A process keeps it, and can redraw its rates, until ``lab down NAME``.
``run``, ``submit`` and ``check --topology`` make their own labs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import select
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lab import state
from lab.access import COMMAND_SECONDS
from lab.check import TOLERANCE, check
from lab.cluster import Cluster
from lab.failure import excerpt
from lab.layout import HEAD, HostId
from lab.network import Lab, Traffic
from lab.rates import DISTRIBUTIONS, RateSchedule
from lab.removal import remove
from sparkdl_comm import cli
from sparkdl_comm.errors import ConfError, DeadlineError, LabError
from sparkdl_comm.topology import KNOWN_FORMS
from sparkdl_comm.units import format_rate

#: The script that calls :func:`main`.
_PROGRAM = Path(__file__).parents[1] / "sparkdl-lab"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line of ``sparkdl-lab``; see :func:`sparkdl_comm.cli.run`."""
    return cli.run(_parser(), arguments)


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    lab = argparse.ArgumentParser(
        prog="sparkdl-lab", description="Networks of given shape and rates on this machine, and programs on them."
    )
    actions = lab.add_subparsers(metavar="ACTION", required=True)

    up = actions.add_parser("up", help="make a lab and leave it in the background")
    up.add_argument("name")
    _add_network(up)
    up.add_argument("--foreground", action="store_true", help="stay, until Ctrl-C or `lab down`")
    up.set_defaults(call=_up)

    status = actions.add_parser("status", help="which labs there are, their rates and counters")
    status.add_argument("--json", action="store_true")
    status.set_defaults(call=_status)

    inside = actions.add_parser("exec", help="run a command on a host of a lab: exec NAME HOST -- COMMAND")
    inside.add_argument("name")
    inside.add_argument("host", type=_host, help="its number, or head")
    inside.add_argument("command", nargs="+")
    inside.set_defaults(call=_exec)

    rate = actions.add_parser("rate", help="change the rate of a link of a running lab")
    rate.add_argument("name")
    rate.add_argument("host", type=_host)
    rate.add_argument("rail", type=int, nargs="?", default=0)
    rate.add_argument("--up", help="from the host to its switch, such as 50mbit")
    rate.add_argument("--down", help="from the switch to the host")
    rate.set_defaults(call=_rate)

    down = actions.add_parser("down", help="remove labs; without a name: what killed programs left")
    down.add_argument("name", nargs="*")
    down.add_argument("--all", action="store_true", help="also those that `lab up` keeps")
    down.add_argument("--force", action="store_true", help="also if a program is using it; that program fails")
    down.set_defaults(call=_down)

    measure = actions.add_parser("check", help=f"measure every link, both ways at once; fails beyond {TOLERANCE:.0%}%")
    measure.add_argument("name", nargs="?", help="a running lab; else give --topology")
    _add_network(measure, needed=False)
    measure.add_argument("--seconds", type=float, default=2.0)
    measure.add_argument("--json", action="store_true")
    measure.set_defaults(call=_check)

    run = actions.add_parser("run", help="run a program as every rank: run --topology star:3,200mbit -- COMMAND")
    _add_network(run, loopback=True)
    run.add_argument("--timeout", type=float, default=600.0, help="seconds")
    run.add_argument("command", nargs="+")
    run.set_defaults(call=_run)

    submit = actions.add_parser(
        "submit", help="spark-submit to a Spark standalone cluster of its own, one worker a host"
    )
    _add_network(submit, loopback=True)
    submit.add_argument("--timeout", type=float, default=3600.0, help="seconds")
    submit.add_argument("--memory", default="1g", help="of each executor")
    submit.add_argument(
        "--counters", metavar="FILE", help="write each NIC's bytes during the application there, as JSON"
    )
    submit.add_argument("arguments", nargs="+", help="of spark-submit, but --master; after --")
    submit.set_defaults(call=_submit)
    return lab


def _add_network(parser: argparse.ArgumentParser, *, needed: bool = True, loopback: bool = False) -> None:
    parser.add_argument("--topology", required=needed, help=KNOWN_FORMS)
    parser.add_argument("--rate", help="of every NIC, each way, if the topology has none: 200mbit")
    parser.add_argument("--mtu", type=int, default=1500, help="bytes")
    parser.add_argument(
        "--schedule", choices=sorted(DISTRIBUTIONS), help="redraw the rates all the time, as MLfabric's"
    )
    parser.add_argument("--period", type=float, default=5.0, help="of --schedule, in seconds")
    parser.add_argument("--seed", type=int, default=0, help="of --schedule")
    if loopback:
        parser.add_argument("--loopback", action="store_true", help="no network: addresses of the loopback interface")


def _host(text: str) -> HostId:
    return HEAD if text == HEAD else int(text)


@contextlib.contextmanager
def _network(options: argparse.Namespace, name: str | None = None, kept: bool = False) -> Iterator[Cluster]:
    """Open the lab of the options, with its schedule."""
    with contextlib.ExitStack() as stack:
        if getattr(options, "loopback", False):
            if options.schedule:
                raise ConfError("--loopback has no links: --schedule cannot change their rates")
            yield stack.enter_context(Lab.loopback(options.topology))
            return
        lab = stack.enter_context(Lab(options.topology, options.rate, name=name, mtu=options.mtu, kept=kept))
        if options.schedule:
            stack.enter_context(lab.schedule(RateSchedule.named(options.schedule, options.period, options.seed)))
        yield lab


def _up(options: argparse.Namespace) -> int:
    if options.foreground:
        with _network(options, options.name, kept=True):
            print("up", flush=True)
            threading.Event().wait()
    Lab(options.topology, options.rate, name=options.name, mtu=options.mtu)  # its errors, here
    keeper = [sys.executable, str(_PROGRAM), "up", options.name, "--foreground"]
    for option in ("topology", "rate", "mtu", "schedule", "period", "seed"):
        value = getattr(options, option)
        keeper += [] if value is None else [f"--{option}={value}"]
    # Not our stderr: whoever reads that to its end would wait for the keeper.
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            keeper, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, start_new_session=True, text=True
        )
        assert process.stdout is not None
        with process.stdout as stdout:
            readable, _, _ = select.select([stdout], [], [], COMMAND_SECONDS)
            if readable and stdout.readline() == "up\n":
                print(
                    f"lab {options.name} is up: {options.topology}. `python/sparkdl-lab down {options.name}` removes it"
                )
                return 0
        process.terminate()
        process.wait(COMMAND_SECONDS)
        errors.seek(0)
        said = errors.read().strip()
    if not readable:
        raise DeadlineError(f"lab {options.name!r} was not up within {COMMAND_SECONDS:g} s: {said}")
    raise LabError(f"lab {options.name!r} did not come up: {said}")


def _status(options: argparse.Namespace) -> int:
    labs = [_described(found) for found in state.every()]
    if options.json:
        print(json.dumps(labs, indent=2))
        return 0
    for lab in labs:
        print(f"{lab['name']}: {lab['topology']}, {lab['mode']}, process {lab['owner']}, {lab['state']}")
        for link in lab["links"]:
            rates = f"up {format_rate(link['up'])}, down {format_rate(link['down'])}"
            print(
                f"  host {link['host']} rail {link['rail']} {link['address']}: {rates},"
                f" sent {link['sent'] / 1e6:.1f} MB, received {link['received'] / 1e6:.1f} MB"
            )
    return 0


def _described(found: state.State) -> dict[str, Any]:
    condition = ("kept" if found.kept else "in use") if found.alive else "left behind"
    links = []
    if found.alive:
        lab = Lab.attach(found.name)
        counters = lab.counters()
        for (host, rail), rate in lab.rates().items():
            traffic = counters[host, rail]
            link = {"host": host, "rail": rail, "address": lab.address(host, rail), "up": rate.up, "down": rate.down}
            links.append({**link, "sent": traffic.sent, "received": traffic.received})
    return {
        "name": found.name,
        "topology": found.topology,
        "mode": "root" if found.holder is None else "userns",
        "owner": found.owner,
        "state": condition,
        "links": links,
    }


def _exec(options: argparse.Namespace) -> int:
    return subprocess.call(Lab.attach(options.name).command(options.host, options.command))


def _rate(options: argparse.Namespace) -> int:
    if options.up is None and options.down is None:
        raise ConfError("nothing to change: give --up, --down or both")
    Lab.attach(options.name).set_rate(options.host, options.rail, options.up, options.down)
    return 0


def _down(options: argparse.Namespace) -> int:
    if options.name and options.all:
        raise ConfError("give names or --all, not both")
    names = options.name
    if not names:
        names = [s.name for s in state.every() if not s.alive or (options.all and (s.kept or options.force))]
    for name in names:
        remove(name, force=options.force)
        print(f"removed lab {name}")
    return 0


def _check(options: argparse.Namespace) -> int:
    if (options.name is None) == (options.topology is None):
        raise ConfError("give the name of a running lab, or --topology for one to be made")
    with contextlib.ExitStack() as stack:
        lab = Lab.attach(options.name) if options.name else stack.enter_context(_network(options))
        assert isinstance(lab, Lab)
        links = check(lab, options.seconds)
    if options.json:
        rows = [{"link": link.link, "measured": link.measured, "nominal": link.nominal} for link in links]
        print(json.dumps(rows, indent=2))
    else:
        for link in links:
            verdict = "ok" if link.within() else f"OFF by more than {TOLERANCE:.0%}"
            print(
                f"{link.link}: {link.measured / 1e6:.1f} of {link.nominal / 1e6:g} Mbit/s, {link.ratio:.3f} {verdict}"
            )
    return 0 if all(link.within() for link in links) else 1


def _run(options: argparse.Namespace) -> int:
    with _network(options) as cluster:
        results = cluster.run(options.command, timeout=options.timeout, check=False)
    for result in results:
        for stream, text in ((sys.stdout, result.stdout), (sys.stderr, result.stderr)):
            for line in text.splitlines():
                print(f"[{result.rank}] {line}", file=stream)
    failed = [result.rank for result in results if result.returncode]
    if failed:
        print(f"sparkdl-lab: ranks {', '.join(map(str, failed))} failed", file=sys.stderr)
    return 1 if failed else 0


def _submit(options: argparse.Namespace) -> int:
    with _network(options) as cluster, cluster.spark(memory=options.memory) as spark:
        before = cluster.counters() if isinstance(cluster, Lab) else {}
        done = spark.submit(options.arguments, timeout=options.timeout)
        after = cluster.counters() if isinstance(cluster, Lab) else {}
        if done.returncode:
            for name, text in spark.executor_logs().items():
                print(f"--- {name}\n{excerpt(text)}", file=sys.stderr)
    moved = {
        nic: Traffic(count.sent - before[nic].sent, count.received - before[nic].received)
        for nic, count in after.items()
    }
    for (host, rail), traffic in moved.items():
        print(f"host {host} rail {rail}: sent {traffic.sent / 1e6:.1f} MB, received {traffic.received / 1e6:.1f} MB")
    if options.counters:
        rows = [{"host": h, "rail": r, "sent": t.sent, "received": t.received} for (h, r), t in moved.items()]
        with open(options.counters, "w") as file:
            json.dump(rows, file, indent=2)
    return done.returncode
