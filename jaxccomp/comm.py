"""Communicators, and `init`, which connects this process to the others.

``init`` detects ``jax.distributed``, MPI, or neither, and passes rank and size to the engine. It is
collective. The first operation calls it; call it near the start of a program to make the time
explicit.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import zlib
from functools import partial
from typing import Any

import jax

from jaxccomp import config, errors
from jaxccomp._native import platforms
from jaxccomp._runtime import join as _join
from jaxccomp._runtime import mpi as _mpi
from jaxccomp._runtime import peer_info
from jaxccomp._runtime import world as _world

__all__ = [
    "Communicator",
    "hosts",
    "init",
    "is_initialized",
    "world",
]


@dataclasses.dataclass(frozen=True)
class Communicator:
    """An ordered group of processes; equal by value, so it may be a static argument of ``jit``.

    Attributes:
      name: equal on all members; messages carry it.
      processes: the members' ranks in the world, in the order of their ranks here.
      order: "spmd": all members run the same program, and operations match by call site.
        "program": operations match in the order in which each member runs them, as in MPI.
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

    def __repr__(self) -> str:
        # Does not join other processes: the rank is None before `init`, and on non-members.
        process = None if _state is None else _state.process
        rank = self.processes.index(process) if process in self.processes else None
        order = "" if self.order == "spmd" else f", order={self.order!r}"
        return f"Communicator(name={self.name!r}, rank={rank}, size={self.size}{order})"

    @property
    def size(self) -> int:
        """The number of processes."""
        return len(self.processes)

    @property
    def rank(self) -> int:
        """This process's rank in the communicator."""
        if _state is None:
            init()
        assert _state is not None
        process = _state.process  # works in a forked child, too
        if process not in self.processes:
            raise errors.CommunicatorError(
                f"process {process} of the world is not a member of communicator {self.name!r} "
                f"(processes {list(self.processes)}); guard the call with "
                "`if jaxccomp.world().rank in comm.processes`."
            )
        return self.processes.index(process)

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Splits the members into groups by ``color``, as MPI_Comm_split. Collective.

        Args:
          color: members with the same number form a group; None: in no group.
          key: orders the ranks of the new group; ties keep the order of this communicator.

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
        state = _joined()
        state.known(self)
        # Freed names are not used again, so all members must know which names any member has freed.
        freed = state.freed_groups(self.name)
        table = state.share(self, (-1 if color is None else color, key, freed))
        # Every rank counts, also with color None, so later names are equal on all ranks. Repeating
        # a split gives an equal communicator, so programs are not recompiled.
        serial = state.serial(self.name, table)
        if color is None:
            return None
        members = sorted((row[1], rank) for rank, row in enumerate(table) if row[0] == color)
        processes = tuple(self.processes[rank] for _, rank in members)
        return _known(Communicator(f"{self.name}/{color}:{serial}", processes, self.order))

    def shrink(self, *, timeout_seconds: float | None = None) -> Communicator:
        """Returns a communicator of the surviving members, in the same order.

        All survivors call it together, after an error that names a lost member. Members that have
        ended, failed or died are left out. It works as MPIX_Comm_shrink of MPI's fault tolerance
        (ULFM) with one exception: the result may contain a member that is lost at the very end; the
        next operation then fails on all members. Processes that joined by a coordinator decide by
        consensus, so at most one part of a partitioned network continues.

        Shrinking the world replaces it (`jaxccomp.world`). Pass communicators to jitted functions
        as static arguments: a function that was traced with the old world still uses it.

        Args:
          timeout_seconds: how long to wait for the other survivors, which may still be in an
            operation with a lost member. Default: the option ``init_timeout_seconds``.

        Returns:
          A communicator with a message space of its own; each call returns a new one.

        Raises:
          InitializationError: when a live member has not called `shrink` in time.
          CutOffError: when this process is not in the surviving majority, because it cannot reach
            the others, or the others have removed it.

        Example:
          >>> import jaxccomp
          >>> jaxccomp.world().split(0).shrink().size == jaxccomp.world().size
          True
        """
        state = _joined()
        state.known(self)
        make = partial(Communicator, order=self.order)
        return _succeeds(self, state.shrink(self, make, timeout_seconds))

    def admit(self, group: str = "world", *, timeout_seconds: float | None = None) -> Communicator:
        """Returns a communicator of the members and all processes that wait to join them.

        All members call it together, for instance once a step. If no process waits, each member
        sends one small message. Members keep their ranks; new processes get the ranks after them,
        and have no values yet: see `jaxccomp.sync.replicate`.

        Admitting processes to the world replaces the world (`jaxccomp.world`) on all members.

        Args:
          group: the name that waiting processes have passed to ``jaxccomp.init(join=...)``.
          timeout_seconds: how long to wait for the other members. Default: the option
            ``init_timeout_seconds``.

        Returns:
          A communicator with a message space of its own; this one itself if no process waits.

        Raises:
          CommunicatorError: if processes have not joined by ``jaxccomp.init(coordinator=...)``.
          InitializationError: when a member has not called `admit` in time, or is lost.

        Example:
          >>> import jaxccomp
          >>> comm = jaxccomp.world()
          >>> for step in range(1000):                                       # doctest: +SKIP
          ...     comm = comm.admit()
        """
        state = _joined()
        state.known(self)
        if timeout_seconds is None:
            timeout_seconds = config.get("init_timeout_seconds")
        make = partial(Communicator, order=self.order)
        if state.memberships is None:
            raise errors.CommunicatorError(
                "processes join while others run only where these have met by "
                "jaxccomp.init(coordinator=...): neither MPI nor jax.distributed knows of later "
                "ones."
            )
        return _succeeds(self, state.memberships.admit(self, group, make, timeout_seconds))

    def ordered(self) -> Communicator:
        """Returns a communicator of the same members that matches operations in program order.

        Use it if ranks run different programs. Each jitted call then has an ordered JAX effect,
        which costs a few hundred microseconds.
        """
        return dataclasses.replace(self, order="program")

    def duplicate(self, name: str) -> Communicator:
        """Returns a communicator of the same members with its own message space; not collective.

        Ranks stay the same. Messages on it never match messages on this communicator, or on a
        duplicate of another name, so a library can separate its messages from the program's.

        Args:
          name: the same on all members. The same name again gives the same communicator.

        Returns:
          The duplicate; its name is this communicator's name, a slash and ``name``.

        Raises:
          InvalidArgumentError: when ``name`` is not a string, is empty, or has a "/" or a ":".

        Example:
          >>> import jaxccomp
          >>> jaxccomp.world().duplicate("my_library").name
          'world/my_library'
        """
        if not isinstance(name, str) or not name or "/" in name or ":" in name:
            raise errors.InvalidArgumentError(
                f"the name of a duplicate is a text that is not empty, without '/' and ':', which "
                f"names of groups made by split() have; not {name!r}."
            )
        _joined().known(self)
        return _known(Communicator(f"{self.name}/{name}", self.processes, self.order))

    def free(self) -> None:
        """Frees this communicator, here and in the engine; not collective.

        Each member calls it when it no longer needs the communicator. Later operations on the
        communicator raise an error, here and on members that wait for this process. The name is not
        used again. The ``ordered()`` form has the same name and is freed with it.

        Raises:
          CommunicatorError: for the world, and while this process runs an operation on it.

        Example:
          >>> import jaxccomp
          >>> group = jaxccomp.world().split(0)
          >>> group.free()
        """
        _joined().free(self)

    @classmethod
    def from_mpi4py(cls, comm: Any) -> Communicator:
        """Returns the communicator for an mpi4py intra-communicator.

        Each MPI communicator has its own message space here as well: messages sent on one are never
        received on its duplicate. The first call is collective over ``comm``, since its members
        negotiate a name; later calls look the name up. COMM_WORLD is the world.

        Messages are sent on a duplicate of COMM_WORLD, not on ``comm`` itself.

        Args:
          comm: an intra-communicator of mpi4py; all its members call this.

        Raises:
          CommunicatorError: for a communicator that cannot be used, with the reason.
          InitializationError: when members have not called this within ``init_timeout_seconds``.
        """
        return _known(_from_mpi4py(comm))


