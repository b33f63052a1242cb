"""Communicators, and how a process joins the others.

``init`` looks at what is there - ``jax.distributed``, MPI, or neither - and tells the engine its
place. Operations call it on first use; calling it near the start of a program makes the moment,
which is collective, explicit.
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
from jaxccomp._bootstrap import join as _join
from jaxccomp._bootstrap import membership as _membership
from jaxccomp._bootstrap import mpi as _mpi
from jaxccomp._bootstrap import parameters as _parameters
from jaxccomp._bootstrap import quorum as _quorum
from jaxccomp._bootstrap import world as _world
from jaxccomp._native import cuda


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
        if _state is None:
            init()
        assert _state is not None
        process = _state.process  # a forked child may ask, too
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
        state = _joined()
        state.known(self)
        # Of members that have freed groups of this communicator all hear, as freed names are not
        # used again: they all go on with new ones.
        freed = state.freed_groups(self.name)
        table = state.share(self, (-1 if color is None else color, key, freed))
        # Counted by every rank, also those in no group, so that names agree ever after. The same
        # split made again is the same communicator, so programs are not compiled anew.
        serial = state.serial(self.name, table)
        if color is None:
            return None
        members = sorted((row[1], rank) for rank, row in enumerate(table) if row[0] == color)
        processes = tuple(self.processes[rank] for _, rank in members)
        return _known(Communicator(f"{self.name}/{color}:{serial}", processes, self.order))

    def shrink(self, *, timeout_seconds: float | None = None) -> Communicator:
        """The members that have neither ended nor failed nor died, in the same order.

        Called by all of them together, after an error that names one who is gone. It is
        MPIX_Comm_shrink of MPI's fault tolerance (ULFM), except that the result may have a member
        that is lost in the very end; then the next operation fails on all of them. Processes that
        have met at a coordinator decide by consensus, so two parts never both go on.

        Of the world, it is the world from then on (`jaxccomp.world`). Pass communicators to jitted
        functions as static arguments: those that were traced with the world before still have it.

        Args:
          timeout_seconds: how long to wait for the others, which may still be in an operation with
            those who are gone. Default: the option ``init_timeout_seconds``.

        Returns:
          A communicator with a message space of its own, anew in each call.

        Raises:
          InitializationError: when a member that lives has not come in time.
          CutOffError: when this process is not among a majority that goes on, as it does not reach
            the others, or they have given it up.

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
        """The members, and all processes that wait to join them.

        Called by all members together, for instance once a step; it costs them one small message
        each where nobody waits. Members keep their ranks, and those that join come after them. Who
        joins has no values yet: see `jaxccomp.sync.replicate`.

        Of the world, it is the world from then on (`jaxccomp.world`), as of those that join.

        Args:
          group: what those that wait have asked for (``jaxccomp.init(join=...)``).
          timeout_seconds: how long to wait for the other members. Default: the option
            ``init_timeout_seconds``.

        Returns:
          A communicator with a message space of its own; this one itself where nobody waits.

        Raises:
          CommunicatorError: where processes have not met by ``jaxccomp.init(coordinator=...)``.
          InitializationError: when a member has not come in time, or is gone.

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
        return _succeeds(self, _membership.admit(state, self, group, make, timeout_seconds))

    def ordered(self) -> Communicator:
        """The same members, matching operations in program order.

        For programs that differ between ranks. Each jitted call then carries an ordered JAX
        effect, which costs some hundred microseconds.
        """
        return dataclasses.replace(self, order="program")

    def duplicate(self, name: str) -> Communicator:
        """The same members in the same order, with a message space of its own; not collective.

        Messages on it never meet those on this communicator, or on a duplicate of another name.
        Libraries keep their messages apart from the program's in this way.

        Args:
          name: the same on all members. Whoever gives it again gets the same communicator.

        Returns:
          The duplicate, whose name is this one's, a slash and ``name``.

        Raises:
          InvalidArgumentError: when ``name`` is not a text, is empty, or has a "/" or a ":" in it.

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
        """Forgets this communicator, here and in the engine; not collective.

        Every member frees it when it has no more use for it. Operations on it raise from then on,
        and so do those of members that wait for this one. Its name is not used again; with it goes
        its ``ordered()`` form, which has the same one.

        Raises:
          CommunicatorError: for the world, and while an operation on it is under way here.

        Example:
          >>> import jaxccomp
          >>> group = jaxccomp.world().split(0)
          >>> group.free()
        """
        _joined().free(self)

    @classmethod
    def from_mpi4py(cls, comm: Any) -> Communicator:
        """The communicator of an mpi4py intra-communicator.

        Each MPI communicator has a message space of its own here, too: what a program sends on one
        is never received on its duplicate. Collective over ``comm`` the first time, as its members
        agree on a name for it; from then on it is known by ``comm``. COMM_WORLD is the world.

        Messages do not travel on ``comm`` itself but on a duplicate of COMM_WORLD.

        Args:
          comm: any communicator of mpi4py with one group, all of whose members call this.

        Raises:
          CommunicatorError: for one that cannot be used here, with the reason.
          InitializationError: when members have not come after ``init_timeout_seconds``.
        """
        return _known(_from_mpi4py(comm))


