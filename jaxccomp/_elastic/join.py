"""Joins processes that meet at a coordinator, for ``comm.init``.

They need neither MPI nor ``jax.distributed``, and their groups may shrink and grow.
All members know the worker address, the listening address and the host of each other process.
A process keeps its number for good, and numbers are never reused, so a communicator is an ordered
list of numbers that stays valid when processes leave or join.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import ipaddress
import os
import secrets
import socket
from typing import Any

import jax

from jaxccomp import config, errors
from jaxccomp._elastic import membership
from jaxccomp._elastic.connections import SocketAddress, as_address
from jaxccomp._elastic.rendezvous import Rendezvous
from jaxccomp._native import engine
from jaxccomp._runtime import environment, leave, peer_info, shared_files, ucx
from jaxccomp._runtime import join as runtime
from jaxccomp._runtime.world import World

_GONE = "had gone before this process joined"


def join(
    coordinator: str,
    rank: int | None,
    size: int | None,
    group: str | None,
    secret: str | None,
    timeout_seconds: float,
) -> World:
    """Start a group with the others, or join an existing group, and start the engine.

    Args:
      coordinator: "host:port", or several of members, separated by commas.
      rank: of this process; None takes the launcher's.
      size: of the group; None takes the launcher's.
      group: the group that this process joins; None takes the option ``join``.
      secret: the job's secret; None takes the environment's.
      timeout_seconds: how long to wait for the others.
    """
    explicit = bool(group) or (rank is not None and size is not None)
    joined_group = config.get("join") if group is None else group
    secret = os.environ.get(_SECRET_VARIABLE) if secret is None else secret
    parameters = checked(coordinator, rank, size, joined_group, secret)
    environment.check_not_inherited(uses_variables=not explicit, starts_mpi=False)
    environment.mark_rank()
    _check_usable()
    if parameters.join:
        state, worker = _join_group(parameters, timeout_seconds)
        readers: list[bool] = []  # late joiners do not use CMA reads
    else:
        state, worker, readers = _form_group(parameters, timeout_seconds)
    _start_engine(state, worker, readers)
    leave.joined(state)
    return state


def _check_usable() -> None:
    if jax.distributed.is_initialized():
        raise errors.InitializationError(
            "jax.distributed has already joined this program's processes, so init() takes neither "
            "coordinator= nor join=."
        )
    shared_files.refuse_plans(
        "processes that meet by coordinator= cannot use plans, because others may join them"
    )
    if why := ucx.why_missing():
        raise _no_ucx(why)


def _start_engine(state: World, worker: Any, readers: list[bool]) -> None:
    state.process_of = {jax.process_index(): state.process}
    rendezvous, peers, core = state.out_of_band, state.peers, engine.load()
    assert isinstance(rendezvous, Rendezvous)
    core.configure(state.process, state.processes)
    core.let_group_agree()
    for process, address in enumerate(peers.workers):
        if not address:
            core.set_failed(process, f"rank {process} of the world {_GONE}")
    silence = config.get("peer_timeout_seconds")
    secret = ucx.secret_of(peers.salt, rendezvous.derive)
    early = config.get("early_bytes"), config.get("early_messages")
    core.use_ucx(worker, secret, peers.workers, readers, *early, silence, True)
    state.memberships = membership.Memberships(state)
    runtime.complete(core, state, peers.rows)


# --- Parameters, from the program or its environment ----------------------------------------------

_MIN_SECRET = 16
_SECRET_VARIABLE = "JAXCCOMP_SECRET"
_DRAW_SECRET = 'python -c "import secrets; print(secrets.token_hex(16))"'


@dataclasses.dataclass(frozen=True)
class RendezvousParameters:
    """The parameters by which this process finds the others.

    Attributes:
      addresses: of the coordinator, or of members that may know the group.
      rank: of this process; None if it joins an existing group.
      size: the number of processes that start together.
      join: the group to join; "" for processes that start together.
      secret: the job's secret.
    """

    addresses: tuple[SocketAddress, ...]
    rank: int | None
    size: int
    join: str
    secret: bytes


def checked(
    coordinator: str, rank: int | None, size: int | None, join: str, secret: str | None
) -> RendezvousParameters:
    """Check the parameters from the caller or the environment.

    Args:
      coordinator: "host:port", or several of members, separated by commas.
      rank: of this process; None takes the launcher's.
      size: of the group; None takes the launcher's.
      join: the group that this process joins.
      secret: the job's secret; None if there is none.

    Raises:
      InvalidArgumentError: for invalid parameters.
    """
    addresses = tuple(_parse_address(each.strip()) for each in coordinator.split(","))
    if not secret or len(secret) < _MIN_SECRET:
        given = "none was given" if not secret else f"the given one has {len(secret)}"
        raise errors.InvalidArgumentError(
            f"coordinator= needs a secret of at least {_MIN_SECRET} characters, by which the "
            f"processes of the job authenticate; {given}. Set {_SECRET_VARIABLE} to the same text "
            f"on all of them; {_DRAW_SECRET} draws one."
        )
    if join:
        if rank is not None or size is not None:
            raise errors.InvalidArgumentError(
                f"join={join!r} asks a running group for a rank: leave out rank= and size=, which "
                "only processes that start a group take."
            )
        return RendezvousParameters(addresses, None, 0, join, secret.encode())
    by = environment.launcher()
    if rank is None and by is not None:
        rank = by.rank
    if size is None and by is not None:
        size = by.size
    if rank is None or size is None or not 0 <= rank < size:
        raise errors.InvalidArgumentError(
            f"coordinator= takes rank= and size=, with 0 <= rank < size, unless a launcher has set "
            f"them; rank is {rank} and size {size}. A process that joins later takes join= instead."
        )
    if len(addresses) != 1:
        raise errors.InvalidArgumentError(
            f"processes that start a group name one coordinator, not {len(addresses)}: "
            f"{coordinator!r}."
        )
    return RendezvousParameters(addresses, rank, size, "", secret.encode())


def _parse_address(text: str) -> SocketAddress:
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise errors.InvalidArgumentError(
            "coordinator must be 'host:port', such as '10.0.0.1:1234' or '[2001:db8::1]:1234', "
            f"not {text!r}."
        )
    return host, int(port)


# --- Groups ---------------------------------------------------------------------------------------


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


def _form_group(parameters: RendezvousParameters, timeout: float) -> tuple[World, Any, list[bool]]:
    """Start a group of all processes that start together.

    Returns:
      The world of this process, its UCX worker, and which processes read its memory.
    """
    assert parameters.rank is not None
    coordinator = parameters.addresses[0]
    worker = _open_worker(parameters)
    _check_reachable(coordinator, parameters.size)
    if parameters.rank == 0:
        rendezvous = Rendezvous(*coordinator, parameters.secret)
    else:
        rendezvous = _listen(coordinator, parameters.secret, may_replace_it=False)
    rendezvous.exchange_addresses(parameters.rank, parameters.size, coordinator, timeout)
    state = _world(parameters.rank, parameters.size, rendezvous)
    share = functools.partial(state.share_with_all, timeout)
    rows = peer_info.call(share, peer_info.own(False))
    pids = [pid for pid, _ in peer_info.system_processes(rows, state.process)]
    salt, addresses, readers = ucx.connect(share, state.process, worker, pids)
    state.peers = PeerTable(rows, addresses, salt)
    return state, worker, readers


def _join_group(parameters: RendezvousParameters, timeout: float) -> tuple[World, Any]:
    """Join an existing group; wait until its members admit this process.

    Returns:
      The world of this process, and its UCX worker.
    """
    rendezvous = _listen(parameters.addresses[0], parameters.secret, may_replace_it=True)
    # Open the worker after a member is reached. A UCX worker omits networks that are down when it
    # is opened, and other processes could then never reach this one.
    worker_once = functools.cache(lambda: _open_worker(parameters))
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
        None if each is None else as_address(each) for each in answer["addresses"]
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
      may_replace_it: whether the coordinator may have ended, so that its port may be free.
    """
    host = _own_address(coordinator)
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


