"""Steps per second of a group while strangers without its secret connect to its ports.

    python -m stress.strangers --output ../docs/results/strangers.json
    python -m stress.strangers --table ../docs/results/strangers.json

Run it in the folder `tests`, with the Python of an environment with UCX. Four processes of this
machine sum 1,000 values and pause for 20 ms, again and again. Strangers keep a number of
connections open; each one that is closed is opened again after a second. Seconds with and without
strangers take turns. In the end one member is killed while the strangers are there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import selectors
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, NoReturn

MEMBERS = 4
COUNTS = (64, 500, 3000)
ROUNDS = 3
ROUND_SECONDS = 4.0
SETTLING_SECONDS = 1.0  # after strangers have come or gone
STEP_PAUSE_SECONDS = 0.02
REOPEN_SECONDS = 1.0
START_SECONDS = 120.0
# The first bytes of the handshake (jaxccomp/_bootstrap/connections.py), with a nonce.
GREETING = b"jaxccomp-rendezvous-2\n" + bytes(32)
KINDS = {
    "idle": b"",
    "garbage": b"\xff" * 4096,
    "greeting, then silence": GREETING,
    "greeting and a proof of another connection": GREETING + bytes(range(32)),
}


def work() -> NoReturn:
    """A member: sums, and prints the number of steps twice a second."""
    import jax
    import jax.numpy as jnp

    import jaxccomp as jcc

    total = jax.jit(lambda x, comm: jcc.allreduce(x, comm=comm), static_argnames="comm")
    comm = jcc.init()
    steps, said, ones = 0, 0.0, jnp.ones(1000)
    print("met", flush=True)
    while True:
        try:
            assert float(total(ones, comm=comm)[0]) == comm.size
            steps += 1
        except jcc.errors.CutOffError:
            raise
        except Exception:  # a member has gone
            comm = comm.shrink()
            float(total(ones, comm=comm)[0])
            print(f"shrunk {time.time()}", flush=True)
        if time.time() - said > 0.1:
            said = time.time()
            print(f"steps {said} {steps}", flush=True)
        time.sleep(STEP_PAUSE_SECONDS)


def stand(port: int, count: int, kind: str) -> NoReturn:
    """Strangers: keep ``count`` connections to a port open until this process is killed."""
    os.nice(19)  # strangers are on other machines, and take no processor time of this one
    events = selectors.DefaultSelector()
    due = [0.0] * count  # by connection that is closed: when to open it

    def close(raw: socket.socket) -> None:
        events.unregister(raw)
        raw.close()
        due.append(time.monotonic() + REOPEN_SECONDS)

    while True:
        now = time.monotonic()
        ready = [each for each in due if each <= now]
        due[:] = [each for each in due if each > now]
        for _ in ready:
            raw = socket.socket()
            raw.setblocking(False)
            raw.connect_ex(("127.0.0.1", port))
            events.register(raw, selectors.EVENT_WRITE)
        for key, mask in events.select(0.1):
            raw = key.fileobj
            assert isinstance(raw, socket.socket)
            try:
                if mask & selectors.EVENT_WRITE:
                    raw.send(KINDS[kind])
                    events.modify(raw, selectors.EVENT_READ)
                elif not raw.recv(1 << 16):
                    close(raw)
            except OSError:
                close(raw)


class Group:
    """The members' processes."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as raw:
            self.port = raw.getsockname()[1]
        env = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "JAXCCOMP_SECRET": "a secret of the tests",
            "JAXCCOMP_COORDINATOR": f"127.0.0.1:{self.port}",
            "JAXCCOMP_SIZE": str(MEMBERS),
        }
        self.members = [
            subprocess.Popen(
                [sys.executable, "-m", "stress.strangers", "--work"],
                env=env | {"JAXCCOMP_RANK": str(rank)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(MEMBERS)
        ]
        self._wait("met")

    def _wait(self, word: str, members: Sequence[int] = range(MEMBERS)) -> list[float]:
        """Wait until these members have printed a line with that word; return its numbers."""
        found = []
        for rank in members:
            for line in self.members[rank].stdout:  # type: ignore[union-attr]
                if line.startswith(word):
                    found.append(float((line.split() + ["0"])[1]))
                    break
            else:
                raise RuntimeError(f"member {rank} has ended")
        return found

    def steps(self, seconds: float) -> float:
        """Steps per second of the first member, whose lines of the time before are skipped."""
        begin = time.time()
        counts: list[tuple[float, int]] = []
        for line in self.members[0].stdout:  # type: ignore[union-attr]
            if line.startswith("steps"):
                at, count = line.split()[1:]
                if float(at) >= begin:
                    counts.append((float(at), int(count)))
                if float(at) >= begin + seconds:
                    break
        else:
            raise RuntimeError("the first member has ended")
        (first, before), (last, after) = counts[0], counts[-1]
        return (after - before) / (last - first)

    def kill_one(self) -> float:
        """Kill the last member; return the seconds until the others have done a step."""
        killed = time.time()
        self.members[-1].kill()
        return max(self._wait("shrunk", range(MEMBERS - 1))) - killed

    def ports(self) -> dict[str, int]:
        """The ports at which the first member listens: its own, and the port of UCX."""
        inodes = set()
        for link in pathlib.Path(f"/proc/{self.members[0].pid}/fd").iterdir():
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

    def end(self) -> None:
        for member in self.members:
            member.kill()
            member.wait()


class Strangers:
    def __init__(self, port: int, count: int, kind: str):
        command = [sys.executable, "-m", "stress.strangers", "--stand", str(port), str(count), kind]
        self._process = subprocess.Popen(command)

    def __enter__(self) -> Strangers:
        time.sleep(SETTLING_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def measure(where: str, kind: str, count: int) -> dict[str, Any]:
    """Steps with and without these strangers in turn, then the loss of a member among them."""
    group = Group()
    try:
        port = group.ports()[where]
        without, among = [], []
        for _ in range(ROUNDS):
            time.sleep(SETTLING_SECONDS)
            without.append(group.steps(ROUND_SECONDS))
            with Strangers(port, count, kind):
                among.append(group.steps(ROUND_SECONDS))
        with Strangers(port, count, kind):
            shrinks = group.kill_one()
        alive = [member.poll() is None for member in group.members[:-1]]
    finally:
        group.end()
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
    parser.add_argument("--work", action="store_true", help="be a member")
    parser.add_argument("--stand", nargs=3, metavar=("PORT", "COUNT", "KIND"), help="be strangers")
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--table", type=pathlib.Path, help="show results as a table")
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS)
    arguments = parser.parse_args()
    if arguments.table:
        print(table(json.loads(arguments.table.read_text(encoding="utf-8"))["rows"]))
        return 0
    if arguments.work:
        work()
    if arguments.stand:
        port, count, kind = arguments.stand
        stand(int(port), int(count), kind)
    from jaxccomp.bench import machine

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
