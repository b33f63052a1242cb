"""Collective operations, on arrays or whole pytrees, along a named axis or between processes.

Every operation takes any pytree of arrays and returns one of the same structure, in one exchange,
without concatenating leaves. There are two styles:

* inside ``shard_map``, ``pmap`` or ``vmap``: ``axis_name="data"``; ranks are indices along it;
* one process per rank (``mpiexec -n 4 python ...``): ``comm=``, by default the world.

In both, n is the number of ranks. Operations work under ``jit``, ``grad``, ``jvp``, ``vmap``,
``scan``, ``cond``, ``while_loop`` and ``remat``. Data movement, sums and means are linear and have
derivatives of all orders; integer leaves have none. Cotangents are encoded with the codec of the
values, or with ``cotangent_codec``: int8 activations may have exact gradients.

Dtypes: bool, integers (also int4 and int2), float8, float16, bfloat16, float32, float64, complex64
and complex128; operations that only move data also accept typed PRNG keys. Every algorithm computes
sums of floats narrower than float32 in float32, and rounds once. Reductions of float8 send float32
values, raw or encoded. Leaves of dtype float0 (``jax.grad`` with ``allow_int=True``) have no
values: nothing is sent, and the result has float0 leaves.
"""

from __future__ import annotations

from typing import TypeVar, Unpack

from jaxccomp._api.arguments import check_varies, make_call
from jaxccomp._api.error_feedback import allreduce_with_feedback, reduce_scatter_with_feedback
from jaxccomp._api.options import Options, operation
from jaxccomp._api.overlap import Handle, nonblocking
from jaxccomp._api.point_to_point import ANY_SOURCE, ANY_TAG, barrier, recv, send, sendrecv
from jaxccomp._api.pytree import apply
from jaxccomp._api.vector import allgatherv, alltoallv, gatherv, scatterv

__all__ = [
    "ANY_SOURCE",
    "ANY_TAG",
    "Handle",
    "allgather",
    "allgatherv",
    "allreduce",
    "allreduce_with_feedback",
    "alltoall",
    "alltoallv",
    "barrier",
    "bcast",
    "exscan",
    "gather",
    "gatherv",
    "nonblocking",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_with_feedback",
    "scan",
    "scatter",
    "scatterv",
    "send",
    "sendrecv",
]

T = TypeVar("T")


@operation
def bcast(x: T, root: int = 0, *, ref: T | None = None, **options: Unpack[Options]) -> T:
    """Broadcasts the root's values to all ranks.

    On the wire: the root encodes the values once, other ranks forward the encoded values unchanged,
    and each rank receives them once. With a lossy codec the root also returns the decoded values,
    so all ranks have equal results.

    With ``ref`` the codec encodes the difference to values that all ranks already have: the XOR
    for a lossless codec, the arithmetic difference for a lossy one. This helps if few bits change:
    between two training steps, ``"lossless"`` makes bfloat16 weights about 9.7 times smaller, and
    1.5 times without ``ref``. ``"delta"`` models such changes: at a learning rate of 1e-4 it makes
    weights 14 times smaller, at 1e-6 231 times (docs/results/delta.jsonl). Error bounds then apply
    to the difference: with ``"int8"``, 1/252 of the greatest change in a block of 32, plus the
    rounding of the sum.

    Args:
      x: pytree of arrays of any shape, the same on all ranks; only the root's values are used.
      root: the rank whose values are sent.
      ref: pytree of the structure, shapes and dtypes of ``x``, bitwise equal on all ranks, such as
        the result of the last broadcast. It needs a codec. Derivatives ignore it, and tangents are
        sent without a reference. If a checksum shows that a rank's reference differs from the
        root's, nothing is decoded, and this operation or the next one raises
        ``jax.errors.JaxRuntimeError`` on all ranks; the text names the tensor and the ranks.

    Returns:
      Same shapes; the same on all ranks (under ``check_vma``, of invariant type).

    Example:
      >>> params = jaxccomp.bcast(params, root=0)                        # doctest: +SKIP
      >>> params = jaxccomp.bcast(params, root=0, axis_name="data")      # doctest: +SKIP
      >>> params = jaxccomp.bcast(update(params), ref=params,
      ...                         codec="lossless")                      # doctest: +SKIP
    """
    call = make_call("bcast", root=root, has_ref=ref is not None, **options)
    return apply(call, x, ref)


@operation
def allreduce(x: T, op: str = "sum", **options: Unpack[Options]) -> T:
    """Reduces all ranks' values element-wise; all ranks get the result.

    On the wire: one to two times the values per rank, depending on the algorithm. With a lossy
    codec the result is still the same on all ranks.

    Args:
      x: pytree of arrays of any shape, the same on all ranks.
      op: "sum", "mean" (floating and complex types), "prod", "min", "max", and for bool and
        integers "and", "or", "xor". float16 and bfloat16 are summed in float32.

    Returns:
      Same shapes and dtypes; the same on all ranks (under ``check_vma``, of invariant type).

    Example:
      >>> grads = jaxccomp.allreduce(grads, op="mean", codec="bf16")     # doctest: +SKIP
    """
    call = make_call("allreduce", op=op, **options)
    check_varies(call, x)
    return apply(call, x)


