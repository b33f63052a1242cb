"""What a process knows of the others once it has joined them."""

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
from jaxccomp._bootstrap import mpi as _mpi
from jaxccomp._native import engine
from jaxccomp.schedules import Planner
from jaxccomp.schedules._plans import Plans

NAME = "world"
# Groups made by split() that are found again when the same split is made once more, for each
# communicator: the last ones.
_REMEMBERED_SPLITS = 64


class Group(Protocol):
    """What a ``Communicator`` is here."""

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
    """How processes exchange rows of integers without MPI."""

    def share(
        self, members: Sequence[int], rank: int, name: str, row: Sequence[int], timeout: float
    ) -> Any:
        """All members' rows, in their order."""
        ...

    def stop(self) -> None:
        """Ends what runs for it."""
        ...


def original_name(name: str) -> str:
    """What a communicator was called before members were lost, or others taken in."""
    head, mark, tail = name.rpartition("/members-")
    return head if mark and "/" not in tail else name


Gone = dict[int, tuple[str, bool]]  # World.gone


class World:
    """What ``init`` found: this process's place, and the ways to the others."""

    def __init__(self, process: int, processes: int, mpi: Any = None, comms: Sequence[Any] = ()):
        self.process = process
        self.processes = processes
        self.out_of_band: OutOfBand | None = None  # without MPI
        self.peers: Any = None  # where processes may go and come (group.PeerTable)
        # How these agree on those that are left: their name and processes, from the name and the
        # processes that they had, and seconds to wait (membership.shrink).
        self.regroup: Callable[[str, tuple[int, ...], float], tuple[str, tuple[int, ...]]] | None
        self.regroup = None
        self.memberships: Any = None  # the consensus on them (membership.Memberships)
        self.joined_group = ""  # the one that has taken this process in, until it goes on with it
        # The communicator that operations take by default: name, processes and order.
        self.current: tuple[str, tuple[int, ...], str] = (NAME, tuple(range(processes)), "spmd")
        self.mpi = mpi  # mpi4py's MPI module, when joined
        # Duplicates of COMM_WORLD: one for the engine, whose thread receives whatever arrives
        # there, one for the Python side, and one for MPI's collectives (backend="mpi").
        self.engine_comm, self.exchange, self.collectives = comms or (None, None, None)
        self.hosts = tuple(range(processes))  # by process, the lowest one of its host
        self.process_of = {each: each for each in range(processes)}  # by JAX's process index
        self.planner: Planner | None = None  # chooses by the profile that all ranks share
        self.plans: Plans | None = None  # pinned, the same on all ranks
        self.unreachable = ""  # why the engine cannot move values to the other processes
        self.no_cuda = ""  # why the engine is not used on GPUs, if another process is the reason
        self._lock = threading.Lock()
        self._known: dict[str, tuple[int, ...]] = {}
        self._freed: set[str] = set()  # names that are not used again
        self._freed_groups: dict[str, int] = {}  # how many of each communicator's, by its name
        # By communicator: the number of each split, by a digest of all its members' rows.
        self._serials: dict[str, OrderedDict[bytes, int]] = {}
        self._next_serial: dict[str, int] = {}
        self._mpi_numbers = itertools.count(1)
        # By name and members: how many shrinks have ended with these.
        self._shrinks: dict[tuple[str, tuple[int, ...]], int] = {}

    def mpi_number(self) -> int:
        """A number for an MPI communicator that this process is the first member of."""
        return next(self._mpi_numbers)

    def share(
        self, comm: Group, row: Sequence[int], timeout_seconds: float | None = None
    ) -> list[tuple[int, ...]]:
        """All members' rows; they are waited for ``init_timeout_seconds`` by default."""
        if comm.size == 1:
            return [tuple(row)]
        if timeout_seconds is None:
            timeout_seconds = config.get("init_timeout_seconds")
        rows = self._share(comm.processes, comm.rank, comm.name, row, timeout_seconds)
        return [tuple(map(int, each)) for each in rows]

    def share_with_all(self, timeout_seconds: float, row: Sequence[int]) -> Sequence[Sequence[int]]:
        """All processes' rows; called by all together."""
        if self.processes == 1:
            return [row]
        everybody = tuple(range(self.processes))
        return self._share(everybody, self.process, NAME, row, timeout_seconds)

    def _share(
        self, members: Sequence[int], rank: int, name: str, row: Sequence[int], timeout: float
    ) -> Sequence[Sequence[int]]:
        if self.out_of_band is not None:
            return self.out_of_band.share(members, rank, name, row, timeout)
        self.require_reach()
        look = partial(self._why_incomplete, members, name)
        return _mpi.share(self.exchange, members, rank, name, row, timeout, look)

    def shrink(
        self,
        comm: Group,
        make: Callable[[str, tuple[int, ...]], G],
        timeout_seconds: float | None = None,
    ) -> G:
        """A group of the members that live, which all of these have agreed on.

        Args:
          comm: whose members.
          make: the group of that name and these processes.
          timeout_seconds: as `share` has it.
        """
        before = original_name(comm.name)
        if timeout_seconds is None:
            timeout_seconds = config.get("init_timeout_seconds")
        if self.regroup is not None:
            return make(*self.regroup(comm.name, comm.processes, timeout_seconds))
        while True:
            gone = self.gone()
            processes = tuple(each for each in comm.processes if each not in gone)
            absent = zlib.crc32(repr(processes).encode())
            # Counted by its members; with other members it has another name.
            number = self._shrinks.get((before, processes), 0)
            group = make(f"{before}/members-{absent:08x}:{number}", processes)
            try:
                self.share(group, (), timeout_seconds)
            except errors.InitializationError:
                if not (self.gone().keys() - gone.keys()).intersection(processes):
                    raise
                continue
            self._shrinks[before, processes] = number + 1
            return group

    @staticmethod
    def gone() -> Gone:
        """Processes that have ended, failed or died.

        Returns:
          By process: why, and whether it is dead.
        """
        return engine.load().find_gone() if engine.available() else {}

    def why_gone(self, processes: Sequence[int]) -> str:
        """Why some of these will not come any more; empty when all may."""
        reasons = {each: why for each, (why, _) in self.gone().items()}
        if engine.available():
            reasons = engine.load().find_reported() | reasons
        return "; ".join(why for each, why in reasons.items() if each in processes)

    def _why_incomplete(self, members: Sequence[int], name: str) -> str:
        """Which of these processes have failed or died, and why; empty when none has."""
        why = self.why_gone(members)
        if not why:
            return ""
        return f"the members of communicator {name!r} must all take part in this, but {why}"

    def serial(self, name: str, table: list[tuple[int, ...]]) -> int:
        """The number of the split of communicator ``name`` with these rows, alike on all members.

        They make the same splits in the same order, so all of them forget the same ones.
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
        """How many groups of communicator ``name`` this process has freed."""
        return self._freed_groups.get(name, 0)

    def free(self, comm: Group) -> None:
        """Forgets ``comm``: its name and what the engine holds for it."""
        if comm.name == NAME:
            raise errors.CommunicatorError("the world cannot be freed.")
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
            if ":" in own:  # it comes from split()
                self._freed_groups[parent] = self._freed_groups.get(parent, 0) + 1
            for table in (self._serials, self._next_serial, self._freed_groups):
                table.pop(comm.name, None)

    def _check_not_freed(self, comm: Group) -> None:
        if comm.name in self._freed:
            raise errors.CommunicatorError(
                f"communicator {comm.name!r} has been freed, and its name is not used again: make "
                "another one, by duplicate() with another name, split() or from_mpi4py()."
            )

    def known(self, comm: Group) -> None:
        """Checks ``comm`` and tells the engine about it, once."""
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

    def require_reach(self) -> None:
        if self.unreachable:
            raise errors.EngineUnavailableError(self.unreachable)
