"""Backends that programs register, and schedules of registered algorithms."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

from jaxccomp import codecs, errors
from jaxccomp._call import Call, has_row_per_rank, result_shape
from jaxccomp._native import algorithms, engine
from jaxccomp._native.registry import Registry
from jaxccomp._primitives import composed
from jaxccomp.comm import Communicator

# --- Backends -------------------------------------------------------------------------------------

Array = Any
T = TypeVar("T")

OWN = ("auto", "native", "mpi", "xla")
# The operations that a registered backend may have: with one operand, one result, and a shape that
# follows from the call. Only this package's backends have messages between two ranks, which need
# matching, and ragged_alltoall, which needs packing.
OPERATIONS = (
    *("bcast", "allreduce", "reduce", "allgather", "gather", "scatter", "reduce_scatter"),
    *("alltoall", "allgatherv", "gatherv", "scatterv", "reduce_scatterv", "alltoallv"),
    *("permute", "scan", "exscan"),
)


@dataclasses.dataclass(frozen=True)
class BackendCall:
    """The operation that a backend's function must run on its operand.

    Attributes:
      operation: such as "allreduce".
      size: the number of ranks, in each group.
      axis_names: of the surrounding shard_map, pmap or vmap; empty between processes.
      axis_index_groups: as in `jax.lax`, or None.
      comm: the communicator of processes, or None along axes.
      op: "sum", "mean", "prod", "min", "max", "and", "or" or "xor"; empty without a reduction.
      root: of rooted operations, else -1.
      counts: for v-variants the rows of each rank, or the flat matrix source by destination.
      pairs: of "permute": (source, destination) by rank.
      reverse: of a scan: whether it begins at the last rank.
      result_shape: the shape that the result must have.
    """

    operation: str
    size: int
    axis_names: tuple[Hashable, ...]
    axis_index_groups: tuple[tuple[int, ...], ...] | None
    comm: Communicator | None
    op: str
    root: int
    counts: tuple[int, ...]
    pairs: tuple[tuple[int, int], ...]
    reverse: bool
    result_shape: tuple[int, ...]


Function = Callable[[Array, BackendCall], Array]


@dataclasses.dataclass(frozen=True)
class Backend:
    """A registered backend.

    Attributes:
      name: for ``backend=``.
      functions: by operation.
      communicators: whether it supports calls between processes.
      source: the module and name of its object.
    """

    name: str
    functions: Mapping[str, Function]
    communicators: bool
    source: str


BACKENDS: Registry[Backend] = Registry("backend", lambda scope: OWN)


def register_backend(name: str) -> Callable[[T], T]:
    """Registers an object whose functions run operations with ``backend=name``.

    The object, such as a class or a module, has a function for each supported operation, with the
    operation's name: ``allreduce(x, call) -> y`` and so on, for one array and a `BackendCall`. A
    class only holds the functions, and is never instantiated. The functions are traced in place of
    the operation, for each leaf of a pytree: they are written in `jax.numpy`, with collectives of
    `jax.lax` or of another package.

    Operations: bcast, allreduce, reduce, allgather, gather, scatter, reduce_scatter, alltoall,
      their v-variants, permute (``ppermute``, and ``sendrecv`` along an axis), scan, exscan. Shapes
      are the ones of `jaxccomp.ops`: the result has ``call.result_shape`` and the dtype of ``x``.
      Only the root's result of ``reduce`` and ``gather`` is used; other ranks get zeros. With a
      codec an operation is composed of the backend's own alltoall, allgather, bcast and so on,
      which send the encoded values; the codec must have a fixed rate. A derivative uses the
      operation's transpose: for ``bcast`` the backend needs ``reduce``.

    On the wire: the functions' messages. The engine does not match or compare these calls between
    ranks, has no deadline for them, and does not count them in `jaxccomp.stats`. docs/extending.md
    has the requirements for a backend.

    Args:
      name: the value for ``backend=``; characters a to z, 0 to 9 and ``_``. If the object has
        ``communicators = True``, it also runs calls between processes, and ``call.comm`` is the
        communicator.

    Raises:
      NameTakenError: when the name is taken or invalid.
      BackendError: when the object has no operation; from operations, when it lacks one, or returns
        another shape or dtype.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jax.sharding import Mesh, PartitionSpec
      >>> @jaxccomp.register_backend("gathering")
      ... class Gathering:
      ...     '''Sums what all ranks have gathered.'''
      ...     def allreduce(x, call):
      ...         return jax.lax.all_gather(x, call.axis_names).sum(0).astype(x.dtype)
      >>> total = jax.shard_map(
      ...     lambda x: jaxccomp.allreduce(x, axis_name="i", backend="gathering"),
      ...     mesh=Mesh(jax.devices()[:1], ("i",)),
      ...     in_specs=PartitionSpec("i"),
      ...     out_specs=PartitionSpec("i"),
      ...     check_vma=False,
      ... )
      >>> total(jnp.arange(3.0)).tolist()
      [0.0, 1.0, 2.0]
    """

    def register(functions: T) -> T:
        own = getattr(functions, "__qualname__", getattr(functions, "__name__", repr(functions)))
        source = f"{getattr(functions, '__module__', '')}.{own}".lstrip(".")
        found = {each: getattr(functions, each, None) for each in OPERATIONS}
        usable = {each: function for each, function in found.items() if callable(function)}
        if not usable:
            raise errors.BackendError(
                f"backend {name!r}: {source} has no operation; it may have "
                f"{errors.listed(OPERATIONS)}."
            )
        communicators = bool(getattr(functions, "communicators", False))
        BACKENDS.add(Backend(name, usable, communicators, source))
        return functions

    return register


def check(backend: Backend, operation: str, codec: str, *, along_axis: bool) -> None:
    """Check that a backend has an operation.

    With a codec, the call is composed of other operations, which are checked when they run.

    Raises:
      BackendError: when the operation is missing; the text lists the backend's operations.
    """
    if operation not in OPERATIONS:
        raise errors.BackendError(
            f"{operation} has no backend={backend.name!r}: registered backends may have "
            f'{errors.listed(OPERATIONS)}. Leave backend="auto".'
        )
    if not along_axis and not backend.communicators:
        raise errors.BackendError(
            f"{operation}: backend={backend.name!r} communicates only along an axis: give "
            'axis_name=, or leave backend="auto" to communicate between processes.'
        )
    if codecs.is_raw(codec):
        _function(backend, operation)


def is_composed(call: Call) -> bool:
    """Return whether a call is composed of other calls, because backends have no codecs."""
    return not codecs.is_raw(call.codec) or call.has_ref or call.feedback


def run(call: Call, operands: Sequence[Array]) -> list[Array]:
    """Run ``call`` by its backend, or as a composition of the backend's raw operations."""
    if is_composed(call):
        return composed.run(call, operands, composed.by_first_stage(call.codec))
    backend = BACKENDS.find(call.backend)
    assert backend is not None
    function = _function(backend, call.collective)
    return [_checked(backend, call, x, function) for x in operands]


