"""Simulates a group of processes, its network and clock, for the consensus on its membership.

A seed determines everything: processes and hosts, faults and their times, and the latency of each
message. `python simulation.py --schedules 100000` runs 100000 schedules.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import multiprocessing
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from jaxccomp._elastic.consensus import Membership, Node, Record, largest_group

SILENCE = 1.0  # seconds after which a silent member is given up
TICK = 0.1
FAULTS_END = 12.0  # no faults after this time
END = 40.0
DEADLINE = 15.0  # of a change of the membership
_QUIET = 5 * SILENCE  # time without a change of connections, after which a majority must continue


class Violation(AssertionError):
    """A property of the consensus is violated."""


class Process:
    """A program with its engine: runs in a membership, and asks for the next one after a failure.

    Attributes:
      state: "joining", "running", "changing" or "ended".
      current: the membership that the program runs in.
      lost: processes that the engine has given up.
    """

    def __init__(self, cluster: Cluster, number: int, host: int):
        self.cluster, self.number, self.host = cluster, number, host
        self.state = "joining"
        self.alive, self.stopped = True, False
        self.why = ""
        self.lost: set[int] = set()
        self.unheard: dict[int, float] = {}  # by silent process: the time when its silence began
        self.record: Record | None = None
        self.waiting: list[Callable[[], None]] = []  # events while it is stopped
        self.current: Membership | None = None
        self.node: Node | None = None
        self.deadline = 0.0
        self.failed = False

    def start(self, membership: Membership) -> None:
        self.node = self.cluster.node_class(
            self.number,
            membership,
            SILENCE,
            lambda process: self.cluster.record_of(process, self.host),
            self._keep,
        )
        self.current, self.state = membership, "running"
        self.cluster.on_running(self)

    def _keep(self, record: Record) -> None:
        self.record = Record.from_json(json.loads(json.dumps(record)))

    def fail(self) -> None:
        """Handles a failed operation of the program."""
        self.failed = True
        if self.state == "running":
            self.change(None)

    def change(self, join: Any) -> None:
        now = self.cluster.now
        self.state, self.deadline = "changing", now + DEADLINE
        if self.node.membership.term == self.current.term and not self.node.cut_off:
            self.node.begin(now, join=join)
        self.look()

    def look(self) -> None:
        """Continues with the node's result."""
        node = self.node
        if self.state == "running" and (node.cut_off or node.membership.term > self.current.term):
            self.fail()  # other members have continued: operations fail
        if self.state != "changing":
            return
        if node.cut_off:
            self.end(node.cut_off)
        elif node.membership.term > self.current.term:
            self.current, self.state, self.failed = node.membership, "running", False
            for dropped in set(range(len(self.cluster.processes))) - set(node.membership.members):
                if self.cluster.believes_disconnects and dropped not in self.lost:
                    self.cluster.transmit(
                        self.number, dropped, lambda q, p=self.number: q.lose(p, report=False)
                    )
            self.cluster.on_running(self)
            if any(p in self.lost for p in self.current.members):
                self.fail()
        elif self.cluster.now >= self.deadline:
            self.end("deadline: " + node.waits_for(self.cluster.now))

    def end(self, why: str) -> None:
        self.state, self.why = "ended", why
        self.cluster.on_ended(self)
        self.cluster.after(self.cluster.random.uniform(0, 1), self.kill)

    def kill(self) -> None:
        self.alive = False
        self.state = "ended"

    def lose(self, process: int, report: bool = True) -> None:
        """The engine marks a process as failed."""
        if process in self.lost or process == self.number or self.node is None:
            return
        self.lost.add(process)
        self.node.lose(process)
        if report:
            for other in range(len(self.cluster.processes)):
                self.cluster.transmit(
                    self.number,
                    other,
                    lambda q, p=process, by=self.number: q.hear_report(by, p),
                )
        if self.state == "running" and process in self.current.members:
            self.fail()

    def hear_report(self, by: int, process: int) -> None:
        if self.node is None or by in self.lost or process == self.number:
            return
        if by not in self.current.members:
            return  # the reporter was dropped from the group
        self.node.suspect(process)
        if self.cluster.believes_reports:
            self.node.lose(process)
        if self.state == "running" and process in self.current.members:
            self.fail()

    def probe(self, other: int, term: int) -> None:
        """Operations that wait for ``other`` fail later, because it requests a new membership."""
        current = self.current

        def look() -> None:
            is_same = self.state == "running" and self.current == current
            if is_same and current.term == term and other in current.members:
                self.fail()

        self.cluster.after(0.5, look)

    def tick(self) -> None:
        now = self.cluster.now
        if self.node is None or not self.alive:
            return
        for other in self.current.members:
            if other == self.number or other in self.lost:
                continue
            how = self.cluster.how_heard(other, self.number)
            if how == "heard":
                self.unheard.pop(other, None)
            elif how == "broken":
                self.lose(other)
            elif now - self.unheard.setdefault(other, now) > SILENCE:
                self.lose(other)
        self.send(self.node.tick(now))
        self.look()

    def send(self, outgoing: list[tuple[int, Any]]) -> None:
        for destination, message in outgoing:
            text = json.dumps(message)

            def deliver(process: Process, text: str = text) -> None:
                if process.node is None or not process.alive:
                    return
                came = json.loads(text)
                process.send(process.node.receive(process.cluster.now, self.number, came))
                process.look()
                if came["kind"] in ("prepare", "ready"):
                    process.probe(self.number, came["term"])

            self.cluster.transmit(self.number, destination, deliver, tells=True)