def _succeeds(before: Communicator, after: Communicator) -> Communicator:
    """Registers ``after`` with the engine; it becomes the world if ``before`` was the world."""
    state = _joined()
    if before.name == state.current[0] and after.name != before.name:
        state.current = (after.name, after.processes, after.order)
    return _known(after)


def _from_mpi4py(comm: Any) -> Communicator:
    state = _joined()
    mpi = state.mpi
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
    if comm == mpi.COMM_WORLD:
        return world()
    # Rank 0 of `comm` numbers the communicators that it leads, so (leader, number) is unique.
    number = _mpi.agreed_number(comm, state.mpi_number, config.get("init_timeout_seconds"))
    return Communicator(f"mpi/{ranks[0]}.{number}", tuple(ranks))


_lock = threading.RLock()
_state: _world.World | None = None
_given: dict[str, Any] = {}  # the arguments of the first `init`
_forked = False  # whether this process was forked after its parent had joined


def _after_fork() -> None:
    global _forked, _lock
    _forked = _state is not None
    _lock = threading.RLock()  # a thread of the parent may hold the inherited lock


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def is_initialized() -> bool:
    """Whether this process has joined."""
    return _state is not None


def init(
    *,
    mpi: str | None = None,
    coordinator: str | None = None,
    rank: int | None = None,
    size: int | None = None,
    join: str | None = None,
    secret: str | None = None,
    timeout_seconds: float | None = None,
) -> Communicator:
    """Joins the other processes. Collective; safe to call from several threads.

    With both ``jax.distributed`` and MPI, ranks are the ranks of the MPI world. With
    ``jax.distributed`` alone, processes meet over its key-value store, and values are sent over
    UCX. Call it after ``jax.distributed.initialize``, since it starts JAX's backend. A second call
    returns at once; it raises an error if its arguments ask for another way to join.

    With ``coordinator``, processes need neither: each runs a JAX program of its own, and values
    are sent over UCX. Then any process may be lost, process 0 as well, and others may join later
    (docs/elastic.md).

    Under MPI each process buffers, for each peer that runs ahead, at most ``early_bytes`` (1 MiB)
    and ``early_messages`` (512) of small messages (less with more than 64 processes; 64 times that
    in total); then the peer waits (docs/sharp_bits.md).

    Args:
      mpi: "auto" joins MPI under an MPI launcher or when the program has initialised MPI;
        "always" and "never" force it. Default: the option ``mpi``.
      coordinator: "host:port" at which process 0 (only) listens; with ``join``, the addresses of
        any members, separated by commas. Default: the option ``coordinator``.
      rank: this process's rank, with ``coordinator``. Default: the launcher's (Slurm, PMI,
        ``python -m jaxccomp run``).
      size: the number of processes, likewise.
      join: the group that this process asks to join; its members admit it by
        `Communicator.admit`. "world", or the name of a `jaxccomp.sync`. Default: the option
        ``join``.
      secret: the job's secret, with ``coordinator``; at least 16 characters, the same for all.
        Default: the environment variable ``JAXCCOMP_SECRET``, which other users of the machine
        cannot read.
      timeout_seconds: how long to wait for the other processes. Default: the option
        ``init_timeout_seconds``.

    Returns:
      The world.

    Raises:
      InvalidArgumentError: for an invalid coordinator, rank, size or secret.
      InitializationError: when processes are missing, mpi4py uses another MPI than the launcher, or
        this process has joined in another way already.
      EngineUnavailableError: when a launcher has started other processes but there is no MPI.
    """
    global _state, _given
    given = {"coordinator": coordinator, "rank": rank, "size": size, "join": join, "secret": secret}
    mode = config.get("mpi") if mpi is None else mpi
    if mode not in ("auto", "always", "never"):
        raise errors.unknown("value of mpi", mode, ("auto", "always", "never"))
    with _lock:
        if _state is not None:
            _refuse_late(mpi, given)
        else:
            default = config.get("init_timeout_seconds")
            timeout = default if timeout_seconds is None else timeout_seconds
            if config.get("check_launches"):
                # Synchronous dispatch: the Python stack shows the call site of each launch.
                jax.config.update("jax_cpu_enable_async_dispatch", False)
            coordinator = config.get("coordinator") if coordinator is None else coordinator
            if coordinator:
                from jaxccomp._elastic import join as _elastic  # needed only with a coordinator

                _state = _elastic.join(coordinator, rank, size, join, secret, timeout)
            else:
                _refuse_group(rank, size, join, secret)
                _state = _join.join(mode, timeout)
            # A program loaded from a cache is not traced: only the engine sees its communicator.
            _state.known(world())
            _given = given | {"coordinator": coordinator}
        return world()