def _function(backend: Backend, operation: str) -> Function:
    function = backend.functions.get(operation)
    if function is None:
        raise errors.BackendError(
            f"backend {backend.name!r} has no {operation}, which this call, its codec or its "
            f"derivative needs; it has {errors.listed(backend.functions)}."
        )
    return function


def _checked(backend: Backend, call: Call, x: Array, function: Function) -> Array:
    shape = result_shape(call, x.shape)
    result = function(x, _described(call, shape))
    given = getattr(result, "shape", None), getattr(result, "dtype", None)
    if given != (shape, x.dtype):
        raise errors.BackendError(
            f"backend {backend.name!r}: {call.collective} of {x.dtype}{list(x.shape)} must return "
            f"{x.dtype}{list(shape)}, but {backend.source} returned {given[1]} of shape "
            f"{given[0]}."
        )
    return result


def _described(call: Call, shape: tuple[int, ...]) -> BackendCall:
    return BackendCall(
        operation=call.collective,
        size=call.size,
        axis_names=call.axes,
        axis_index_groups=call.groups,
        comm=call.comm,
        op=call.reduce_op,
        root=call.root,
        counts=call.counts,
        pairs=tuple(zip(call.pairs[::2], call.pairs[1::2], strict=True)),
        reverse=call.reverse,
        result_shape=shape,
    )


# --- Algorithms, whose schedules are built when a call is lowered ---------------------------------

# The alignment of tensors in a block (kBlockAlign in csrc/collective/schedule.h).
_ALIGN = 64


def algorithm_of(call: Call, avals: Sequence[Any]) -> str:
    """Return the call's algorithm for the engine.

    Args:
      call: as lowered for the engine.
      avals: shapes and dtypes of the operands to send.

    Raises:
      ScheduleError: when the schedules of a registered algorithm are wrong or cannot be built.
    """
    if algorithms.find(call.collective, call.algorithm) is None:
        return call.algorithm
    block_bytes = 0
    for aval in avals:
        shape = aval.shape[1:] if has_row_per_rank(call) else aval.shape
        if not all(isinstance(size, int) for size in shape):
            raise errors.ScheduleError(
                f"{call.collective}: algorithm={call.algorithm!r} is registered by the program, "
                f"and its schedules need static shapes, not {aval.shape}. Export the program with "
                'static shapes, or with algorithm="auto".'
            )
        block_bytes = -(-block_bytes // _ALIGN) * _ALIGN + math.prod(shape) * aval.dtype.itemsize
    problem = algorithms.Problem(
        call.size,
        block_bytes,
        root=max(call.root, 0),
        encoded=_encodes_any(call, avals),
        feedback=call.feedback,
        reverse=call.reverse,
    )
    return algorithms.for_engine(call.collective, call.algorithm, problem)


def _encodes_any(call: Call, avals: Sequence[Any]) -> bool:
    if call.codec == "raw":
        return False
    supported = set(engine.load().describe_codec(call.codec)["dtypes"])
    return not supported.isdisjoint(aval.dtype.name for aval in avals)