class Cluster:
    """Hosts, the network between them, and faults.

    Args:
      seed: determines everything random.
      node_class: the protocol.
      believes_reports: an old fault: the engine gives up a process because another has lost it.
      log: called with a line for each event.
    """

    def __init__(
        self,
        seed: int,
        node_class: type[Node] = Node,
        *,
        believes_reports: bool = False,
        reads_records: bool = True,
        log: Callable[[str], None] = lambda line: None,
        size: int | None = None,
        hosts: int | None = None,
    ):
        self.random = random.Random(seed)
        self.node_class, self.believes_reports = node_class, believes_reports
        self.reads_records = reads_records
        self.believes_disconnects = True
        self.log = log
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.processes: list[Process] = []
        self.cuts: dict[tuple[int, int], str] = {}  # between hosts: "silent" or "refused"
        self.cut_at = 0.0  # time of the last change of a connection
        self.went_on_at = 0.0  # time when a stopped process last continued
        self.decided: dict[int, tuple[int, ...]] = {}
        self.latency = 0.02
        size = size or self.random.randint(2, 6)
        self.hosts = hosts or self.random.choice([1, 2, size, size])
        members = tuple(range(size))
        for number in members:
            self.processes.append(Process(self, number, number % self.hosts))
        for process in self.processes:
            process.start(Membership(0, members))
            self._tick(process)

    # --- Time ----------------------------------------------------------------------------------

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), do))

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, do = heapq.heappop(self._events)
            do()
        self.now = until

    def _tick(self, process: Process) -> None:
        if not process.alive:
            return
        if not process.stopped:
            process.tick()
        self.after(TICK * self.random.uniform(0.8, 1.2), lambda: self._tick(process))

    # --- The network ---------------------------------------------------------------------------

    def _cut(self, source: int, destination: int) -> str:
        return self.cuts.get((self.processes[source].host, self.processes[destination].host), "")

    def transmit(
        self, source: int, destination: int, do: Callable[[Process], None], tells: bool = False
    ) -> None:
        """Runs `do` at the destination, unless the network loses it."""
        there = self.processes[destination]
        if source == destination:
            return
        cut = self._cut(source, destination)
        delay = self.random.expovariate(1 / self.latency)

        def arrive() -> None:
            here = self.processes[source]
            if there.alive:
                self._wake(there, lambda: do(there))
            elif tells and here.alive and here.node is not None:
                self._wake(here, lambda: here.node.refuse(destination))

        if cut == "refused" and tells:
            here = self.processes[source]
            self.after(
                delay, lambda: here.node and self._wake(here, lambda: here.node.refuse(destination))
            )
        if not cut:
            for _ in range(1 + (self.random.random() < 0.02)):
                self.after(delay, arrive)

    def _wake(self, process: Process, do: Callable[[], None]) -> None:
        if process.stopped:
            process.waiting.append(do)
        elif process.alive:
            do()

    def how_heard(self, source: int, destination: int) -> str:
        """Return what the destination's engine detects of the source: heard, silent, broken."""
        there = self.processes[source]
        cut = self._cut(source, destination) or self._cut(destination, source)
        if cut == "refused":
            return "broken"
        if self._cut(source, destination):
            return "silent"
        if not there.alive:
            return "broken"
        return "silent" if there.stopped or there.node is None else "heard"

    def record_of(self, process: int, host: int) -> Record | None:
        """Return the record of an ended process, as another process of its host reads it."""
        there = self.processes[process]
        if there.alive or there.host != host:
            return None
        if not self.reads_records and there.record is not None:
            return Record(Membership(-1, ()))  # as if it had never voted
        return there.record

    # --- Faults --------------------------------------------------------------------------------

    def happen(self, text: str) -> None:
        self.log(f"{self.now:7.3f} {text}")

    def kill(self, number: int) -> None:
        self.happen(f"{number} is killed")
        self.processes[number].kill()

    def stop(self, number: int) -> None:
        self.happen(f"{number} is stopped")
        self.processes[number].stopped = True

    def go_on(self, number: int) -> None:
        process = self.processes[number]
        if not process.stopped:
            return
        self.happen(f"{number} goes on")
        process.stopped = False
        self.went_on_at = self.now
        process.unheard.clear()
        waiting, process.waiting = process.waiting, []
        self.random.shuffle(waiting)
        for do in waiting:
            if process.alive:
                do()

    def cut(self, one: int, other: int, how: str, both: bool = True) -> None:
        if one == other:
            return
        self.happen(f"hosts {one} and {other} are cut, {how}, {'both ways' if both else 'one way'}")
        self.cut_at = self.now
        self.cuts[one, other] = how
        if both:
            self.cuts[other, one] = how

    def heal(self) -> None:
        self.happen("all connections are there again")
        self.cut_at = self.now
        self.cuts.clear()

    def join(self) -> None:
        """Joins another process to the working group."""
        group = self.working()
        if not group or len(self.processes) >= 9:
            return
        number = len(self.processes)
        joiner = Process(self, number, self.random.randrange(self.hosts + 1))
        self.processes.append(joiner)
        self.happen(f"{number} joins on host {joiner.host}")
        self._tick(joiner)
        for member in group[0].members:
            process = self.processes[member]

            def admit(process: Process = process) -> None:
                if process.state == "running" and process.current.term == group[0].term:
                    self._wake(process, lambda: process.change({"processes": [number]}))

            self.after(self.random.uniform(0, 0.2), admit)

    def schedule_faults(self) -> None:
        """Draws the faults and their times."""
        r = self.random
        if r.random() < 0.2:
            self.latency = r.choice([0.1, 0.3])
        at = 0.0
        while (at := at + r.expovariate(1 / r.choice([0.05, 0.5, 2.0]))) < FAULTS_END:
            self.after(at, self._fault)
        if r.random() < 0.5:
            self.after(FAULTS_END, self.heal)
        self.after(FAULTS_END, lambda: [self.go_on(p.number) for p in self.processes])

    def _fault(self) -> None:
        r = self.random
        living = [p.number for p in self.processes if p.alive]
        if not living:
            return
        victim = r.choice(living)
        what = r.random()
        if what < 0.2:
            self.kill(victim)
        elif what < 0.4:
            count = r.choice([1, 1, len(living) - 1])
            seconds = r.uniform(0.1, 5)
            for number in r.sample(living, max(count, 1)):
                self.stop(number)
                self.after(seconds, lambda number=number: self.go_on(number))
        elif what < 0.55:
            self.join()
        elif what < 0.65:
            self.heal()
        else:
            how = r.choice(["silent", "refused"])
            both = how == "refused" or r.random() < 0.6
            hosts = list(range(self.hosts + 1))
            if r.random() < 0.5:
                self.cut(*r.sample(hosts, 2), how, both)
            else:  # two parts
                part = set(r.sample(hosts, r.randint(1, len(hosts) - 1)))
                for one, other in itertools.product(part, set(hosts) - part):
                    self.cut(one, other, how, both)

    # --- Invariants ----------------------------------------------------------------------------

    def on_running(self, process: Process) -> None:
        current = process.current
        self.log(f"{self.now:7.3f} {process.number} runs in {current.term}: {current.members}")
        before = self.decided.setdefault(current.term, current.members)
        if before != current.members:
            raise Violation(f"two groups of term {current.term}: {before} and {current.members}")
        if process.number not in current.members:
            raise Violation(f"{process.number} runs in a group that it is no member of")
        for number in current.members if current.term else ():
            other = self.processes[number]
            if other.state == "joining" and other.alive:
                self.transmit(
                    process.number,
                    number,
                    lambda q: q.start(current) if q.node is None else None,
                )
        groups = self.working()
        if len(groups) > 1:
            raise Violation(f"two groups at the same time: {groups}")

    def working(self) -> list[Membership]:
        """Return the memberships whose members all run."""
        found = []
        running = {
            p.number: p.current[:2] for p in self.processes if p.state == "running" and p.alive
        }
        for current in set(running.values()):
            if all(running.get(p) == current for p in current[1]):
                found.append(Membership(*current))
        return found

    def _connected(self, one: int, other: int) -> bool:
        a, b = self.processes[one], self.processes[other]
        cut = self._cut(one, other) or self._cut(other, one)
        return not cut and other not in a.lost and one not in b.lost

    def majority(self, including: int | None = None) -> list[int]:
        """Return a majority of the newest group whose members reach each other; else []."""
        members = self.decided[max(self.decided)]
        here = [
            p
            for p in members
            if self.processes[p].alive
            and not self.processes[p].stopped
            and (self.processes[p].state in ("running", "changing") or p == including)
        ]
        lost = {p: [q for q in here if not self._connected(p, q)] for p in here}
        part = largest_group(here, lost)
        enough = 2 * len(part) > len(members) or (
            2 * len(part) == len(members) and members[0] in part
        )
        return part if enough else []

    def on_ended(self, process: Process) -> None:
        self.log(f"{self.now:7.3f} {process.number} ends: {process.why}")
        if self.now - self.cut_at < _QUIET or "dropped this process" in process.why:
            return
        if self.now - self.went_on_at < 0.05 + 8 * self.latency:
            return  # the others may not have heard it yet
        if process.number in self.majority(including=process.number):
            raise Violation(
                f"{process.number} ends beside a majority that reaches it: {process.why}"
            )

    def check_progress(self) -> None:
        """Checks that a majority whose members reach each other continues."""
        if self.majority() and not self.working():
            states = {p.number: (p.state, p.current and p.current.term) for p in self.processes}
            raise Violation(f"a majority {self.majority()} does not go on: {states}")


