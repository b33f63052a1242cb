"""Consensus of a group on its next membership, as a state machine without I/O.

A *membership* is a term and an ordered list of processes. Each membership decides its successor, of
term + 1, by single-decree Paxos: a *leader* draws a ballot; a quorum promises to refuse older
ballots and reports the values that it has accepted; the leader proposes the newest of these, or a
new value if there is none; the value is decided once a quorum has accepted it. (Raft's names are
term, vote, log entry and commit; a membership needs only one entry per term.)

A quorum is more than half of the members, or half of them including the first one. A member does
not count if its *host* confirms that it has ended: another process on that host checks the process
table, and reads the stored record of the member's promises (`Record`). An ended process makes no
more promises, so its record replaces its vote. A refused or silent connection does not prove that a
process has ended.

A `Node` is the state of one process: it takes messages and the time, and returns messages. Messages
may be lost, delayed, reordered and repeated; each is sent again until it is answered. The tests run
nodes on a simulated network and clock (tests/unit/simulation.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Message = dict[str, Any]
Outgoing = list[tuple[int, Message]]  # destination and message
Ballot = tuple[int, int]  # round and process

INTERVAL_SECONDS = 0.1  # after which unanswered messages are sent again
_CANDIDATES = 4  # members to which a waiting process sends "ready": the first may have failed
_EXACT_CONFLICTS = 12  # processes in conflict up to which `largest_group` is exact
_NO_BALLOT: Ballot = (0, -1)


class Membership(NamedTuple):
    """The processes of a group, in order.

    Attributes:
      term: the number of memberships before this one.
      members: process numbers.
      detail: data of the caller about the change; any JSON.
    """

    term: int
    members: tuple[int, ...]
    detail: Any = None


class Record(NamedTuple):
    """The state of a process, stored on its host before the process sends a message based on it.

    Attributes:
      membership: the newest membership that the process knows to be decided.
      promised: the process refuses ballots older than this.
      accepted: the ballot and value that it accepted last for the next term.
    """

    membership: Membership
    promised: Ballot = _NO_BALLOT
    accepted: tuple[Ballot, Membership] | None = None

    @classmethod
    def from_json(cls, value: Any) -> Record:
        membership, promised, accepted = value
        return cls(membership_from_json(membership), _ballot(promised), _accepted(accepted))


class Promise(NamedTuple):
    """A vote for the leader's ballot.

    Attributes:
      accepted: the ballot and value that the voter has accepted, if any.
      lost: processes that the voter itself no longer reaches.
      known: the members in the voter's view: all but those that have left by themselves.
    """

    accepted: tuple[Ballot, Membership] | None
    lost: tuple[int, ...]
    known: tuple[int, ...]


class Node:
    """One member of one group.

    Attributes:
      membership: the newest membership that this process knows to be decided.
      cut_off: the reason why this process is no longer a member; empty while it is a member.
      active: whether the program takes part in a change.

    Args:
      process: this process's number.
      membership: the initial membership.
      silence_seconds: a member that has not answered for this time counts as missing.
      find_ended: returns the record of a process that has ended on this host, or None.
      keep: stores this process's record for the other processes of this host.
    """

    def __init__(
        self,
        process: int,
        membership: Membership,
        silence_seconds: float,
        find_ended: Callable[[int], Record | None] = lambda process: None,
        keep: Callable[[Record], None] = lambda record: None,
    ):
        self.process = process
        self.membership = membership
        self.cut_off = ""
        self.active = False
        self._silence = silence_seconds
        # Time after which a member that refuses connections is missing, and time without new votes
        # after which a leader stops waiting for missing members that may live.
        self._settle_seconds = min(0.3, silence_seconds / 4)
        self._find_ended = find_ended
        self._keep = keep
        self._record = Record(membership)
        keep(self._record)
        self._known: tuple[int, ...] = membership.members
        self._lost: set[int] = set()  # processes that this process no longer reaches; only grows
        self._refused: set[int] = set()  # connections refused since the last message
        self._suspected: set[int] = set()  # processes that other processes have lost
        self._peers_cut_off: set[int] = set()  # processes that have reported that they are cut off
        self._inactive: set[int] = set()  # processes whose program does not take part yet
        self._heard: dict[int, float] = {}  # time of the last message, by process
        self._ended: dict[int, Record] = {}  # confirmed by their hosts
        self._join: Any = None
        self._began = 0.0
        self._sent = float("-inf")
        # As a leader.
        self._round = 0
        self._ballot: Ballot | None = None
        self._promises: dict[int, Promise] = {}
        self._voted_at = 0.0  # time of the last promise
        self._value: Membership | None = None  # the proposed value
        self._accepts: set[int] = set()
        self._back_off = float("-inf")  # another process leads until this time

    # --- The program ---------------------------------------------------------------------------

    def begin(self, now: float, known: Sequence[int] = (), join: Any = None) -> None:
        """Start to take part in a change of the membership.

        Args:
          now: the time, in seconds.
          known: the members that have not left by themselves; by default all.
          join: a dict whose "processes" are the numbers of the joining processes. The whole dict
            becomes `Membership.detail`.
        """
        self._known = tuple(known) or self.membership.members
        self._join = join
        self._began = now
        self._sent = float("-inf")
        self.active = True

    def end(self) -> None:
        """Stop taking part: the program does not wait any more. Promises remain valid."""
        self.active = False
        self._stop_leading()

    def leave(self, why: str) -> None:
        """End this process's membership permanently."""
        self.cut_off = why
        self.end()

    def lose(self, process: int) -> None:
        """Record that this process itself no longer reaches ``process``."""
        self._lost.add(process)

    def suspect(self, process: int) -> None:
        """Record that another process has lost ``process``: it counts as missing earlier."""
        self._suspected.add(process)

    def refuse(self, process: int) -> None:
        """Record a refused or broken connection: ``process`` is missing, but may live."""
        self._refused.add(process)

    def waits_for(self, now: float) -> str:
        """Return the processes that the program waits for, as text for an error."""
        missing = sorted(p for p in self._known if p != self.process and self._is_missing(p, now))
        idle = sorted(self._inactive - set(missing))
        texts = [f"processes {idle} live and do not take part"] if idle else []
        texts += [f"processes {missing} do not answer"] if missing else []
        return " and ".join(texts) or "no leader has decided"

    def lacks_majority(self, now: float) -> bool:
        """Return whether this process leads, and too many members are missing for a quorum."""
        if self._leader(now) != self.process:
            return False  # only the leader decides this
        here = [p for p in self._known if p == self.process or not self._is_missing(p, now)]
        return not self._is_quorum(here, self._known)

    # --- Messages ------------------------------------------------------------------------------

    def tick(self, now: float) -> Outgoing:
        """Return the messages that are due at time ``now``."""
        if not self.active or self.cut_off:
            return []
        out: Outgoing = []
        if self._leader(now) == self.process and now >= self._back_off:
            out += self._lead(now)
        elif self._ballot is not None and self._leader(now) != self.process:
            self._stop_leading()
        if self.active and now - self._sent >= INTERVAL_SECONDS:
            self._sent = now
            out += self._repeat(now)
        return out

    def receive(self, now: float, source: int, message: Message) -> Outgoing:
        """Handle a message of the authenticated process ``source``; return the replies."""
        self._heard[source] = now
        self._refused.discard(source)
        kind, term = message["kind"], int(message["term"])
        if self.cut_off:
            return [] if kind == "cut_off" else [(source, {"kind": "cut_off", "term": term})]
        if kind == "decided":
            return self._learn(membership_from_json(message["value"]))
        if term < self.membership.term:
            return [] if kind == "cut_off" else [(source, self._decided())]
        if term > self.membership.term:
            # The sender will answer this older term with its decided membership.
            return [(source, {"kind": "ready", "term": self.membership.term})]
        handler = getattr(self, f"_on_{kind}", None)
        return [] if handler is None else handler(now, source, message)

    def _on_ready(self, now: float, source: int, message: Message) -> Outgoing:
        self._inactive.discard(source)
        return [(source, self._message("here" if self.active else "alive"))]

    def _on_here(self, now: float, source: int, message: Message) -> Outgoing:
        self._inactive.discard(source)
        return []

    def _on_alive(self, now: float, source: int, message: Message) -> Outgoing:
        self._inactive.add(source)
        return []

    def _on_cut_off(self, now: float, source: int, message: Message) -> Outgoing:
        self._peers_cut_off.add(source)
        self._inactive.discard(source)
        return []

    def _on_prepare(self, now: float, source: int, message: Message) -> Outgoing:
        self._inactive.discard(source)
        ballot = _ballot(message["ballot"])
        if ballot < self._record.promised:
            return [(source, self._message("refuse", ballot=self._record.promised))]
        if not self.active:
            return [(source, self._message("alive"))]
        if ballot > self._record.promised:
            self._store(self._record._replace(promised=ballot))
            if self._ballot is not None and ballot > self._ballot:
                self._stand_back(now, ballot)
        promise = {
            "accepted": self._record.accepted,
            "lost": sorted(self._lost),
            "known": self._known,
        }
        return [(source, self._message("promise", ballot=ballot, **promise))]

    def _on_promise(self, now: float, source: int, message: Message) -> Outgoing:
        if _ballot(message["ballot"]) != self._ballot:
            return []
        self._inactive.discard(source)
        if source not in self._promises:
            self._voted_at = now
        self._promises[source] = Promise(
            _accepted(message["accepted"]),
            tuple(map(int, message["lost"])),
            tuple(map(int, message["known"])),
        )
        return self.tick(now)

    def _on_refuse(self, now: float, source: int, message: Message) -> Outgoing:
        ballot = _ballot(message["ballot"])
        if self._ballot is not None and ballot > self._ballot:
            self._stand_back(now, ballot)
        return []

    def _on_accept(self, now: float, source: int, message: Message) -> Outgoing:
        ballot = _ballot(message["ballot"])
        if ballot < self._record.promised:
            return [(source, self._message("refuse", ballot=self._record.promised))]
        value = membership_from_json(message["value"])
        self._store(Record(self.membership, ballot, (ballot, value)))
        return [(source, self._message("accepted", ballot=ballot))]

    def _on_accepted(self, now: float, source: int, message: Message) -> Outgoing:
        if _ballot(message["ballot"]) != self._ballot or self._value is None:
            return []
        self._accepts.add(source)
        return self._decide_if_accepted()

    def _on_ask_end(self, now: float, source: int, message: Message) -> Outgoing:
        process = int(message["process"])
        record = self._find_ended(process)
        if record is None:
            return []
        return [(source, self._message("ended", process=process, record=record))]

    def _on_ended(self, now: float, source: int, message: Message) -> Outgoing:
        return self._confirm(int(message["process"]), Record.from_json(message["record"]))

    # --- Missing members -----------------------------------------------------------------------

    def _is_missing(self, process: int, now: float) -> bool:
        """Return whether ``process`` is missing: this node does not wait for it. It may live."""
        if process in self._lost or process in self._peers_cut_off or process in self._ended:
            return True
        if process in self._refused and now - self._began >= self._settle_seconds:
            return True
        patience = self._silence / 4 if process in self._suspected else self._silence
        return now - max(self._heard.get(process, self._began), self._began) >= patience

    def _is_silent(self, process: int, now: float) -> bool:
        """Return whether a voter has stopped answering; a voter in `_lost` may still answer."""
        patience = self._settle_seconds if process in self._refused else self._silence
        return now - max(self._heard.get(process, self._began), self._began) >= patience

    def _leader(self, now: float) -> int:
        """Return the first member that is not missing, as this process sees it."""
        return next(
            (p for p in self._known if p == self.process or not self._is_missing(p, now)),
            self.process,
        )

    def _is_quorum(self, voters: Iterable[int], known: Sequence[int]) -> bool:
        counted = [p for p in known if p not in self._ended]
        votes = [p for p in counted if p in set(voters)]
        if not votes:
            return False
        return 2 * len(votes) > len(counted) or (
            2 * len(votes) == len(counted) and counted[0] in votes
        )

    def _confirm(self, process: int, record: Record) -> Outgoing:
        """Record that the host of ``process`` confirms that ``process`` has ended."""
        if process in self._ended or process == self.process:
            return []
        if record.membership.term > self.membership.term:
            return self._learn(record.membership)
        if record.membership.term < self.membership.term:
            record = Record(self.membership)  # the process cannot have voted in this term
        self._ended[process] = record
        if self._ballot is not None and (
            record.promised > self._ballot or record.accepted is not None
        ):
            # The record counts as a vote. If this vote forbids the ballot, or has a value that the
            # leader may have to propose, the leader begins again with a newer ballot.
            self._round = max(self._round, record.promised[0])
            self._stop_leading()
        return []

    # --- The leader ----------------------------------------------------------------------------

    def _lead(self, now: float) -> Outgoing:
        out: Outgoing = []
        if self._ballot is None:
            self._round = max(self._round, self._record.promised[0]) + 1
            self._ballot = (self._round, self.process)
            self._store(self._record._replace(promised=self._ballot))
            own = Promise(self._record.accepted, tuple(sorted(self._lost)), self._known)
            self._promises, self._voted_at = {self.process: own}, now
            self._sent = float("-inf")
        if self._value is not None:
            if all(self._is_silent(p, now) for p in self._promises if p not in self._accepts):
                self._stop_leading()  # all voters that have not accepted are silent: vote again
            return out
        known = self._all_known()
        missing = [p for p in known if p not in self._promises and self._is_missing(p, now)]
        for process in missing:
            if process not in self._ended and (record := self._find_ended(process)) is not None:
                out += self._confirm(process, record)
                if self._ballot is None:
                    return out
        if any(p not in self._promises and p not in missing for p in known):
            return out  # these members may still vote
        may_live = any(p not in self._ended for p in missing)
        if may_live and now - self._last_vote() < self._settle_seconds:
            return out  # another leader may reach more members, or a host may confirm an end
        value = self._choose(known)
        if value is None:
            if now - self._last_vote() >= max(self._settle_seconds, 3 * INTERVAL_SECONDS):
                voters = [p for p in known if p in self._promises]
                here = largest_group(voters, {p: self._promises[p].lost for p in voters})
                lives = [p for p in known if p not in self._ended and p not in here]
                self.leave(
                    f"processes {lives} cannot be reached from processes {here}, and may still "
                    "run. They may be a majority, or half of the members with the first one, and "
                    f"continue as the group; so processes {here} do not"
                )
                return [(p, self._message("cut_off")) for p in voters if p != self.process]
            return out
        self._value, self._accepts = value, {self.process}
        self._store(Record(self.membership, self._ballot, (self._ballot, value)))
        self._sent = now
        return out + self._repeat(now) + self._decide_if_accepted()

    def _last_vote(self) -> float:
        """Return the time of the last new vote, or of `begin` if that was later."""
        return max(self._voted_at, self._began)

    def _all_known(self) -> tuple[int, ...]:
        """Return all processes that any voter knows: the longest list, then those it lacks."""
        lists = sorted((each.known for each in self._promises.values()), key=len, reverse=True)
        return tuple(dict.fromkeys(itertools.chain(*lists)))

    def _choose(self, known: Sequence[int]) -> Membership | None:
        """Return the value to propose; None without a quorum."""
        if not self._is_quorum(self._promises, known):
            return None
        accepted = [
            each.accepted
            for each in (*self._promises.values(), *(self._ended[p] for p in self._ended))
            if each.accepted is not None
        ]
        if accepted:
            return max(accepted, key=lambda each: each[0])[1]
        voters = [p for p in known if p in self._promises]
        kept = largest_group(voters, {p: self._promises[p].lost for p in voters})
        if not self._is_quorum(kept, known):
            return None
        joining = tuple(self._join["processes"]) if self._join else ()
        return Membership(self.membership.term + 1, (*kept, *joining), self._join)

    def _decide_if_accepted(self) -> Outgoing:
        assert self._value is not None
        if not self._is_quorum(self._accepts, self._all_known()):
            return []
        return self._learn(self._value)

    def _repeat(self, now: float) -> Outgoing:
        """Return the messages that have not been answered yet."""
        if self._ballot is None:
            others = [p for p in self._known if p != self.process and not self._is_missing(p, now)]
            return [(p, self._message("ready")) for p in others[:_CANDIDATES]]
        others = [p for p in self._all_known() if p != self.process and p not in self._ended]
        if self._value is not None:
            accept = self._message("accept", ballot=self._ballot, value=self._value)
            return [(p, accept) for p in others if p in self._promises and p not in self._accepts]
        prepare = self._message("prepare", ballot=self._ballot)
        out = [(p, prepare) for p in others if p not in self._promises]
        missing = [p for p in others if p not in self._promises and self._is_missing(p, now)]
        asked = [p for p in self._promises if p != self.process]
        return out + [(v, self._message("ask_end", process=m)) for m in missing for v in asked]

    def _stand_back(self, now: float, ballot: Ballot) -> None:
        """Give another leader, whose ballot is newer, time to decide."""
        self._round = max(self._round, ballot[0])
        place = self._known.index(self.process) if self.process in self._known else 0
        self._back_off = now + self._silence * (1 + place / max(len(self._known), 1))
        self._stop_leading()

    def _stop_leading(self) -> None:
        self._ballot, self._value = None, None
        self._promises, self._accepts = {}, set()

    # --- Decisions -----------------------------------------------------------------------------

    def _learn(self, value: Membership) -> Outgoing:
        if value.term <= self.membership.term or self.cut_off:
            return []
        leads, voters = self._value is not None, tuple(self._promises)
        others = {*self.membership.members, *voters, *value.members} - {self.process}
        self.end()
        if self.process not in value.members:
            out = [(p, {"kind": "decided", "term": value.term, "value": value}) for p in others]
            self.leave(
                f"processes {list(value.members)} have dropped this process ({self.process}) and "
                "continue without it"
            )
            return out if leads else []
        self.membership = value
        self._known = value.members
        self._ended, self._inactive, self._peers_cut_off = {}, set(), set()
        self._suspected = set()
        self._back_off, self._round = float("-inf"), 0
        self._store(Record(value))
        return [(p, self._decided()) for p in others] if leads else []

    def _store(self, record: Record) -> None:
        self._record = record
        self._keep(record)

    def _decided(self) -> Message:
        return {"kind": "decided", "term": self.membership.term, "value": self.membership}

    def _message(self, kind: str, **values: Any) -> Message:
        return {"kind": kind, "term": self.membership.term, **values}


