"""Which members of a communicator take part in a step, where others may be late."""

from __future__ import annotations

import math
import zlib
from typing import NamedTuple

from jaxccomp import comm as _comm


class Participants(NamedTuple):
    """Those that take part in a step.

    Attributes:
      comm: of these.
      done: the most steps that any of them has done.
      root: the first of these that have done so many.
      some_behind: whether others have done fewer.
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
    """The members that take part in the next step, alike on all of these.

    All are waited for; but once a quorum has come, for so many seconds more only.

    Args:
      comm: whose members; None: the world's.
      name: of what they do; the same on all members.
      done: how many of these steps this process has done.
      fraction: of the members, how many are a quorum, which is a majority in any case.
      grace_seconds: how long others are waited for once there is one.
      wait_for_all: whether this process wants all members to take part.
      timeout_seconds: how long to wait for others. Default: the option ``timeout_seconds``.

    Raises:
      CommunicatorError: where processes have not met by ``jaxccomp.init(coordinator=...)``.
      InitializationError: where too few have come in time, or a member is gone.
    """
    comm = _comm.resolve(comm)
    least = max(math.ceil(fraction * comm.size), comm.size // 2 + 1)
    rule = (least, grace_seconds)
    found = _comm.participants(comm, name, done, rule, wait_for_all, timeout_seconds)
    processes = tuple(comm.processes[rank] for rank in found.members)
    # The same for the same members, so that programs are not compiled anew. After a failure
    # another one, as some members may have launched on it what others have not.
    own = f"{name}-{zlib.crc32(repr(processes).encode()):08x}.{found.failures}"
    group = _comm.resolve(_comm.Communicator(f"{comm.name}/{own}", processes, comm.order))
    root = found.members.index(found.up_to_date[0])
    return Participants(group, found.done, root, len(found.up_to_date) < len(processes))
