"""What a process knows of the others once it has joined them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Protocol

from jaxccomp import _engine, _mpi, _store, config, errors

NAME = "world"


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


class World:
    """What ``init`` found: this process's place, and the ways to the others."""

    def __init__(self, process: int, processes: int, mpi: Any = None, comms: Sequence[Any] = ()):
        self.process = process
        self.processes = processes
        self.store: _store.Store | None = None  # where processes meet without MPI
        self.mpi = mpi  # mpi4py's MPI module, when joined
        # Duplicates of COMM_WORLD: one for the engine, whose thread receives whatever arrives
        # there, and one for the Python side.
        self.engine_comm, self.exchange = comms or (None, None)
        self.unreachable = ""  # why the engine cannot move values to the other processes
        self.no_loans: list[str] = []  # by process: why it lends this one no memory of its GPUs
        self.no_device_mpi: list[str] = []  # by process: why MPI moves no memory of GPUs there
        self.no_cuda = ""  # why the engine is not used on GPUs, if another process is the reason
        # Why NCCL's communicators along axes are not XLA's.
        self.own_communicators = "the engine is not there"
        self._lock = threading.Lock()
        self._known: dict[str, tuple[int, ...]] = {}
        self._serials: dict[str, dict[Any, int]] = {}

    def share(self, comm: Group, row: tuple[int, int]) -> list[tuple[int, ...]]:
        if comm.size == 1:
            return [row]
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
        if self.store is not None:
            return self.store.share(members, rank, name, row, timeout)
        self.require_reach()
        return _mpi.share(self.exchange, members, rank, name, row, timeout)

    def serial(self, name: str, table: list[tuple[int, ...]]) -> int:
        seen = self._serials.setdefault(name, {})
        return seen.setdefault(tuple(table), len(seen))

    def known(self, comm: Group) -> None:
        """Checks ``comm`` and tells the engine about it, once."""
        with self._lock:
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
        if _engine.available():
            _engine.load().add_communicator(comm.name, list(comm.processes))
        self._known[comm.name] = comm.processes

    def require_reach(self) -> None:
        if self.unreachable:
            raise errors.EngineUnavailableError(self.unreachable)
