"""Trains with an elastic group while its hosts fail; measures lost steps and recovery times.

    python -m testbed.elastic --start 60 --json docs/results/elastic.jsonl
    python -m testbed.elastic --table docs/results/elastic.jsonl [--plot FILE]

One process runs on each host. Every ``--every`` seconds a fault hits a host, each host and each
kind of fault in turn: its process is killed or stopped, its cable is pulled, or its link is slowed
to a tenth for some seconds. A process that ends is restarted, and joins the group. A first run has
no faults. The report compares hashes of the parameters after each outer step.
"""

from __future__ import annotations

import argparse
import itertools
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

from jaxccomp.bench import launch
from testbed import launchers, scenario, workers
from testbed.bed import Testbed
from testbed.elastic import faults, report

_PORT = 4321
_SECRET = "a secret of the testbed"
_RESTART_SECONDS = 1.0


class Hosts:
    """The processes on the hosts of a testbed, restarted when they fail."""

    def __init__(self, bed: Testbed, folder: pathlib.Path, given: argparse.Namespace, until: float):
        self._bed, self._folder, self._given, self._until = bed, folder, given, until
        self._numbers = itertools.count()
        self.files: list[tuple[int, pathlib.Path]] = []
        self._ended: dict[int, float] = {}
        self.statuses: list[int] = []
        hosts = bed.plan.hosts
        self.places = ",".join(f"{host.address}:{_PORT}" for host in hosts)
        self.running = [self._start(host, joins=False) for host in range(len(hosts))]

    def _start(self, host: int, *, joins: bool) -> subprocess.Popen[bytes]:
        plan, given = self._bed.plan, self._given
        env = {
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": workers.python_path(),
            "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
            "JAXCCOMP_SECRET": _SECRET,
            "JAXCCOMP_PEER_TIMEOUT_SECONDS": str(given.silence),
            "JAXCCOMP_UCX_NET_DEVICES": "eth0",
            "JAXCCOMP_MPI": "never",
            **launchers.BY_LINKS,
        }
        if joins:
            env |= {"JAXCCOMP_COORDINATOR": self.places, "JAXCCOMP_JOIN": "world"}
        else:
            env |= {"JAXCCOMP_COORDINATOR": f"{plan.hosts[0].address}:{_PORT}"}
            env |= {"JAXCCOMP_RANK": str(host), "JAXCCOMP_SIZE": str(len(plan.hosts))}
        path = self._folder / f"{next(self._numbers)}-{host}.txt"
        self.files.append((host, path))
        member = str(pathlib.Path(__file__).with_name("member.py"))
        command = ["ip", "netns", "exec", plan.hosts[host].namespace, sys.executable, "-P", member]
        command += ["--part", str(host), "--parts", str(len(plan.hosts))]
        command += ["--until", str(self._until), "--pause", str(given.pause)]
        with path.open("wb") as file:
            return subprocess.Popen(
                command, env=launch.environment(env), stdout=file, stderr=subprocess.STDOUT
            )

    def tend(self) -> bool:
        """Restarts processes that have failed. Returns whether any process runs."""
        for host, process in enumerate(self.running):
            if process.poll() is None or process.returncode == 0:
                continue
            ended = self._ended.setdefault(host, time.time())
            if time.time() - ended > _RESTART_SECONDS and time.time() < self._until - 10:
                self.statuses.append(process.returncode)
                del self._ended[host]
                self.running[host] = self._start(host, joins=True)
        return any(process.poll() is None for process in self.running)

    def stop(self) -> None:
        """Kills all processes."""
        self._bed.kill()
        for process in self.running:
            process.wait()


def _run(given: argparse.Namespace, kinds: list[str], seconds: float) -> dict[str, Any]:
    """Runs for ``seconds`` with faults of ``kinds``; returns the summary."""
    with Testbed(given.hosts, given.link) as bed, tempfile.TemporaryDirectory() as name:
        until = time.time() + given.start + seconds
        hosts = Hosts(bed, pathlib.Path(name), given, until)
        begun = time.time()
        befallen = []
        # Every host with every kind in turn, including the coordinator.
        turns = itertools.cycle(
            (kind, (host + offset) % given.hosts)
            for host in range(given.hosts)
            for offset, kind in enumerate(kinds)
        )
        due = begun + given.start
        ending: tuple[float, faults.Fault, int, int] | None = None
        while hosts.tend() and time.time() < until + given.patience:
            now = time.time()
            if ending and now >= ending[0]:
                _, fault, host, pid = ending
                # A process that has exited in the meantime gets no signal.
                if fault is not faults.KINDS["stop"] or hosts.running[host].poll() is None:
                    fault.end(bed.plan, host, pid)
                ending = None
            if kinds and now >= due and ending is None and due < until - given.every:
                kind, host = next(turns)
                process = hosts.running[host]
                if process.poll() is None:
                    fault = faults.KINDS[kind]
                    befallen.append({"t": time.time(), "kind": kind, "host": host})
                    fault.begin(bed.plan, host, process.pid)
                    lasts = given.lasting or fault.seconds
                    ending = (time.time() + lasts, fault, host, process.pid)
                due += given.every
            time.sleep(0.02)
        hangs = sum(process.poll() is None for process in hosts.running)
        hosts.stop()
        if given.keep:
            given.keep.mkdir(parents=True, exist_ok=True)
            for _, path in hosts.files:
                (given.keep / path.name).write_text(path.read_text())
        logs = [(host, workers.lines(path.read_text())) for host, path in hosts.files]
        return report.summary(logs, befallen, begun + given.start, until, hangs)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m testbed.elastic", description=__doc__)
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--link", default="1gbit")
    parser.add_argument("--minutes", type=float, default=30.0, help="of the run with faults")
    parser.add_argument(
        "--minutes-without", type=float, default=10.0, help="of the run without faults; 0: no run"
    )
    parser.add_argument("--every", type=float, default=30.0, help="seconds between faults")
    parser.add_argument("--lasting", type=float, help="seconds of a fault; default: by its kind")
    parser.add_argument("--silence", type=float, default=1.5, help="peer_timeout_seconds")
    parser.add_argument(
        "--pause", type=float, default=0.5, help="seconds to sleep in an outer step"
    )
    parser.add_argument("--start", type=float, default=40.0, help="seconds until the first fault")
    parser.add_argument(
        "--patience",
        type=float,
        default=60.0,
        help="seconds after the end until a process counts as hung",
    )
    parser.add_argument("--kind", action="append", choices=faults.KINDS, help="default: all")
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for the members' output")
    return scenario.run(parser, _measure, table=report.table, plot=report.plot)


def _measure(given: argparse.Namespace) -> list[scenario.Line]:
    facts = {
        "hosts": given.hosts,
        "link": given.link,
        "every_seconds": given.every,
        **({"lasting_seconds": given.lasting} if given.lasting else {}),
        "peer_timeout_seconds": given.silence,
    }
    rows = []
    runs = (
        ("none", [], given.minutes_without),
        ("faults", given.kind or list(faults.KINDS), given.minutes),
    )
    for name, kinds, minutes in runs:
        if not minutes:
            continue
        rows.append({"faults": name, **facts, **_run(given, kinds, 60 * minutes)})
        print(rows[-1], flush=True)
    return rows


if __name__ == "__main__":
    sys.exit(main())
