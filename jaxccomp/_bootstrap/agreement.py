"""How the members of a group agree: each proposes, one of them decides, all hear the decision.

A round is led by one member. It gathers the proposals, and decides as soon as those that have come
allow it: while it proposes itself, or at any time where it has said before how it decides. Who
leads, and what happens when a leader dies, is for the caller to say.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

_POLL_SECONDS = 0.05
_MOST_ROUNDS = 4096

# The decision, from the proposals that have come, by member; None as long as others are awaited.
Decide = Callable[[Mapping[int, Any]], Any]


class NoDecision(Exception):
    """Others have not proposed in time, or never will."""


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
    """How rounds of one name are decided, and the last decision with the proposals it is from."""

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
        """Has rounds of that name decided also while this process does not propose.

        Who has lost the connection and proposes the same once more hears the last decision again,
        if it was one of those that it is from: so proposals must differ from round to round.

        Args:
          name: of the rounds.
          make: gives what decides, where there is nothing yet.

        Returns:
          What decides.
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
        """Proposes for this process, and decides.

        Args:
          name: of the round.
          member: this one.
          value: what it proposes.
          decide: the decision; called again and again.
          deadline: by ``time.monotonic``.
          abort_reason: why there will be no decision; empty as long as there may.

        Raises:
          NoDecision: where there is none in time, or why there will be none.
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
        """Proposes for another member, and waits for the decision.

        Args:
          name: of the round.
          member: that proposes.
          value: what it proposes.
          is_gone: whether the member has gone.
          unique: two proposals of one member are an error; otherwise the later one counts.

        Raises:
          NoDecision: once the member is gone; its proposal is withdrawn.
          ProposalRejected: for the second of two.
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
        del self._rounds[name]  # what comes by this name now is a new round
        if kept := self._kept.get(name):
            kept.values, kept.decision = values, round_.decision
        self._changed.notify_all()

    def _add(self, name: str, member: int, value: Any, unique: bool) -> tuple[_Round, _Proposal]:
        if name not in self._rounds and len(self._rounds) >= _MOST_ROUNDS:
            raise ProposalRejected(f"{_MOST_ROUNDS} rounds of agreement wait here already")
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