def _succeeds(before: Communicator, after: Communicator) -> Communicator:
    """``after``, known to the engine; and the world where ``before`` has been."""
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
    # Its rank 0 counts those that it leads, so that no two have the same pair of numbers.
    number = _mpi.agreed_number(comm, state.mpi_number, config.get("init_timeout_seconds"))
    return Communicator(f"mpi/{ranks[0]}.{number}", tuple(ranks))


_lock = threading.RLock()
_state: _world.World | None = None
_forked = False  # off a process that had joined


def _after_fork() -> None:
    global _forked, _lock
    _forked = _state is not None
    _lock = threading.RLock()  # a thread that only the parent has may hold it


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
    """Joins the processes that are there; called by all of them, in any number of threads.

    Under ``jax.distributed`` and MPI both, ranks are those of the MPI world. Under
    ``jax.distributed`` alone processes meet over its key-value store, and values travel through
    UCX. Call it after ``jax.distributed.initialize``, since it starts JAX's backend. A second call
    returns at once.

    With ``coordinator``, processes need neither: each runs a JAX program of its own, and values
    travel through UCX. Then any process may be lost, process 0 as well, and others may come later
    (docs/elastic.md).

    Under MPI each process keeps of each other one that runs ahead of it at most ``early_bytes``
    (1 MiB) and ``early_messages`` (512) of small messages, less with more than 64 processes, and
    64 times that in all; then the other one waits (docs/sharp_bits.md).

    Args:
      mpi: "auto" joins MPI under an MPI launcher or when the program has initialised MPI;
        "always" and "never" say what they do. Default: the option ``mpi``.
      coordinator: "host:port" where process 0 listens, and nobody else; with ``join``, where any
        members do, separated by commas. Default: the option ``coordinator``.
      rank: of this process, with ``coordinator``. Default: what a launcher says (Slurm, PMI,
        ``python -m jaxccomp run``).
      size: how many processes meet, likewise.
      join: the group that this process asks to be taken into, once its members call
        `Communicator.admit`: "world", or the name of a `jaxccomp.sync`. Default: the option
        ``join``.
      secret: the job's, with ``coordinator``; at least 16 characters, the same for all. Default:
        the environment variable ``JAXCCOMP_SECRET``, which other users of the machine do not see.
      timeout_seconds: how long to wait for the other processes. Default: the option
        ``init_timeout_seconds``.

    Returns:
      The world.

    Raises:
      InvalidArgumentError: for a coordinator, rank, size or secret that cannot be.
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
            parameters = _parameters.from_options(coordinator, rank, size, join, secret)
            _state = _join.join(mode, timeout_seconds, parameters)
            # A program that is loaded, and not traced, names it to the engine alone.
            _state.known(world())
        return world()


def world() -> Communicator:
    """All processes; joins them if the program has not.

    After `Communicator.shrink` or `Communicator.admit` of the world it is what these have returned.
    """
    return Communicator(*_joined().current)


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


def regrouped(comm: Communicator, processes: tuple[int, ...], epoch: str = "") -> Communicator:
    """These processes, on their way from ``comm`` to a group that all of them know.

    They agree on the group by `Communicator.shrink`, also where some know of others than these, or
    by `Communicator.admit`.

    Args:
      comm: a communicator of the group.
      processes: the processes.
      epoch: tells one attempt from another one, where all know the same processes.
    """
    number = zlib.crc32(repr((processes, epoch)).encode())
    name = f"{_world.original_name(comm.name)}/members-{number:08x}.all"
    return Communicator(name, processes, comm.order)


def taken_in(group: str) -> Communicator | None:
    """The communicator of the group that this process has joined; None where it has joined none.

    Told once: who asks goes on with it.
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
) -> _quorum.Decision:
    """The members that take part in the next step, as the first one decides."""
    if timeout_seconds is None:
        timeout_seconds = config.get("timeout_seconds")
    state, quorum = _joined(), _quorum.Rule(*rule)
    return _quorum.participants(state, comm, name, done, quorum, wait_for_all, timeout_seconds)


def waiting(group: str) -> int:
    """How many processes wait at this one to be taken into that group."""
    return _membership.waiting(_joined(), group)


def why_unreachable() -> str:
    """Why the engine moves no values to other processes; empty when it does or there are none."""
    return _joined().unreachable


def has_mpi() -> bool:
    """Whether MPI has joined the processes, so that there are its own collectives."""
    return _joined().mpi is not None


def hosts() -> tuple[int, ...]:
    """By rank of the world, a number for its host: the lowest rank there.

    Example:
      >>> import jaxccomp
      >>> jaxccomp.comm.hosts()[0]
      0
    """
    return _joined().hosts


def planner() -> _world.Planner | None:
    """What chooses by the profile that all ranks share; None without one."""
    return _joined().planner


def plans() -> _world.Plans | None:
    """The pinned plans that all ranks share; None without any."""
    return _joined().plans


def process_numbers() -> dict[int, int]:
    """Ranks in the world by JAX's process index."""
    return _joined().process_of


def why_no_cuda() -> str:
    """Why the engine cannot be used on GPUs; empty when it can. Alike on all ranks with GPUs."""
    return _joined().no_cuda or cuda.why_missing()


def all_have_cuda() -> bool:
    """Whether the engine's CUDA library is there for all processes of JAX's programs.

    Joins nobody: of several processes it is not known before they have joined.
    """
    if cuda.why_missing():
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
