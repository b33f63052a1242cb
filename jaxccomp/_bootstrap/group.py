"""Groups of processes that need neither MPI nor ``jax.distributed``, and may shrink and grow.

All members know of each other process: its worker's address, where it listens, on which host it is.
A process keeps its number for good, and numbers are not used again, so a communicator is an ordered
list of them whoever has gone or come since.
"""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import socket
from typing import Any

from jaxccomp import errors
from jaxccomp._bootstrap import peer_info
from jaxccomp._bootstrap.connections import Place
from jaxccomp._bootstrap.meeting_place import MeetingPlace
from jaxccomp._bootstrap.terms import Terms
from jaxccomp._bootstrap.world import World

_GONE = "had gone before this process joined"


@dataclasses.dataclass
class Roster:
    """What is known of each process, by its number; the same on all members.

    Attributes:
      rows: what they have said when they joined.
      addresses: of their workers; b"" of those that have gone for good.
      secret: that messages of UCX carry.
    """

    rows: list[peer_info.Row]
    addresses: list[bytes]
    secret: bytes


def meet(terms: Terms, timeout: float) -> World:
    """This process's world, of all that meet first."""
    assert terms.rank is not None
    coordinator = terms.places[0]
    if terms.rank == 0:
        _check_reachable(coordinator, terms.size)
        place = MeetingPlace(*coordinator, terms.secret)
    else:
        place = _listen(coordinator, terms.secret, takes_its_place=False)
    place.start(terms.rank, terms.size, coordinator, timeout)
    return _world(terms.rank, terms.size, place)


def apply(terms: Terms, worker: Any, timeout: float) -> World:
    """Joins a group that exists, once its members take this process in.

    Args:
      terms: with the group's name.
      worker: of UCX.
      timeout: seconds to wait for that.
    """
    place = _listen(terms.places[0], terms.secret, takes_its_place=True)
    request = {
        "group": terms.join,
        "id": secrets.token_hex(8),
        "address": worker.address.hex(),
        "place": place.place,
        "row": peer_info.own(False, has_ucx=True),
    }
    answer = place.apply(terms.places, request, timeout)
    rows = [peer_info.Row(*map(int, row)) for row in answer["rows"]]
    addresses = [bytes.fromhex(each) for each in answer["addresses"]]
    place.places = [None if each is None else pair(each) for each in answer["places"]]
    process, name, order = int(answer["process"]), str(answer["name"]), str(answer["order"])
    roster = Roster(rows, addresses, bytes.fromhex(answer["secret"]))
    members = tuple(map(int, answer["members"]))
    state = _world(process, len(rows), place)
    state.roster = roster
    state.current = (name, members, order)
    state.joined_group = terms.join
    return state


def _listen(coordinator: Place, secret: bytes, *, takes_its_place: bool) -> MeetingPlace:
    """Of this process: where it can at the coordinator's port, where later ones look first.

    Args:
      coordinator: where that listens.
      secret: of the job.
      takes_its_place: whether that may have gone.
    """
    host = _own_address(coordinator)
    if takes_its_place or host != _address(coordinator[0]):
        with contextlib.suppress(errors.InitializationError):
            return MeetingPlace(host, coordinator[1], secret)
    return MeetingPlace(host, 0, secret)


def _address(host: str) -> str:
    return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])


def _world(process: int, processes: int, place: MeetingPlace) -> World:
    state = World(process, processes)
    place.process = process
    place.why_gone = state.why_gone
    place.why_refused = _why_refused
    state.store = place
    return state


def pair(place: Any) -> Place:
    host, port = place
    return str(host), int(port)


def _why_refused(request: dict[str, Any]) -> str:
    """Why a process that wants to join cannot; empty when it can."""
    try:
        row = peer_info.Row(*map(int, request["row"]))
        host, port = request["place"]
        readable = (
            len(bytes.fromhex(request["address"])) > 0
            and isinstance(request["group"], str)
            and isinstance(request["id"], str)
            and isinstance(host, str)
            and 0 < int(port) < 1 << 16
        )
    except (KeyError, TypeError, ValueError):
        readable = False
    if not readable:
        return "what it says of itself cannot be read"
    own = peer_info.own(False, has_ucx=True)
    if row.unit_bytes != own.unit_bytes:
        return f"the option mpi_unit_bytes is {own.unit_bytes} here, and {row.unit_bytes} there"
    return ""


def set_gone(core: Any, roster: Roster) -> None:
    """Tells the engine of those that had gone before this process joined."""
    for process, address in enumerate(roster.addresses):
        if not address:
            core.set_gone(process, f"rank {process} of the world {_GONE}")


def tell_hosts(core: Any, state: World) -> None:
    """Tells the engine which processes share a host."""
    rows = state.roster.rows
    state.hosts = tuple(peer_info.hosts(rows))
    core.set_hosts(list(state.hosts))
    core.set_system_processes(peer_info.system_processes(rows, state.process))


def _check_reachable(coordinator: Place, size: int) -> None:
    host, _ = coordinator
    address = _address(host)
    named = host == "localhost" or host.startswith("127.") or host == "::1"
    if not named and (address.startswith("127.") or address == "::1") and size > 1:
        raise errors.InitializationError(
            f"the coordinator's host name {host!r} resolves to the loopback address {address} "
            "here, where processes of other hosts cannot reach it: give its address on the "
            "network, or 'localhost' if all processes are on this host."
        )


def _own_address(coordinator: Place) -> str:
    """Of this host, on the network that leads to the coordinator."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(*coordinator, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise errors.InitializationError(
            f"no way leads to the coordinator {coordinator[0]}:{coordinator[1]} ({error})."
        ) from None
