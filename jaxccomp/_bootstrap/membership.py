"""How a group shrinks, by those that are left, and grows, by those that ask to be taken in."""

from __future__ import annotations

import functools
import secrets
import time
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent import futures
from typing import Any

from jaxccomp import errors
from jaxccomp._bootstrap import peer_info
from jaxccomp._bootstrap.agreement import NoDecision
from jaxccomp._bootstrap.group import socket_address, tell_hosts
from jaxccomp._bootstrap.rendezvous import Rendezvous
from jaxccomp._bootstrap.wait_list import JoinRequest
from jaxccomp._bootstrap.world import Gone, Group, World, original_name
from jaxccomp._native import engine

_SHRINK = "those left of "  # how rounds of shrink are called
# In the place of a process that nobody here has seen: on a host of its own.
_UNKNOWN = peer_info.Row(0, 1, -1, 0, 0)


def waiting(state: World, group: str) -> int:
    """How many processes wait at this one to be taken into that group."""
    rendezvous = state.out_of_band
    return len(rendezvous.wait_list.of(group)) if isinstance(rendezvous, Rendezvous) else 0


def shrink(
    state: World, before: str, processes: tuple[int, ...], timeout: float
) -> tuple[str, tuple[int, ...]]:
    """The name and the processes of those that are left, alike on all of them.

    The first that lives gathers what each knows, and decides once all that anybody knows to live
    have come. So those agree, too, of which some have taken in others and some have not.

    Args:
      state: of this process.
      before: what communicators of these have been called at first (`world.original_name`).
      processes: those that this one knows.
      timeout: seconds to wait for the others.
    """
    rendezvous = state.out_of_band
    assert isinstance(rendezvous, Rendezvous)
    deadline = time.monotonic() + timeout

    partition = _PartitionCheck(rendezvous, processes)

    def decide(proposals: Mapping[int, Any]) -> Any:
        gone = state.gone()
        partition.check(gone)
        chosen = _survivors(proposals, gone)
        return None if chosen is None else [f"{before}/members-{secrets.token_hex(4)}", chosen]

    while True:
        gone = state.gone()
        partition.check(gone)
        living = [each for each in processes if each not in gone]
        leader = living[0]

        try:
            left = max(deadline - time.monotonic(), 0.0)
            found = rendezvous.agree(
                f"{_SHRINK}{before}",
                leader,
                state.process,
                {"known": list(processes), "lost": list(gone)},
                decide,
                left,
                functools.partial(state.why_gone, (leader,)),
            )
            break
        except NoDecision as error:
            if leader in state.gone() and time.monotonic() < deadline:
                continue
            raise errors.InitializationError(
                f"processes {living} should agree that they are left of {before!r}, but {error} "
                f"after {timeout:g} s. All of them call shrink(), or sync does it for them."
            ) from None
    name, chosen = str(found[0]), tuple(map(int, found[1]))
    if state.process not in chosen:
        raise errors.CutOffError(
            f"processes {list(chosen)} have given this one ({state.process}) up and go on without "
            "it. Start it again, and let it join (jaxccomp.init(join=...))."
        )
    return name, chosen


def given_up(state: World, name: str, member: int, proposal: Any) -> Any:
    """What a process is told at once that wants to shrink with others that have given it up.

    They go on without it, maybe for long, and agree anew only when they lose another one.

    Args:
      state: of this process, which leads what it proposes to.
      name: of the round.
      member: the process.
      proposal: its own.

    Returns:
      The decision, for it alone; None where that is still to be made. It is for others, and where
      this process may be the one that is cut off: where it has lost half of them.
    """
    if not name.startswith(_SHRINK):
        return None
    gone = state.gone()
    if member not in gone:
        return None
    here = [each for each in proposal["known"] if each not in gone]
    return ["", here] if 2 * len(here) > len(proposal["known"]) else None


def _survivors(proposals: Mapping[int, Any], gone: Container[int]) -> list[int] | None:
    """Those that go on; None as long as others are awaited.

    Of two of which one has lost the other the first one goes on.

    Args:
      proposals: whom each knows, in order, and whom it has lost.
      gone: whom the one that decides has lost.
    """
    known = max((proposal["known"] for proposal in proposals.values()), key=len)
    others = sorted(
        {each for proposal in proposals.values() for each in proposal["known"]} - set(known)
    )
    living = [each for each in (*known, *others) if each not in gone]
    if not proposals.keys() >= set(living):
        return None
    kept: list[int] = []
    for each in living:
        lost = proposals[each]["lost"]
        if not any(each in proposals[other]["lost"] or other in lost for other in kept):
            kept.append(each)
    return kept


