"""How a group shrinks, by those that are left, and grows, by those that ask to be taken in."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxccomp import errors
from jaxccomp._bootstrap import peer_info
from jaxccomp._bootstrap.applicants import Applicant
from jaxccomp._bootstrap.group import pair, tell_hosts
from jaxccomp._bootstrap.meeting_place import MeetingPlace
from jaxccomp._bootstrap.rooms import Missing
from jaxccomp._bootstrap.world import Group, World, check_not_cut_off, lineage
from jaxccomp._native import engine

# In the place of a process that nobody here has seen: on a host of its own.
_NOBODY = peer_info.Row(0, 1, -1, 0, 0)


def applicants(state: World, group: str) -> int:
    """How many processes wait at this one to be taken into that group."""
    return len(state.store.applicants.of(group)) if isinstance(state.store, MeetingPlace) else 0


def shrink(
    state: World, before: str, processes: tuple[int, ...], timeout: float
) -> tuple[str, tuple[int, ...]]:
    """The name and the processes of those that are left, alike on all of them.

    The first that lives gathers what each knows, and decides once all that anybody knows to live
    have come. So those agree, too, of which some have taken in others and some have not.

    Args:
      state: of this process.
      before: what communicators of these have been called at first (`world.lineage`).
      processes: those that this one knows.
      timeout: seconds to wait for the others.
    """
    place = state.store
    assert isinstance(place, MeetingPlace)
    deadline = time.monotonic() + timeout

    def decides(words: Mapping[int, Any]) -> Any:
        gone = state.gone()
        check_not_cut_off(processes, gone)
        longest = max(words.values(), key=len)
        known = dict.fromkeys([*longest, *sorted(set().union(*words.values()))])
        living = [each for each in known if each not in gone]
        if not words.keys() >= set(living):
            return None
        return [f"{before}/members-{secrets.token_hex(4)}", living]

    while True:
        gone = state.gone()
        check_not_cut_off(processes, gone)
        living = [each for each in processes if each not in gone]
        leader = living[0]

        def why_not(leader: int = leader) -> str:
            return "it has gone" if leader in state.gone() else ""

        try:
            left = max(deadline - time.monotonic(), 0.0)
            found = place.decide(
                f"those left of {before}", leader, state.process, living, decides, left, why_not
            )
            break
        except Missing as error:
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
    place, roster = state.store, state.roster
    if not isinstance(place, MeetingPlace) or roster is None:
        raise errors.CommunicatorError(
            "processes join while others run only where these have met by "
            "jaxccomp.init(coordinator=...): neither MPI nor jax.distributed knows of later ones."
        )

    def decides(words: Mapping[int, Any]) -> Any:
        if len(words) < comm.size:
            return None
        asked = {each["id"]: each for word in words.values() for each in word["applicants"]}
        # Some may know of more: who had decided on these has died before all heard of it.
        first = max(word["processes"] for word in words.values())
        name = f"{lineage(comm.name)}/members-{secrets.token_hex(4)}"
        return {"name": name, "first": first, "asked": [asked[each] for each in sorted(asked)]}

    def why_not() -> str:
        gone = state.gone()
        return "; ".join(gone[each][0] for each in comm.processes if each in gone)

    waiting = {each.request["id"]: each for each in place.applicants.of(group)}
    word = {
        "processes": state.processes,
        "applicants": [each.request for each in waiting.values()],
    }
    try:
        found = place.decide(
            f"who joins {comm.name}", comm.processes[0], comm.rank, word, decides, timeout, why_not
        )
    except Missing as error:
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
            _welcome(waiting[request["id"]], number, state, grown)
    return grown


def _add(state: World, first: int, asked: Sequence[dict[str, Any]]) -> None:
    """Processes from number ``first`` on; those before it that are not known have gone."""
    place, roster, core = state.store, state.roster, engine.load()
    assert isinstance(place, MeetingPlace) and roster is not None
    unknown = first - state.processes
    rows = [_NOBODY] * unknown + [peer_info.Row(*map(int, each["row"])) for each in asked]
    addresses = [b""] * unknown + [bytes.fromhex(each["address"]) for each in asked]
    core.add_processes(addresses)
    for process in range(state.processes, first):
        core.set_gone(process, f"rank {process} of the world has never come")
    state.processes += len(addresses)
    roster.rows += rows
    roster.addresses += addresses
    place.places += [None] * unknown + [pair(each["place"]) for each in asked]
    tell_hosts(core, roster.rows, state.process)


def _welcome(applicant: Applicant, number: int, state: World, comm: Any) -> None:
    place, roster = state.store, state.roster
    assert isinstance(place, MeetingPlace) and roster is not None
    known = [each in comm.processes for each in range(state.processes)]
    applicant.tell(
        {
            "welcome": {
                "process": number,
                "name": comm.name,
                "order": comm.order,
                "members": list(comm.processes),
                "secret": roster.secret.hex(),
                "rows": [list(row) for row in roster.rows],
                "addresses": [
                    address.hex() if lives else ""
                    for address, lives in zip(roster.addresses, known, strict=True)
                ],
                "places": [
                    each if lives else None for each, lives in zip(place.places, known, strict=True)
                ],
            }
        }
    )
