"""Groups of processes without MPI and ``jax.distributed``, which may shrink and grow.

All members know the worker address, the listening address and the host of each other process.
A process keeps its number for good, and numbers are never reused, so a communicator is an ordered
list of numbers that stays valid when processes leave or join.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import ipaddress
import secrets
import socket
from collections.abc import Callable
from typing import Any

from jaxccomp import errors
from jaxccomp._bootstrap import peer_info, ucx
from jaxccomp._bootstrap.connections import SocketAddress
from jaxccomp._bootstrap.parameters import RendezvousParameters
from jaxccomp._bootstrap.rendezvous import Rendezvous
from jaxccomp._bootstrap.world import World

_GONE = "had gone before this process joined"


@dataclasses.dataclass
class PeerTable:
    """Data of all processes, by process number; the same on all members.

    Attributes:
      rows: the records that the processes sent when they joined.
      workers: addresses of their UCX workers; b"" for processes that have left or ended.
      salt: the secret in UCX messages is derived from it and the job's secret.
    """

    rows: list[peer_info.Row]
    workers: list[bytes]
    salt: bytes


def form(parameters: RendezvousParameters, timeout: float) -> World:
    """Return the world of all processes that start together."""
    assert parameters.rank is not None
    coordinator = parameters.addresses[0]
    _check_reachable(coordinator, parameters.size)
    if parameters.rank == 0:
        rendezvous = Rendezvous(*coordinator, parameters.secret)
    else:
        rendezvous = _listen(coordinator, parameters.secret, may_replace_it=False)
    rendezvous.exchange_addresses(parameters.rank, parameters.size, coordinator, timeout)
    return _world(parameters.rank, parameters.size, rendezvous)


def join(
    parameters: RendezvousParameters, open_worker: Callable[[], Any], timeout: float
) -> tuple[World, Any]:
    """Joins an existing group, when its members admit this process.

    Args:
      parameters: with the group's name.
      open_worker: opens a UCX worker.
      timeout: seconds to wait for admission.

    Returns:
      The world of this process, and the worker.
    """
    rendezvous = _listen(parameters.addresses[0], parameters.secret, may_replace_it=True)
    # Open the worker after a member is reached: a UCX worker omits networks that are down when it
    # is opened, and other processes could never reach this one.
    worker_once = functools.cache(open_worker)
    identity = secrets.token_hex(8)

    def request() -> dict[str, Any]:
        return {
            "id": identity,
            "worker": ucx.seal(worker_once().address, rendezvous.derive),
            "address": rendezvous.address,
            "row": peer_info.own(False),
        }

    answer = rendezvous.request_join(parameters.addresses, parameters.join, request, timeout)
    rows = [peer_info.Row(*map(int, row)) for row in answer["rows"]]
    workers = [ucx.unseal(each, rendezvous.derive) if each else b"" for each in answer["workers"]]
    rendezvous.addresses = [
        None if each is None else socket_address(each) for each in answer["addresses"]
    ]
    process, name, order = int(answer["process"]), str(answer["name"]), str(answer["order"])
    peers = PeerTable(rows, workers, bytes.fromhex(answer["salt"]))
    members = tuple(map(int, answer["members"]))
    state = _world(process, len(rows), rendezvous)
    state.peers = peers
    state.current = (name, members, order)
    state.joined_group = parameters.join
    return state, worker_once()


def _listen(coordinator: SocketAddress, secret: bytes, *, may_replace_it: bool) -> Rendezvous:
    """Listen at the coordinator's port if possible, since joining processes try it first.

    Args:
      coordinator: the coordinator's address.
      secret: the job's secret.
      may_replace_it: whether the coordinator may have gone.
    """
    host = own_address(coordinator)
    if may_replace_it or host != _address(coordinator[0]):
        with contextlib.suppress(errors.InitializationError):
            return Rendezvous(host, coordinator[1], secret)
    return Rendezvous(host, 0, secret)


def _address(host: str) -> str:
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise errors.InitializationError(
            f"the coordinator's host name {host!r} has no address here ({error})."
        ) from None


def _world(process: int, processes: int, rendezvous: Rendezvous) -> World:
    state = World(process, processes)
    rendezvous.process = process
    rendezvous.why_gone = state.why_gone
    rendezvous.why_refused = functools.partial(_why_refused, rendezvous)
    state.out_of_band = rendezvous
    return state


def socket_address(value: Any) -> SocketAddress:
    host, port = value
    return str(host), int(port)


def _why_refused(rendezvous: Rendezvous, request: dict[str, Any]) -> str:
    """Return why a process cannot join; empty when it can."""
    try:
        row = peer_info.Row(*map(int, request["row"]))
        host, port = request["address"]
        readable = (
            isinstance(request["group"], str)
            and isinstance(request["id"], str)
            and isinstance(host, str)
            and 0 < int(port) < 1 << 16
        )
    except (KeyError, TypeError, ValueError):
        readable = False
    if not readable:
        return "its request to join cannot be read"
    try:
        ucx.unseal(request["worker"], rendezvous.derive)
    except (KeyError, errors.InitializationError) as error:
        return str(error)
    own = peer_info.own(False)
    if row.unit_bytes != own.unit_bytes:
        return f"the option mpi_unit_bytes is {own.unit_bytes} here, and {row.unit_bytes} there"
    return ""


def set_gone(core: Any, peers: PeerTable) -> None:
    """Reports the processes that had gone before this one joined to the engine."""
    for process, address in enumerate(peers.workers):
        if not address:
            core.set_gone(process, f"rank {process} of the world {_GONE}")


def tell_hosts(core: Any, state: World) -> None:
    """Tells the engine which processes share a host."""
    rows = state.peers.rows
    state.hosts = tuple(peer_info.hosts(rows))
    core.set_hosts(list(state.hosts))
    core.set_system_processes(peer_info.system_processes(rows, state.process))


def _check_reachable(coordinator: SocketAddress, size: int) -> None:
    host, _ = coordinator
    address = _address(host)
    if ":" in address and ipaddress.ip_address(address.partition("%")[0]).is_link_local:
        raise errors.InitializationError(
            f"the coordinator's address {address} is of one link alone, and each host calls that "
            "link by a name of its own: give another address of it."
        )
    named = host == "localhost" or host.startswith("127.") or host == "::1"
    if not named and (address.startswith("127.") or address == "::1") and size > 1:
        raise errors.InitializationError(
            f"the coordinator's host name {host!r} resolves to the loopback address {address} "
            "here, where processes of other hosts cannot reach it: give its address on the "
            "network, or 'localhost' if all processes are on this host."
        )


def own_address(coordinator: SocketAddress) -> str:
    """Return this host's address on the network that leads to the coordinator."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(*coordinator, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise errors.InitializationError(
            f"no way leads to the coordinator {coordinator[0]}:{coordinator[1]} ({error})."
        ) from None