def _why_refused(rendezvous: Rendezvous, request: dict[str, Any]) -> str:
    """Return why a process cannot join; empty when it can."""
    unreadable = "its request to join cannot be read"
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
        return unreadable
    if not readable:
        return unreadable
    try:
        ucx.unseal(request["worker"], rendezvous.derive)
    except (KeyError, errors.InitializationError) as error:
        return str(error)
    own = peer_info.own(False)
    if row.unit_bytes != own.unit_bytes:
        return f"its option mpi_unit_bytes is {row.unit_bytes}, and {own.unit_bytes} in the group"
    return ""


def _check_reachable(coordinator: SocketAddress, size: int) -> None:
    host, _ = coordinator
    address = _address(host)
    if ":" in address and ipaddress.ip_address(address.partition("%")[0]).is_link_local:
        raise errors.InitializationError(
            f"the coordinator's address {address} is link-local, and each host has its own name "
            "for the link: give another address of the coordinator."
        )
    named = host == "localhost" or host.startswith("127.") or host == "::1"
    if not named and (address.startswith("127.") or address == "::1") and size > 1:
        raise errors.InitializationError(
            f"the coordinator's host name {host!r} resolves to the loopback address {address} "
            "here, where processes of other hosts cannot reach it: give its address on the "
            "network, or 'localhost' if all processes are on this host."
        )


def _open_worker(parameters: RendezvousParameters) -> Any:
    # Listen only at the network interface of the rendezvous.
    devices = ucx.net_devices(_own_address(parameters.addresses[0]))
    worker, why_not = ucx.open_worker(shares_memory=False, net_devices=devices)
    if worker is None:
        raise _no_ucx(why_not)
    return worker


def _no_ucx(why: str) -> errors.EngineUnavailableError:
    return errors.EngineUnavailableError(
        f"processes that meet by coordinator= exchange values through UCX, but {why}. "
        f"{ucx.INSTALL}."
    )


def _own_address(coordinator: SocketAddress) -> str:
    """Return this host's address on the network that leads to the coordinator."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(*coordinator, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise errors.InitializationError(
            f"there is no route to the coordinator {coordinator[0]}:{coordinator[1]} ({error})."
        ) from None