class _PartitionCheck:
    """Whether a network partition cuts this process off from others that live.

    Of two parts that do not reach each other only the larger one goes on; of two that are equally
    large, the one with the first process. Only what has ended for certain does not count.
    """

    def __init__(self, rendezvous: Rendezvous, processes: tuple[int, ...]):
        self._rendezvous = rendezvous
        self._processes = processes
        self._may_live: dict[int, bool] = {}

    def check(self, gone: Gone) -> None:
        """Raises CutOffError where it is.

        Args:
          gone: whom this process has lost.
        """
        lost = [each for each in self._processes if each in gone]
        here = [each for each in self._processes if each not in gone]
        if len(here) > len(lost):
            return  # whoever of them may live
        unknown = [each for each in lost if each not in self._may_live]
        if unknown:
            with futures.ThreadPoolExecutor(len(unknown)) as pool:
                answers = pool.map(self._rendezvous.may_live, unknown)
                self._may_live.update(zip(unknown, answers, strict=True))
        others = [each for each in lost if self._may_live[each]]
        first = next(each for each in self._processes if each in here or each in others)
        if (len(here), first in here) > (len(others), first in others):
            return
        raise errors.CutOffError(
            f"processes {others} can no longer be reached from this one, and may live: "
            f"{'; '.join(gone[each][0] for each in others)}. They are more than those that can "
            f"({here}), or as many and have the first rank, and may go on together, so these do "
            "not. Start this process again, and let it join (jaxccomp.init(join=...))."
        )


def admit(
    state: World,
    comm: Group,
    group: str,
    make: Callable[[str, tuple[int, ...]], Any],
    timeout: float,
) -> Any:
    """The members and all that wait for the group at any of them; `comm` itself where nobody does.

    Called by all members together. The first one decides who comes in, and with which number.

    Args:
      state: of this process.
      comm: whose members.
      group: what those that wait have asked for.
      make: the communicator of that name and these processes.
      timeout: seconds to wait for the others.
    """
    rendezvous, peers = state.out_of_band, state.peers
    if not isinstance(rendezvous, Rendezvous) or peers is None:
        raise errors.CommunicatorError(
            "processes join while others run only where these have met by "
            "jaxccomp.init(coordinator=...): neither MPI nor jax.distributed knows of later ones."
        )

    def decide(proposals: Mapping[int, Any]) -> Any:
        if len(proposals) < comm.size:
            return None
        asked = {
            each["id"]: each for proposal in proposals.values() for each in proposal["joining"]
        }
        # Some may know of more: who had decided on these has died before all heard of it.
        first = max(proposal["processes"] for proposal in proposals.values())
        name = f"{original_name(comm.name)}/members-{secrets.token_hex(4)}"
        return {"name": name, "first": first, "asked": [asked[each] for each in sorted(asked)]}

    waiting = {each.message["id"]: each for each in rendezvous.wait_list.of(group)}
    proposal = {
        "processes": state.processes,
        "joining": [each.message for each in waiting.values()],
    }
    try:
        name = f"who joins {comm.name}"
        found = rendezvous.agree_in(comm, name, proposal, decide, timeout, state.why_gone)
    except NoDecision as error:
        raise errors.InitializationError(
            f"the members of {comm.name!r} (processes {list(comm.processes)}) must all call "
            f"admit(), but {error} (after {timeout:g} s at most)."
        ) from None
    if not found["asked"]:
        return comm
    first = int(found["first"])
    _add(state, first, found["asked"])
    grown = make(found["name"], (*comm.processes, *range(first, state.processes)))
    # Who is taken in may send to all of these from then on.
    state.share(comm, (), timeout)
    for number, request in enumerate(found["asked"], first):
        if request["id"] in waiting:
            _accept(waiting[request["id"]], number, state, grown)
    return grown


def _add(state: World, first: int, asked: Sequence[dict[str, Any]]) -> None:
    """Processes from number ``first`` on; those before it that are not known have gone."""
    rendezvous, peers, core = state.out_of_band, state.peers, engine.load()
    assert isinstance(rendezvous, Rendezvous) and peers is not None
    unknown = first - state.processes
    rows = [_UNKNOWN] * unknown + [peer_info.Row(*map(int, each["row"])) for each in asked]
    workers = [b""] * unknown + [bytes.fromhex(each["worker"]) for each in asked]
    core.add_processes(workers)
    for process in range(state.processes, first):
        core.set_gone(process, f"rank {process} of the world has never come")
    state.processes += len(workers)
    peers.rows += rows
    peers.workers += workers
    rendezvous.addresses += [None] * unknown + [socket_address(each["address"]) for each in asked]
    tell_hosts(core, state)


def _accept(request: JoinRequest, number: int, state: World, comm: Any) -> None:
    rendezvous, peers = state.out_of_band, state.peers
    assert isinstance(rendezvous, Rendezvous) and peers is not None
    known = [each in comm.processes for each in range(state.processes)]
    request.answer(
        {
            "accepted": {
                "process": number,
                "name": comm.name,
                "order": comm.order,
                "members": list(comm.processes),
                "secret": peers.secret.hex(),
                "rows": [list(row) for row in peers.rows],
                "workers": [
                    worker.hex() if lives else ""
                    for worker, lives in zip(peers.workers, known, strict=True)
                ],
                "addresses": [
                    each if lives else None
                    for each, lives in zip(rendezvous.addresses, known, strict=True)
                ],
            }
        }
    )
