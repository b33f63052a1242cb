"""Measures steps per second of a group while processes without its secret connect to its ports.

    python -m stress.strangers --output ../docs/results/strangers.json
    python -m stress.strangers --table ../docs/results/strangers.json

Run it in the folder `tests`, with the Python of an environment with UCX. Four processes of this
machine (ucx/partition_worker.py) sum 1,000 values and pause for 20 ms, again and again. Strangers,
which lack the secret, keep a number of connections open (stranger.py). Rounds with and without
strangers alternate. In the last one a member is killed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import patience
from ucx import groups, processes

from jaxccomp._elastic import connections
from jaxccomp.bench import machine

MEMBERS = 4
COUNTS = (64, 500, 3000)
ROUNDS = 3
ROUND_SECONDS = 4.0
SETTLING_SECONDS = 1.0  # after strangers have connected or left
WAIT_SECONDS = 60
GREETING = connections._PROTOCOL + bytes(connections._NONCE_BYTES)
KINDS = {
    "idle": b"",
    "garbage": b"\xff" * 4096,
    "greeting, then silence": GREETING,
    "greeting and a proof of another connection": GREETING + bytes(range(connections._MAC_BYTES)),
}


class Group:
    """The members' processes."""

    def __init__(self) -> None:
        self.port = processes.free_port()
        env = {"JAXCCOMP_COORDINATOR": f"127.0.0.1:{self.port}", "JAXCCOMP_SIZE": str(MEMBERS)}
        self.members = [
            groups.Member("partition_worker.py", "3600", env | {"JAXCCOMP_RANK": str(rank)})
            for rank in range(MEMBERS)
        ]
        for member in self.members:
            self._wait_for_work(member, MEMBERS)

    @staticmethod
    def _events(member: groups.Member, name: str) -> list[dict[str, Any]]:
        lines = [line for line in list(member.lines) if line.startswith('{"event"')]
        return [each for each in map(json.loads, lines) if each["event"] == name]

    def _wait_for_work(self, member: groups.Member, size: int) -> float:
        """Wait until this member works in a group of that size; return the time of its step."""

        def found() -> list[float]:
            works = self._events(member, "works")
            return [each["time"] for each in works if len(each["members"]) == size]

        assert patience.wait_for(lambda: bool(found()), WAIT_SECONDS), "\n".join(member.lines)
        return found()[0]

    def steps(self) -> float:
        """Return the first member's steps per second during the next ``ROUND_SECONDS``."""
        begin = time.time()
        time.sleep(ROUND_SECONDS)
        counts = [e for e in self._events(self.members[0], "steps") if e["time"] >= begin]
        assert len(counts) > 1, "the first member does no steps"
        first, last = counts[0], counts[-1]
        return (last["steps"] - first["steps"]) / (last["time"] - first["time"])

    def kill_one(self) -> float:
        """Kill the last member; return the seconds until the others have done a step."""
        killed = time.time()
        self.members[-1].process.kill()
        return max(self._wait_for_work(each, MEMBERS - 1) for each in self.members[:-1]) - killed

    def ports(self) -> dict[str, int]:
        """The ports at which the first member listens: its own, and the port of UCX."""
        inodes = set()
        for link in pathlib.Path(f"/proc/{self.members[0].process.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                name = os.readlink(link)
                if name.startswith("socket:["):
                    inodes.add(name[8:-1])
        found = set()
        for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.add(int(fields[1].rpartition(":")[2], 16))
        others = sorted(found - {self.port})
        return {"rendezvous": self.port} | ({"UCX": others[0]} if others else {})


@contextlib.contextmanager
def strangers(port: int, count: int, kind: str) -> Iterator[None]:
    command = [sys.executable, "-m", "stress.stranger", str(port), str(count), KINDS[kind].hex()]
    process = subprocess.Popen(command)
    try:
        time.sleep(SETTLING_SECONDS)
        yield
    finally:
        process.kill()
        process.wait()


def measure(where: str, kind: str, count: int) -> dict[str, Any]:
    """Steps with and without these strangers in turn, then the loss of a member among them."""
    group = Group()
    try:
        port = group.ports()[where]
        without, among = [], []
        for _ in range(ROUNDS):
            time.sleep(SETTLING_SECONDS)
            without.append(group.steps())
            with strangers(port, count, kind):
                among.append(group.steps())
        with strangers(port, count, kind):
            shrinks = group.kill_one()
        alive = [member.process.poll() is None for member in group.members[:-1]]
    finally:
        groups.stop(group.members)
    ratios = [each / other for each, other in zip(among, without, strict=True)]
    return {
        "port": where,
        "kind": kind,
        "connections": count,
        "steps_per_second_without": round(statistics.median(without), 1),
        "steps_per_second": round(statistics.median(among), 1),
        "ratio": round(statistics.median(ratios), 3),
        "min_ratio": round(min(ratios), 3),
        "seconds_until_next_step_after_a_kill": round(shrinks, 2),
        "members_alive": sum(alive),
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The results as a table in Markdown."""
    lines = [
        "| port | connections | what they send | steps per second, without | with | ratio "
        "| next step after a member was killed |",
        "|---|---:|---|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row['port']} | {row['connections']:,} | {row['kind']} | "
        f"{row['steps_per_second_without']} | {row['steps_per_second']} | {row['ratio']:.2f} | "
        f"{row['seconds_until_next_step_after_a_kill']:.2f} s |"
        for row in rows
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--table", type=pathlib.Path, help="show results as a table")
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS)
    arguments = parser.parse_args()
    if arguments.table:
        print(table(json.loads(arguments.table.read_text(encoding="utf-8"))["rows"]))
        return 0
    cases = [("rendezvous", kind) for kind in KINDS] + [("UCX", "idle"), ("UCX", "garbage")]
    rows = []
    for where, kind in cases:
        for count in arguments.counts:
            rows.append(measure(where, kind, count))
            print(rows[-1], flush=True)
    if arguments.output:
        facts = {"cores": os.cpu_count(), "processor": machine.processor(), "rounds": ROUNDS}
        arguments.output.write_text(json.dumps(facts | {"rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