@operation
def reduce(x: T, op: str = "sum", root: int = 0, **options: Unpack[Options]) -> T:
    """Reduces all ranks' values element-wise; the root gets the result.

    On the wire: each rank sends its values about once.

    Args:
      x: pytree of arrays of any shape, the same on all ranks.
      op: as for `allreduce`.
      root: the rank that gets the result.

    Returns:
      Same shapes and dtypes; zeros on non-root ranks.

    Example:
      >>> total = jaxccomp.reduce(x, op="sum", root=0)                   # doctest: +SKIP
    """
    return apply(make_call("reduce", op=op, root=root, **options), x)


@operation
def allgather(x: T, *, ref: T | None = None, **options: Unpack[Options]) -> T:
    """Gathers the values of all ranks on all ranks.

    On the wire: each rank receives n - 1 blocks, each encoded once by its owner.

    Args:
      x: pytree of arrays of shape ``s``, the same on all ranks.
      ref: as for `bcast`, with the shapes of the result, such as the result of the last gather. Use
        it for weights of which each rank updates one shard.

    Returns:
      Arrays of shape ``(n, *s)``, row j from rank j; the same on all ranks (under ``check_vma``,
      of invariant type; ``jaxccomp.lax.all_gather`` returns a varying type).

    Example:
      >>> everything = jaxccomp.allgather(x, axis_name="data")           # doctest: +SKIP
      >>> everything = jaxccomp.allgather(update(x), ref=everything,
      ...                                 codec="delta")                 # doctest: +SKIP
    """
    return apply(make_call("allgather", has_ref=ref is not None, **options), x, ref)


@operation
def gather(x: T, root: int = 0, **options: Unpack[Options]) -> T:
    """Gathers the values of all ranks on the root.

    On the wire: the root receives n - 1 blocks.

    Args:
      x: pytree of arrays of shape ``s``, the same on all ranks.
      root: the rank that gets the values.

    Returns:
      Arrays of shape ``(n, *s)``, row j from rank j; zeros on non-root ranks.

    Example:
      >>> rows = jaxccomp.gather(x, root=0)                              # doctest: +SKIP
    """
    return apply(make_call("gather", root=root, **options), x)


@operation
def scatter(x: T, root: int = 0, *, ref: T | None = None, **options: Unpack[Options]) -> T:
    """Sends each rank its row of the root's values.

    On the wire: the root sends n - 1 blocks.

    Args:
      x: pytree of arrays of shape ``(n, *s)``, the same on all ranks; only the root's values are
        used.
      root: the rank whose rows are sent.
      ref: as for `bcast`, with the shapes of ``x``: the rows of the last scatter. Row j must be
        equal on the root and on rank j; rank j ignores the other rows.

    Returns:
      Arrays of shape ``s``: on rank j, row j of the root's array.

    Example:
      >>> mine = jaxccomp.scatter(rows, root=0)                          # doctest: +SKIP
    """
    call = make_call("scatter", root=root, has_ref=ref is not None, **options)
    return apply(call, x, ref)


@operation
def reduce_scatter(x: T, op: str = "sum", **options: Unpack[Options]) -> T:
    """Reduces all ranks' values element-wise; each rank gets its row of the result.

    On the wire: each rank sends n - 1 blocks.

    Args:
      x: pytree of arrays of shape ``(n, *s)``, the same on all ranks.
      op: as for `allreduce`.

    Returns:
      Arrays of shape ``s``: on rank j, row j of the reduction.

    Example:
      >>> shard = jaxccomp.reduce_scatter(grads, axis_name="data")       # doctest: +SKIP
    """
    return apply(make_call("reduce_scatter", op=op, **options), x)


@operation
def alltoall(x: T, **options: Unpack[Options]) -> T:
    """Sends row j to rank j, for all ranks at once.

    On the wire: each rank sends and receives n - 1 blocks.

    Args:
      x: pytree of arrays of shape ``(n, *s)``, the same on all ranks.

    Returns:
      Same shapes; row j is from rank j.

    Example:
      >>> tokens = jaxccomp.alltoall(tokens, axis_name="experts")        # doctest: +SKIP
    """
    return apply(make_call("alltoall", **options), x)


@operation
def scan(x: T, op: str = "sum", **options: Unpack[Options]) -> T:
    """Gives each rank the reduction of the values of all ranks up to and including itself.

    On the wire: each rank sends the values at most about log2(n) times.

    Args:
      x: pytree of arrays of any shape, the same on all ranks.
      op: as for `allreduce`, without "mean".

    Returns:
      Same shapes and dtypes.

    Example:
      >>> upto = jaxccomp.scan(count, axis_name="data")                  # doctest: +SKIP
    """
    return apply(make_call("scan", op=op, **options), x)


@operation
def exscan(x: T, op: str = "sum", **options: Unpack[Options]) -> T:
    """Gives each rank the reduction of the values of the ranks before it.

    On the wire: as `scan`.

    Args:
      x: pytree of arrays of any shape, the same on all ranks.
      op: as for `scan`.

    Returns:
      Same shapes and dtypes; on rank 0 the identity element of ``op`` (0 for "sum", the largest
      value for "min").

    Example:
      >>> offset = jaxccomp.exscan(count, axis_name="data")              # doctest: +SKIP
    """
    return apply(make_call("exscan", op=op, **options), x)