def _refuse_late(mpi: str | None, given: dict[str, Any]) -> None:
    """Raises if a later call of `init` asks for another way to join than the first one."""
    other = {name: each for name, each in given.items() if each not in (None, _given.get(name))}
    if mpi in ("always", "never") and (mpi == "always") != has_mpi():
        other["mpi"] = mpi
    if other:
        shown = ", ".join(
            f"{name}={'...' if name == 'secret' else repr(each)}" for name, each in other.items()
        )
        raise errors.InitializationError(
            f"init({shown}) comes too late: this process has already joined {_joined().processes} "
            f"process{'es' * (_joined().processes != 1)}, by an earlier init() or its first "
            "operation. Call init() with these arguments before any operation."
        )


def _refuse_group(rank: int | None, size: int | None, join: str | None, secret: str | None) -> None:
    """Raises if an argument of `init` that needs ``coordinator`` is given without it."""
    join = config.get("join") if join is None else join
    given = {"rank": rank, "size": size, "join": join or None, "secret": secret}
    if named := [f"{name}=" for name, value in given.items() if value is not None]:
        raise errors.InvalidArgumentError(
            f"{', '.join(named)} of init() needs coordinator='host:port', which was not given."
        )


def world() -> Communicator:
    """Returns the communicator of all processes; calls `init` if the program has not.

    `Communicator.shrink` and `Communicator.admit` of the world replace it by their result.
    """
    return Communicator(*_joined().current)


