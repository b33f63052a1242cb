"""The state of a process that has joined the others: its number, groups, and transports."""

from __future__ import annotations

import hashlib
import itertools
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from jaxccomp import config, errors
from jaxccomp._native import engine
from jaxccomp._runtime import mpi as _mpi
from jaxccomp.schedules import Planner
from jaxccomp.schedules._plans import Plans

NAME = "world"
# Number of latest splits of a communicator whose groups are reused when the same split is repeated.
_REMEMBERED_SPLITS = 64


class Group(Protocol):
    """The attributes of a ``Communicator`` that this package uses."""

    @property
    def name(self) -> str: ...
    @property
    def processes(self) -> tuple[int, ...]: ...
    @property
    def size(self) -> int: ...
    @property
    def rank(self) -> int: ...


G = TypeVar("G", bound=Group)


class OutOfBand(Protocol):
    """An allgather of rows of integers without MPI."""

    def share(
        self, members: Sequence[int], rank: int, name: str, row: Sequence[int], timeout: float
    ) -> Any:
        """Allgather rows, in the members' order."""
        ...

    def stop(self) -> None:
        """Stop threads and connections."""
        ...


def original_name(name: str) -> str:
    """Return the name of a communicator before members were lost or joined."""
    head, mark, tail = name.rpartition("/members-")
    return head if mark and "/" not in tail else name


FailedProcesses = dict[int, tuple[str, bool]]  # World.failed