def run(seed: int, **options: Any) -> Cluster:
    """Run one schedule; raise Violation."""
    cluster = Cluster(seed, **options)
    cluster.schedule_faults()
    cluster.run(END)
    cluster.check_progress()
    return cluster


def violations(seeds: Iterator[int] | range, **options: Any) -> Iterator[tuple[int, str]]:
    """Yield seeds of schedules that violate a property, with the violations."""
    for seed in seeds:
        try:
            run(seed, **options)
        except Violation as error:
            yield seed, str(error)


def _chunk(seeds: range) -> list[tuple[int, str]]:
    return list(violations(seeds))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--processes", type=int, default=1, help="of this program")
    parser.add_argument("--trace", action="store_true", help="prints all events of one schedule")
    arguments = parser.parse_args()
    if arguments.trace:
        run(arguments.seed, log=print)
        return 0
    begun, last = time.monotonic(), arguments.seed + arguments.schedules
    chunks = [range(a, min(a + 200, last)) for a in range(arguments.seed, last, 200)]
    wrong = []
    with multiprocessing.Pool(arguments.processes) as pool:
        for done, found in enumerate(pool.imap(_chunk, chunks), 1):
            wrong += found
            for seed, text in found:
                print(f"seed {seed}: {text}", flush=True)
            if done % 25 == 0:
                print(f"{done * 200} schedules, {len(wrong)} wrong", flush=True)
    seconds = time.monotonic() - begun
    print(f"{arguments.schedules} schedules in {seconds:.0f} s: {len(wrong)} wrong")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
