"""The quorum: members of a communicator that take part in a step without waiting for late ones."""

from __future__ import annotations

import math
import zlib
from typing import NamedTuple

from jaxccomp import comm as _comm


class Participants(NamedTuple):
    """The participants of a step.

    Attributes:
      comm: the participants' communicator.
      done: the maximum of the steps that each participant has done.
      root: the lowest rank that has done this maximum.
      some_behind: whether a participant has done fewer.
    """

    comm: _comm.Communicator
    done: int
    root: int
    some_behind: bool


def participants(
    comm: _comm.Communicator | None,
    name: str,
    done: int,
    fraction: float,
    grace_seconds: float,
    wait_for_all: bool,
    timeout_seconds: float | None,
) -> Participants:
    """Agree on the participants of the next step; all participants get the same result.

    Waits for a quorum, then up to ``grace_seconds`` for the other members.

    Args:
      comm: the communicator; None: the world.
      name: names the sequence of steps; the same on all members.
      done: the number of these steps that this process has done.
      fraction: the fraction of members that is a quorum; at least a majority.
      grace_seconds: how long to wait for the other members once there is a quorum.
      wait_for_all: whether this process wants all members to take part.
      timeout_seconds: how long to wait for a quorum. Default: the option ``timeout_seconds``.

    Raises:
      CommunicatorError: unless the processes called ``jaxccomp.init(coordinator=...)``.
      InitializationError: if there was no quorum in time, or a member has failed.
    """
    comm = _comm.resolve(comm)
    least = max(math.ceil(fraction * comm.size), comm.size // 2 + 1)
    rule = (least, grace_seconds)
    found = _comm.participants(comm, name, done, rule, wait_for_all, timeout_seconds)
    processes = tuple(comm.processes[rank] for rank in found.members)
    # The same name for the same members avoids a recompilation. A failure changes the name: some
    # members may have launched an operation on the old one that others have not.
    own = f"{name}-{zlib.crc32(repr(processes).encode()):08x}.{found.failures}"
    group = _comm.resolve(_comm.Communicator(f"{comm.name}/{own}", processes, comm.order))
    root = found.members.index(found.up_to_date[0])
    return Participants(group, found.done, root, len(found.up_to_date) < len(processes))