class World:
    """The result of ``init``: this process's number, and how to reach the others."""

    def __init__(self, process: int, processes: int, mpi: Any = None, comms: Sequence[Any] = ()):
        self.process = process
        self.processes = processes
        self.out_of_band: OutOfBand | None = None  # without MPI
        # With init(coordinator=), whose groups may shrink and grow (_elastic): data of all
        # processes, and the consensus on members.
        self.peers: Any = None
        self.memberships: Any = None
        self.joined_group = ""  # the group that admitted this process, until the program uses it
        # The communicator that operations use by default: name, processes and order.
        self.current: tuple[str, tuple[int, ...], str] = (NAME, tuple(range(processes)), "spmd")
        self.mpi = mpi  # mpi4py's MPI module, when joined
        # Duplicates of COMM_WORLD: for the engine (its thread receives every message on it), for
        # Python exchanges, and for MPI's collectives (backend="mpi").
        self.engine_comm, self.exchange, self.collectives = comms or (None, None, None)
        self.hosts = tuple(range(processes))  # by process, the lowest process of its host
        self.process_of = {each: each for each in range(processes)}  # by JAX's process index
        self.planner: Planner | None = None  # chooses by the profile that all ranks share
        self.plans: Plans | None = None  # pinned, the same on all ranks
        self.unreachable = ""  # why the engine cannot send values to the other processes
        self.no_cuda = ""  # why the engine is not used on GPUs: processes that lack CUDA
        self._lock = threading.Lock()
        self._known: dict[str, tuple[int, ...]] = {}
        self._freed: set[str] = set()  # names that are never reused
        self._freed_groups: dict[str, int] = {}  # count by communicator name
        # By communicator: the number of each split, by a digest of all its members' rows.
        self._serials: dict[str, OrderedDict[bytes, int]] = {}
        self._next_serial: dict[str, int] = {}
        self._mpi_numbers = itertools.count(1)
        # By name and members: the number of shrinks that resulted in these members.
        self._shrinks: dict[tuple[str, tuple[int, ...]], int] = {}

    def mpi_number(self) -> int:
        """Draw a number for an MPI communicator whose first member is this process."""
        return next(self._mpi_numbers)

    def share(
        self, comm: Group, row: Sequence[int], timeout_seconds: float | None = None
    ) -> list[tuple[int, ...]]:
        """Allgather rows; waits ``init_timeout_seconds`` by default."""
        if comm.size == 1:
            return [tuple(row)]
        default = config.get("init_timeout_seconds")
        timeout = default if timeout_seconds is None else timeout_seconds
        rows = self._share(comm.processes, comm.rank, comm.name, row, timeout)
        return [tuple(map(int, each)) for each in rows]

    def share_with_all(self, timeout_seconds: float, row: Sequence[int]) -> Sequence[Sequence[int]]:
        """Allgather rows of all processes; all processes must call it."""
        if self.processes == 1:
            return [row]
        everybody = tuple(range(self.processes))
        return self._share(everybody, self.process, NAME, row, timeout_seconds)

    def _share(
        self, members: Sequence[int], rank: int, name: str, row: Sequence[int], timeout: float
    ) -> Any:
        if self.out_of_band is not None:
            return self.out_of_band.share(members, rank, name, row, timeout)
        self.require_reach()
        check_peers = partial(self._why_incomplete, members, name)
        return _mpi.share(self.exchange, members, rank, name, row, timeout, check_peers)

    def shrink(
        self,
        comm: Group,
        make: Callable[[str, tuple[int, ...]], G],
        timeout_seconds: float | None = None,
    ) -> G:
        """Return the group of the living members; all of them agree on it.

        Args:
          comm: the old group.
          make: makes a group from its name and processes.
          timeout_seconds: see `share`.
        """
        before = original_name(comm.name)
        if timeout_seconds is None:
            timeout_seconds = config.get("init_timeout_seconds")
        if self.memberships is not None:
            return make(*self.memberships.shrink(comm.name, comm.processes, timeout_seconds))
        while True:
            failed = self.failed()
            processes = tuple(each for each in comm.processes if each not in failed)
            absent = zlib.crc32(repr(processes).encode())
            # The members are part of the name. The count distinguishes repeated shrinks to them.
            number = self._shrinks.get((before, processes), 0)
            group = make(f"{before}/members-{absent:08x}:{number}", processes)
            try:
                self.share(group, (), timeout_seconds)
            except errors.InitializationError:
                # If another member has gone meanwhile, try again without it.
                if not (self.failed().keys() - failed.keys()).intersection(processes):
                    raise
                continue
            self._shrinks[before, processes] = number + 1
            return group

    @staticmethod
    def failed() -> FailedProcesses:
        """Return the processes that have ended, failed or died.

        Returns:
          By process: the reason, and whether the process is dead.
        """
        return engine.load().find_failed() if engine.available() else {}

    def why_gone(self, processes: Sequence[int]) -> str:
        """Return why some of these processes will not come; empty when all may."""
        reasons = {each: why for each, (why, _) in self.failed().items()}
        if engine.available():
            reasons = engine.load().find_reported() | reasons
        return "; ".join(why for each, why in reasons.items() if each in processes)

    def _why_incomplete(self, members: Sequence[int], name: str) -> str:
        """Return which of these processes have failed or died, and why; empty when none has."""
        why = self.why_gone(members)
        if not why:
            return ""
        return f"the members of communicator {name!r} must all take part in this call, but {why}"

    def serial(self, name: str, table: list[tuple[int, ...]]) -> int:
        """Return the number of the split of communicator ``name`` with these rows.

        All members make the same splits in the same order. So all forget the same splits, and get
        the same numbers.
        """
        seen = self._serials.setdefault(name, OrderedDict())
        digest = hashlib.blake2b(repr(table).encode(), digest_size=16).digest()
        number = seen.pop(digest, None)
        if number is None:
            number = self._next_serial.get(name, 0)
            self._next_serial[name] = number + 1
        seen[digest] = number
        if len(seen) > _REMEMBERED_SPLITS:
            seen.popitem(last=False)
        return number

    def freed_groups(self, name: str) -> int:
        """Return the number of groups of communicator ``name`` that this process has freed."""
        return self._freed_groups.get(name, 0)

    def free(self, comm: Group) -> None:
        """Free ``comm``: its name, and its state in the engine."""
        if comm.name == NAME:
            raise errors.CommunicatorError(
                "the world cannot be freed; communicators of split() and duplicate() can."
            )
        with self._lock:
            self._check_not_freed(comm)
            if comm.name in self._known and engine.available():
                try:
                    engine.load().free_communicator(comm.name)
                except RuntimeError as error:
                    raise errors.CommunicatorError(str(error)) from None
            self._known.pop(comm.name, None)
            self._freed.add(comm.name)
            parent, _, own = comm.name.rpartition("/")
            if ":" in own:  # a name that split() made
                self._freed_groups[parent] = self._freed_groups.get(parent, 0) + 1
            for table in (self._serials, self._next_serial, self._freed_groups):
                table.pop(comm.name, None)

    def _check_not_freed(self, comm: Group) -> None:
        if comm.name in self._freed:
            raise errors.CommunicatorError(
                f"communicator {comm.name!r} has been freed, and its name cannot be used again: "
                "make another one by duplicate() with another name, split() or from_mpi4py()."
            )

    def known(self, comm: Group) -> None:
        """Check ``comm``, and register it with the engine once."""
        with self._lock:
            self._check_not_freed(comm)
            if comm.name not in self._known:
                self._introduce(comm)
            elif self._known[comm.name] != comm.processes:
                raise errors.CommunicatorError(
                    f"two communicators have the name {comm.name!r}: of processes "
                    f"{list(self._known[comm.name])} and of {list(comm.processes)}."
                )

    def _introduce(self, comm: Group) -> None:
        outside = [p for p in comm.processes if not 0 <= p < self.processes]
        if outside:
            raise errors.CommunicatorError(
                f"communicator {comm.name!r} names processes {outside}, but this world has "
                f"{self.processes}; communicators of another world cannot be used."
            )
        if engine.available():
            engine.load().add_communicator(comm.name, list(comm.processes))
        self._known[comm.name] = comm.processes
        config.logger.info("communicator %r of processes %s", comm.name, list(comm.processes))

    def require_reach(self) -> None:
        if self.unreachable:
            raise errors.EngineUnavailableError(self.unreachable)
