"""Rendezvous parameters, from the program or its environment."""

from __future__ import annotations

import dataclasses
import os

from jaxccomp import config, errors
from jaxccomp._bootstrap import launchers
from jaxccomp._bootstrap.connections import SocketAddress

_LEAST_SECRET = 16
_SECRET_VARIABLE = "JAXCCOMP_SECRET"
_MAKES_SECRET = 'python -c "import secrets; print(secrets.token_hex(16))"'


@dataclasses.dataclass(frozen=True)
class RendezvousParameters:
    """Parameters by which this process finds the others.

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
    """Checks the parameters from the caller or the environment.

    Args:
      coordinator: "host:port", or several of members, separated by commas.
      rank: of this process; None takes the launcher's.
      size: of the group; None takes the launcher's.
      join: the group that this process joins.
      secret: the job's secret; None if there is none.

    Raises:
      InvalidArgumentError: for invalid parameters.
    """
    addresses = tuple(_address(each.strip()) for each in coordinator.split(","))
    if not secret or len(secret) < _LEAST_SECRET:
        given = "none was given" if not secret else f"the one given has {len(secret)}"
        raise errors.InvalidArgumentError(
            f"coordinator= takes a secret of at least {_LEAST_SECRET} characters, by which the "
            f"processes of the job authenticate; {given}: set {_SECRET_VARIABLE} to the "
            f"same text for all of them; {_MAKES_SECRET} draws one."
        )
    if join:
        if rank is not None or size is not None:
            raise errors.InvalidArgumentError(
                f"join={join!r} asks a running group for a rank: leave out rank= and size=, which "
                "only processes that start a group take."
            )
        return RendezvousParameters(addresses, None, 0, join, secret.encode())
    by = launchers.launcher()
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


def from_options(
    coordinator: str | None,
    rank: int | None,
    size: int | None,
    join: str | None,
    secret: str | None,
) -> RendezvousParameters | None:
    """Like `checked`, from options and environment; None if they name no group."""
    coordinator = config.get("coordinator") if coordinator is None else coordinator
    join = config.get("join") if join is None else join
    if coordinator:
        secret = os.environ.get(_SECRET_VARIABLE) if secret is None else secret
        return checked(coordinator, rank, size, join, secret)
    given = {"rank": rank, "size": size, "join": join or None, "secret": secret}
    if named := [f"{name}=" for name, value in given.items() if value is not None]:
        raise errors.InvalidArgumentError(
            f"{', '.join(named)} of init() needs coordinator='host:port', which was not given."
        )
    return None


def _address(text: str) -> SocketAddress:
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise errors.InvalidArgumentError(
            "coordinator must be 'host:port', such as '10.0.0.1:1234' or '[2001:db8::1]:1234', "
            f"not {text!r}."
        )
    return host, int(port)
