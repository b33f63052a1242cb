"""Agreement of a group: each member proposes, the leader decides, all get the decision.

The leader of a round gathers the proposals, and decides as soon as they suffice. It decides while
it proposes itself, or at any time if it has registered a decision function (`Rounds.keep`). The
caller chooses the leader, and handles its death.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_POLL_SECONDS = 0.05
_MAX_ROUNDS = 4096

# Returns the decision, from the proposals by member; None while more proposals are awaited.
Decide = Callable[[Mapping[int, Any]], Any]


class NoDecision(Exception):
    """Too few members have proposed in time, or the round was aborted."""


class ProposalRejected(Exception):
    """A proposal contradicts another one, or there are too many rounds."""


class _Proposal:
    def __init__(self, value: Any):
        self.value = value


class _Round:
    def __init__(self) -> None:
        self.proposals: dict[int, _Proposal] = {}
        self.decision: Any = None


class _Kept:
    """The decision function for rounds of one name, the last decision, and its proposals."""

    def __init__(self, decide: Decide):
        self.decide = decide
        self.values: Mapping[int, Any] = {}
        self.decision: Any = None


class Rounds:
    """The rounds that this process leads, by name. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._rounds: dict[str, _Round] = {}
        self._kept: dict[str, _Kept] = {}

    def keep(self, name: str, make: Callable[[], Decide]) -> Decide:
        """Decide rounds of that name even if this process does not propose.

        A member may repeat its proposal after a lost connection. If the last decision used the
        proposal, the member gets this decision again. So proposals must differ between rounds.

        Args:
          name: the name of the rounds.
          make: returns a new decision function; called if the name has none yet.

        Returns:
          The decision function.
        """
        with self._changed:
            if name not in self._kept:
                self._kept[name] = _Kept(make())
                self._changed.notify_all()
            return self._kept[name].decide

    def lead(
        self,
        name: str,
        member: int,
        value: Any,
        decide: Decide,
        deadline: float,
        abort_reason: Callable[[], str] = lambda: "",
    ) -> Any:
        """Propose for this process, and decide.

        Args:
          name: the name of the round.
          member: this member.
          value: its proposal.
          decide: the decision function; called repeatedly.
          deadline: by ``time.monotonic``.
          abort_reason: returns why there will be no decision; empty while there may be one.

        Raises:
          NoDecision: at the deadline, or with the abort reason.
        """
        with self._changed:
            round_, proposal = self._add(name, member, value, unique=False)
            try:
                while True:
                    self._decide(name, round_, decide)
                    if round_.decision is not None:
                        return round_.decision
                    if (reason := abort_reason()) or time.monotonic() > deadline:
                        came = sorted(round_.proposals)
                        raise NoDecision(reason or f"only {came} have come")
                    self._changed.wait(_POLL_SECONDS)
            finally:
                self._withdraw(name, round_, member, proposal)

    def follow(
        self,
        name: str,
        member: int,
        value: Any,
        is_gone: Callable[[], bool],
        *,
        unique: bool = False,
    ) -> Any:
        """Propose for another member, and wait for the decision.

        Args:
          name: the name of the round.
          member: the member that proposes.
          value: its proposal.
          is_gone: returns whether the member has gone.
          unique: two proposals of one member are an error; otherwise the later one counts.

        Raises:
          NoDecision: when the member is gone; its proposal is withdrawn.
          ProposalRejected: for a second proposal of a member.
        """
        with self._changed:
            kept = self._kept.get(name)
            if kept is not None and member in kept.values and kept.values[member] == value:
                return kept.decision
            round_, proposal = self._add(name, member, value, unique)
            try:
                while True:
                    if kept := self._kept.get(name):
                        self._decide(name, round_, kept.decide)
                    if round_.decision is not None:
                        return round_.decision
                    self._changed.wait(_POLL_SECONDS)
                    if round_.decision is None and is_gone():
                        raise NoDecision("it has gone")
            finally:
                self._withdraw(name, round_, member, proposal)

    def _decide(self, name: str, round_: _Round, decide: Decide) -> None:
        if round_.decision is not None:
            return
        values = {who: each.value for who, each in round_.proposals.items()}
        round_.decision = decide(values)
        if round_.decision is None:
            return
        del self._rounds[name]  # a later proposal starts a new round
        if kept := self._kept.get(name):
            kept.values, kept.decision = values, round_.decision
        self._changed.notify_all()

    def _add(self, name: str, member: int, value: Any, unique: bool) -> tuple[_Round, _Proposal]:
        if name not in self._rounds and len(self._rounds) >= _MAX_ROUNDS:
            raise ProposalRejected(f"{_MAX_ROUNDS} rounds of agreement are already open")
        round_ = self._rounds.setdefault(name, _Round())
        if unique and member in round_.proposals:
            raise ProposalRejected(
                f"two processes say that they are rank {member}: each needs a rank of its own, and "
                "each job a port of its own"
            )
        proposal = round_.proposals[member] = _Proposal(value)
        self._changed.notify_all()
        return round_, proposal

    def _withdraw(self, name: str, round_: _Round, member: int, proposal: _Proposal) -> None:
        if round_.proposals.get(member) is proposal:
            del round_.proposals[member]
        if not round_.proposals and self._rounds.get(name) is round_:
            del self._rounds[name]


# --- Join requests --------------------------------------------------------------------------------


class JoinRequest:
    """The request of one process that waits to join."""

    def __init__(self, message: dict[str, Any]):
        self.message = message
        self.reply: dict[str, Any] = {}
        self.answered = threading.Event()

    def answer(self, reply: dict[str, Any]) -> None:
        """Set the reply, which ends the wait."""
        self.reply = reply
        self.answered.set()


class WaitList:
    """The join requests at this process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: list[JoinRequest] = []

    @contextlib.contextmanager
    def added(self, message: dict[str, Any]) -> Iterator[JoinRequest]:
        """Add a request for the length of a ``with`` block."""
        request = JoinRequest(message)
        with self._lock:
            self._requests.append(request)
        try:
            yield request
        finally:
            with self._lock:
                self._requests.remove(request)

    def of(self, group: str) -> list[JoinRequest]:
        """Return the requests for that group."""
        with self._lock:
            return [each for each in self._requests if each.message.get("group") == group]
