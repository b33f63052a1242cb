"""Groups of processes that need neither MPI nor ``jax.distributed``, and may shrink and grow.

All members know of each other process: its worker's address, where it listens, on which host it is.
A process keeps its number for good, and numbers are not used again, so a communicator is an ordered
list of them whoever has gone or come since.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import socket
import zlib
from collections.abc import Callable
from typing import Any

from jaxccomp import config, errors
from jaxccomp._bootstrap import launchers, peer_info
from jaxccomp._bootstrap.meeting_place import Applicant, MeetingPlace, Place
from jaxccomp._bootstrap.world import Group, World, lineage
from jaxccomp._native import engine

_LEAST_SECRET = 16
_SECRET_VARIABLE = "JAXCCOMP_SECRET"
_MAKES_SECRET = 'python -c "import secrets; print(secrets.token_hex(16))"'
_GONE = "had gone before this process joined"


@dataclasses.dataclass(frozen=True)
class Terms:
    """How this process is to find the others.

    Attributes:
      places: of the coordinator, or of members that may know of the group.
      rank: of this process; None where it joins a group that exists.
      size: how many meet.
      join: the group that it joins; "" where it is among those that meet first.
      secret: of the job.
    """

    places: tuple[Place, ...]
    rank: int | None
    size: int
    join: str
    secret: bytes


def terms(
    coordinator: str, rank: int | None, size: int | None, join: str, secret: str | None
) -> Terms:
    """Checks what the caller, or the environment, says of the group.

    Args:
      coordinator: "host:port", or several of members, separated by commas.
      rank: of this process; None takes the launcher's.
      size: of the group; None takes the launcher's.
      join: the group that this process joins.
      secret: of the job; None where there is none.

    Raises:
      InvalidArgumentError: for what cannot be.
    """
    places = tuple(_place(each.strip()) for each in coordinator.split(","))
    if not secret or len(secret) < _LEAST_SECRET:
        given = "none was given" if not secret else f"the one given has {len(secret)}"
        raise errors.InvalidArgumentError(
            f"coordinator= takes a secret of at least {_LEAST_SECRET} characters, by which the "
            f"processes of the job know each other, and {given}: set {_SECRET_VARIABLE} to the "
            f"same text for all of them; {_MAKES_SECRET} draws one."
        )
    if join:
        if rank is not None or size is not None:
            raise errors.InvalidArgumentError(
                f"join={join!r} asks a group that exists for a rank: rank= and size= are for those "
                "that meet first."
            )
        return Terms(places, None, 0, join, secret.encode())
    by = launchers.launcher()
    if rank is None and by is not None:
        rank = by.rank
    if size is None and by is not None:
        size = by.size
    if rank is None or size is None or not 0 <= rank < size:
        raise errors.InvalidArgumentError(
            f"coordinator= takes rank= and size=, with 0 <= rank < size, unless a launcher has set "
            f"them; rank is {rank} and size {size}. A process that comes later has join= instead."
        )
    if len(places) != 1:
        raise errors.InvalidArgumentError(
            f"processes that meet first have one coordinator, not {len(places)}: {coordinator!r}."
        )
    return Terms(places, rank, size, "", secret.encode())


def terms_of(
    coordinator: str | None,
    rank: int | None,
    size: int | None,
    join: str | None,
    secret: str | None,
) -> Terms | None:
    """As `terms`, with what the options and the environment say; None where there is no group."""
    coordinator = config.get("coordinator") if coordinator is None else coordinator
    join = config.get("join") if join is None else join
    if coordinator:
        secret = os.environ.get(_SECRET_VARIABLE) if secret is None else secret
        return terms(coordinator, rank, size, join, secret)
    given = {"rank": rank, "size": size, "join": join or None, "secret": secret}
    if named := [f"{name}=" for name, value in given.items() if value is not None]:
        raise errors.InvalidArgumentError(
            f"{', '.join(named)} of init() goes with coordinator='host:port', which is not there."
        )
    return None


def _place(text: str) -> Place:
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise errors.InvalidArgumentError(
            f"coordinator must be 'host:port', such as '10.0.0.1:1234' or '[fe80::1]:1234', not "
            f"{text!r}."
        )
    return host, int(port)


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


@dataclasses.dataclass(frozen=True)
class Welcome:
    """What a process hears when it is taken in."""

    process: int
    roster: Roster
    comm: tuple[str, tuple[int, ...], str]  # name, processes and order


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


def apply(terms: Terms, worker: Any, timeout: float) -> tuple[World, Welcome]:
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
    place.places = [None if each is None else _pair(each) for each in answer["places"]]
    process, name, order = int(answer["process"]), str(answer["name"]), str(answer["order"])
    roster = Roster(rows, addresses, bytes.fromhex(answer["secret"]))
    members = tuple(map(int, answer["members"]))
    state = _world(process, len(rows), place)
    state.current = (name, members, order)
    state.joined_group = terms.join
    return state, Welcome(process, roster, state.current)


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
    place.find_gone = state.gone
    place.why_refused = _why_refused
    state.store = place
    return state


def _pair(place: Any) -> Place:
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


def applicants(state: World, group: str) -> int:
    """How many processes wait at this one to be taken into that group."""
    return len(state.store.applicants.of(group)) if isinstance(state.store, MeetingPlace) else 0


def admit(
    state: World,
    comm: Group,
    group: str,
    make: Callable[[str, tuple[int, ...]], Any],
    timeout: float,
) -> Any:
    """The members and all that wait for the group at any of them; `comm` itself where nobody does.

    Called by all members together.

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
    waiting = {str(each.request["id"]): each for each in place.applicants.of(group)}
    text = json.dumps([each.request for each in waiting.values()]).encode() if waiting else b""
    texts = _share_bytes(state, comm, text, timeout)
    if not any(texts):
        return comm
    requests = {str(each["id"]): each for text in texts if text for each in json.loads(text)}
    asked = [requests[each] for each in sorted(requests)]
    first = state.processes
    processes = (*comm.processes, *range(first, first + len(asked)))
    rows = [peer_info.Row(*map(int, each["row"])) for each in asked]
    addresses = [bytes.fromhex(each["address"]) for each in asked]
    core = engine.load()
    core.add_processes(addresses)
    state.processes += len(asked)
    roster.rows += rows
    roster.addresses += addresses
    place.places += [_pair(each["place"]) for each in asked]
    tell_hosts(core, roster.rows, state.process)
    name = f"{lineage(comm.name)}/members-{zlib.crc32(repr(processes).encode()):08x}"
    grown = make(name, processes)
    # Who is taken in may send to all of these from then on.
    state.share(comm, (), timeout)
    living = set(comm.processes)
    for number, applicant in enumerate(asked, first):
        own = waiting.get(str(applicant["id"]))
        if own is not None:
            _welcome(own, number, state, living | set(range(first, state.processes)), grown)
    return grown


def _welcome(applicant: Applicant, number: int, state: World, living: set[int], comm: Any) -> None:
    place, roster = state.store, state.roster
    assert isinstance(place, MeetingPlace) and roster is not None
    known = [each in living for each in range(state.processes)]
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


def tell_hosts(core: Any, rows: list[peer_info.Row], process: int) -> None:
    """Tells the engine which processes share a host."""
    hosts = [row.host for row in rows]
    core.set_hosts([hosts.index(host) for host in hosts])
    core.set_system_processes(peer_info.system_processes(rows, process))


def _share_bytes(state: World, comm: Group, text: bytes, timeout: float) -> list[bytes]:
    sizes = [row[0] for row in state.share(comm, (len(text),), timeout)]
    if not any(sizes):
        return [b""] * comm.size
    padded = text.ljust(max(sizes), b"\0")
    rows = state.share(comm, list(padded), timeout)
    return [bytes(row[:size]) for row, size in zip(rows, sizes, strict=True)]


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
