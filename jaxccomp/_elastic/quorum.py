"""Chooses the members that take part in a step, when other members may be late.

The first member leads (`agreement.py`), also while it is late itself. It waits for all members;
once a quorum has come, it waits for the others only for the grace time. Late members take part in
the next step.

All participants of a step have the same list of participants. A quorum is a majority, so at least
one of its members has done the last step. If a step failed on a participant, other participants may
have done it. Then the next step waits for all members, like the first step.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxccomp import errors
from jaxccomp._elastic.agreement import NoDecision
from jaxccomp._elastic.rendezvous import Rendezvous
from jaxccomp._runtime.world import Group, World


class Rule(NamedTuple):
    """When members continue without others; the same on all members.

    Attributes:
      min_members: the minimum number of members in a quorum.
      grace_seconds: how long to wait for other members once a quorum has come.
    """

    min_members: int
    grace_seconds: float


class Decision(NamedTuple):
    """The leader's decision.

    Attributes:
      members: ranks that take part.
      up_to_date: the participants that have done the most steps.
      done: the number of steps that the members of `up_to_date` have done.
      failures: the number of steps that have failed on any member.
    """

    members: list[int]
    up_to_date: list[int]
    done: int
    failures: int


def participants(
    state: World,
    comm: Group,
    name: str,
    done: int,
    rule: Rule,
    wait_for_all: bool,
    timeout: float,
) -> Decision:
    """Return the participants of the next step, the same on all of them.

    Args:
      state: of this process.
      comm: the communicator.
      name: the name of the agreement.
      done: the number of steps that this member has done.
      rule: when members continue without others.
      wait_for_all: whether all members have to take part.
      timeout: seconds to wait for others.
    """
    if comm.size == 1:
        return Decision([0], [0], done, 0)
    rendezvous = state.out_of_band
    assert isinstance(rendezvous, Rendezvous)
    round_name = f"steps of {name} of {comm.name}"
    leader = Leader(comm.size)
    decide = rendezvous.keep_deciding(round_name, lambda: leader) if comm.rank == 0 else leader
    proposal = {
        "call": secrets.token_hex(8),
        "done": done,
        "rule": list(rule),
        "wait_for_all": wait_for_all,
    }
    try:
        found = rendezvous.agree_in(comm, round_name, proposal, decide, timeout, state.why_gone)
    except NoDecision as error:
        raise errors.InitializationError(
            f"{rule.min_members} of the {comm.size} members of {comm.name!r} (processes "
            f"{list(comm.processes)}) should take part in step {done + 1} of {name!r}, but {error} "
            f"(after {timeout:g} s at most). If a member has gone, all others must call shrink()."
        ) from None
    if "refused" in found:
        raise errors.InvalidArgumentError(found["refused"])
    return Decision(**found)


class Leader:
    """Decides the participants. The first round and rounds after a failure wait for all members.

    Args:
      size: the number of members.
      clock: returns the time in seconds.
    """

    def __init__(self, size: int, clock: Callable[[], float] = time.monotonic):
        self._size = size
        self._clock = clock
        # By rank: the number of steps that it has done unless the last one failed.
        self._due: dict[int, int] = {}
        self._failures = 0
        self._quorum_since: float | None = None

    def __call__(self, proposals: Mapping[int, Any]) -> dict[str, Any] | None:
        """Return the decision; None while more proposals are awaited.

        Args:
          proposals: by rank; invalid proposals are ignored.
        """
        come = {rank: each for rank, each in proposals.items() if _is_proposal(each)}
        rules = {tuple(each["rule"]) for each in come.values()}
        if len(rules) > 1:
            said = " and ".join(
                f"{members} members and {grace:g} s" for members, grace in sorted(rules)
            )
            return {"refused": f"members have different quorums or grace windows: {said}."}
        done: dict[int, int] = {rank: each["done"] for rank, each in come.items()}
        if len(come) < self._size and not self._may_begin(come, done, *rules):
            return None
        max_done = max(done.values())
        self._failures += self._has_failed(done)
        self._due.update(dict.fromkeys(done, max_done + 1))
        self._quorum_since = None
        up_to_date = sorted(rank for rank in done if done[rank] == max_done)
        return Decision(sorted(done), up_to_date, max_done, self._failures)._asdict()

    def _may_begin(self, come: Mapping[int, Any], done: Mapping[int, int], *rules: Any) -> bool:
        """Return whether a quorum has come and its grace time is over."""
        enough = rules and len(come) >= max(rules[0][0], self._size // 2 + 1)
        all_wanted = any(each["wait_for_all"] for each in come.values())
        if not enough or all_wanted or not self._due or self._has_failed(done):
            self._quorum_since = None
            return False
        if self._quorum_since is None:
            self._quorum_since = self._clock()
        return self._clock() - self._quorum_since >= rules[0][1]

    def _has_failed(self, done: Mapping[int, int]) -> bool:
        """Return whether a member has not done the last step in which it took part."""
        return any(count < self._due.get(rank, 0) for rank, count in done.items())


def _is_proposal(value: Any) -> bool:
    try:
        min_members, grace_seconds = value["rule"]
        return (
            isinstance(value["done"], int)
            and isinstance(value["wait_for_all"], bool)
            and isinstance(min_members, int)
            and isinstance(grace_seconds, (int, float))
        )
    except (KeyError, TypeError, ValueError):
        return False