def resolve(comm: Communicator | None = None, *, only_meets: bool = False) -> Communicator:
    """Checks ``comm`` (default: the world), registers it with the engine and returns it.

    Joins the other processes first if necessary.

    Args:
      comm: a communicator or None.
      only_meets: whether the engine only synchronises the members and sends no values.

    Raises:
      CommunicatorError: for another type, or a communicator that this process is not in.
      EngineUnavailableError: when values must be sent and no transport is available.
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


def xla_policy() -> str:
    """Return the rules of the option ``xla_policy``, which may name a file."""
    return peer_info.xla_policy_text()


def regrouped(comm: Communicator, processes: tuple[int, ...], epoch: str = "") -> Communicator:
    """Returns a communicator of these members of ``comm``, as input for `Communicator.shrink`.

    `shrink` and `Communicator.admit` work on it even if members pass different processes.

    Args:
      comm: a communicator of the group.
      processes: the processes.
      epoch: distinguishes attempts with the same processes.
    """
    number = zlib.crc32(repr((processes, epoch)).encode())
    name = f"{_world.original_name(comm.name)}/members-{number:08x}.all"
    return Communicator(name, processes, comm.order)


def taken_in(group: str) -> Communicator | None:
    """Returns the communicator of the group that this process has joined, or None.

    Returns each communicator once; the caller owns it.
    """
    state = _joined()
    if state.joined_group != group:
        return None
    state.joined_group = ""
    return world()


def participants(
    comm: Communicator,
    name: str,
    done: int,
    rule: tuple[int, float],
    wait_for_all: bool,
    timeout_seconds: float | None,
) -> Any:
    """Returns the members of the next step, as decided by the first member."""
    timeout = config.get("timeout_seconds") if timeout_seconds is None else timeout_seconds
    state = _joined()
    if state.memberships is None and comm.size > 1:
        raise errors.CommunicatorError(
            "a quorum, which goes on without late members, needs a group that was started by "
            "jaxccomp.init(coordinator=...): over MPI and jax.distributed members cannot agree."
        )
    from jaxccomp._elastic import quorum

    quorum_rule = quorum.Rule(*rule)
    return quorum.participants(state, comm, name, done, quorum_rule, wait_for_all, timeout)


def waiting(group: str) -> int:
    """Returns how many processes wait at this process to join the group."""
    memberships = _joined().memberships
    return 0 if memberships is None else memberships.waiting(group)


def why_unreachable() -> str:
    """Returns why no transport reaches other processes; empty if one does or none is needed."""
    return _joined().unreachable


def has_mpi() -> bool:
    """Returns whether the processes have joined by MPI, so MPI's collectives are available."""
    return _joined().mpi is not None


def hosts() -> tuple[int, ...]:
    """Returns, for each rank of the world, the lowest rank on the same host.

    Example:
      >>> import jaxccomp
      >>> jaxccomp.comm.hosts()[0]
      0
    """
    return _joined().hosts


def planner() -> _world.Planner | None:
    """Returns the planner of the profile that all ranks share; None without a profile."""
    return _joined().planner


def plans() -> _world.Plans | None:
    """Returns the pinned plans that all ranks share; None without any."""
    return _joined().plans


def process_numbers() -> dict[int, int]:
    """Returns the rank in the world for each of JAX's process indices."""
    return _joined().process_of


def why_no_cuda() -> str:
    """Returns why the engine cannot use GPUs, or ""; the same on all ranks with GPUs."""
    return _joined().no_cuda or platforms.why_no_cuda()


def all_have_cuda() -> bool:
    """Returns whether the engine's CUDA library is available on all processes.

    Does not call `init`; with several processes it is False before they have joined.
    """
    if platforms.why_no_cuda():
        return False
    if jax.process_count() == 1:
        return True
    return _state is not None and not _state.unreachable and not _state.no_cuda


def _known(comm: Communicator) -> Communicator:
    _joined().known(comm)
    return comm


def _joined() -> _world.World:
    if _forked:
        raise errors.EngineUnavailableError(
            "this process was forked off a rank, and is none itself: it cannot communicate. Start "
            "processes that do with mpiexec, and helpers with "
            'multiprocessing.get_context("spawn").'
        )
    if _state is None:
        init()
    assert _state is not None
    return _state