def membership_from_json(value: Any) -> Membership:
    term, members, detail = value
    return Membership(int(term), tuple(map(int, members)), detail)


def largest_group(processes: Sequence[int], lost: Mapping[int, Iterable[int]]) -> list[int]:
    """Return the largest subset of ``processes`` in which no process has lost another, in order.

    Of equally large subsets, returns the one with the earliest processes. With more than
    `_EXACT_CONFLICTS` processes in conflict, returns a greedy approximation.

    Args:
      processes: process numbers, in order.
      lost: by process, the processes that it no longer reaches.
    """
    here = set(processes)
    pairs = {frozenset((p, q)) for p in processes for q in lost[p] if q in here and q != p}
    entangled = [p for p in processes if any(p in pair for pair in pairs)]
    if len(entangled) <= _EXACT_CONFLICTS:
        for count in range(len(entangled) + 1):
            # Drop the last processes first.
            for dropped in itertools.combinations(reversed(entangled), count):
                if all(pair.intersection(dropped) for pair in pairs):
                    return [p for p in processes if p not in dropped]
    removed: set[int] = set()
    while left := [pair for pair in pairs if not pair & removed]:
        counts = {p: sum(p in pair for pair in left) for p in entangled}
        removed.add(max(reversed(entangled), key=lambda p: counts[p]))
    return [p for p in processes if p not in removed]


def _ballot(value: Any) -> Ballot:
    number, process = value
    return int(number), int(process)


def _accepted(value: Any) -> tuple[Ballot, Membership] | None:
    return None if value is None else (_ballot(value[0]), membership_from_json(value[1]))
