"""Checks the arguments of an operation at trace time, and makes its `Call`."""

from __future__ import annotations

import functools
import math
import operator
import re
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxccomp import _jax, codecs, config, errors
from jaxccomp import comm as comm_lib
from jaxccomp._call import Call
from jaxccomp._native import algorithms, engine
from jaxccomp._primitives import extensions
from jaxccomp._primitives.extensions import BACKENDS
from jaxccomp.comm import Communicator

# --- Support of MPI's own collectives (backend="mpi") ---------------------------------------------

MPI_COLLECTIVES = (
    *("bcast", "allreduce", "reduce", "allgather", "gather", "scatter"),
    *("reduce_scatter", "alltoall"),
    *("allgatherv", "gatherv", "scatterv", "alltoallv"),
    *("scan", "exscan", "barrier"),
)


def check_mpi_support(
    collective: str, *, codec: str, cotangent_codec: str, algorithm: str, has_ref: bool
) -> None:
    """Raise unless MPI has the operation with these options; MPI has all reductions.

    Args:
      collective: the operation's name.
      codec: canonical.
      cotangent_codec: canonical, or "same".
      algorithm: as given by the user.
      has_ref: whether the user gives ``ref=``.
    """
    if collective not in MPI_COLLECTIVES:
        raise errors.unknown(
            'operation of backend="mpi":',
            collective,
            MPI_COLLECTIVES,
            'For this operation leave backend="auto".',
        )
    if has_ref:
        raise errors.InvalidArgumentError(
            f'{collective}: MPI sends values as they are, so backend="mpi" takes no ref=. '
            'Differences need backend="native" or "auto".'
        )
    for name, given in (("codec", codec), ("cotangent_codec", cotangent_codec)):
        if given != "same" and not codecs.is_raw(given):
            raise errors.InvalidArgumentError(
                f'{collective}: MPI sends values as they are, so backend="mpi" takes {name}=None '
                f'(or "raw"), not {given!r}. Codecs need backend="native", "xla" or "auto".'
            )
    if algorithm != "auto":
        raise errors.unknown(
            f"algorithm of {collective}:",
            algorithm,
            ["auto"],
            'With backend="mpi", MPI chooses the algorithm (its environment variables may set it).',
        )


# --- Arguments of all operations ------------------------------------------------------------------

AxisName = Hashable | Sequence[Hashable]
Groups = Sequence[Sequence[int]]
Ranks = int | None | Sequence[int | None] | Callable[[int], int | None]

REDUCE_OPS = ("sum", "mean", "prod", "min", "max", "and", "or", "xor")
PREFIX_OPS = tuple(op for op in REDUCE_OPS if op != "mean")
# Collectives whose results are the same on all ranks.
_SAME_EVERYWHERE = frozenset({"bcast", "allreduce", "allgather", "allgatherv"})


def make_call(
    collective: str,
    function: str = "",
    /,
    *,
    axis_name: AxisName | None = None,
    comm: Communicator | None = None,
    axis_index_groups: Groups | None = None,
    codec: codecs.CodecLike = None,
    cotangent_codec: codecs.CodecLike = "same",
    backend: str = "auto",
    algorithm: str = "auto",
    op: str | None = None,
    root: int | None = None,
    has_ref: bool = False,
    **others: object,
) -> Call:
    """Return the call that these arguments describe; raise if they are invalid.

    ``function``: the function that the program called, for errors; default: ``collective``.
    """
    name = function or collective
    _refuse(name, others)
    if axis_name is not None and comm is not None:
        raise errors.InvalidArgumentError(
            f"{name}: give axis_name= (inside shard_map, pmap or vmap) or comm= (one process "
            "per rank), not both."
        )
    backend = _backend(backend)
    codec = _codec(collective, codec, has_ref)
    if (registered := BACKENDS.find(backend)) is not None:
        along_axis = axis_name is not None
        moved = "permute" if collective == "sendrecv" and along_axis else collective
        extensions.check(registered, moved, codec, along_axis=along_axis)
    cotangent = "same"
    if cotangent_codec != "same":
        cotangent = codecs.canonical_choice(cotangent_codec)
    if backend == "mpi":
        check_mpi_support(
            collective,
            codec=codec,
            cotangent_codec=cotangent,
            algorithm=algorithm,
            has_ref=has_ref,
        )
    if axis_name is None:
        if axis_index_groups is not None:
            raise errors.InvalidArgumentError(
                f"{collective}: axis_index_groups= goes with axis_name=; for groups of processes "
                "use comm=comm.split(color)."
            )
        if backend == "xla":
            raise errors.InvalidArgumentError(
                f'{collective}: backend="xla" communicates along an axis; give axis_name=, or '
                'leave backend="auto" to communicate between processes.'
            )
        comm = comm_lib.resolve(comm, only_meets=backend not in ("auto", "native"))
        axes: tuple[Hashable, ...] = ()
        groups, size = None, comm.size
    else:
        axes = axes_of(name, axis_name)
        size = math.prod(_jax.axes_in_scope()[axis] for axis in axes)
        any_sizes = collective == "allreduce" and op in ("sum", "min", "max")
        groups, size = _groups(name, axis_index_groups, size, any_sizes)
    return Call(
        collective,
        size,
        axes=axes,
        groups=groups,
        comm=comm,
        reduce_op=_reduce_op(collective, op),
        root=-1 if root is None else rank_in(collective, "root", root, size),
        codec=codec,
        cotangent_codec=cotangent,
        backend=backend,
        algorithm=_algorithm(collective, algorithm, backend, codec),
        invariant=(
            collective in _SAME_EVERYWHERE
            and groups is None
            and bool(axes)
            and _jax.checks_varying()
            and _jax.all_manual(axes)
        ),
        ordered=comm is not None and comm.order == "program",
        has_ref=has_ref,
    )


def check_options(
    collective: str,
    *,
    op: str | None,
    codec: codecs.CodecLike = None,
    cotangent_codec: codecs.CodecLike = "same",
    backend: str = "auto",
    algorithm: str = "auto",
    axis_name: AxisName | None = None,
    comm: Communicator | None = None,
    axis_index_groups: Groups | None = None,
    **others: object,
) -> None:
    """Make the checks of `make_call` that do not depend on the ranks.

    For functions that get the options before they call the operation: the traceback then shows the
    line that passed the invalid option.
    """
    del axis_name, comm, axis_index_groups
    _refuse(collective, others)
    _reduce_op(collective, op)
    _algorithm(collective, algorithm, _backend(backend), _codec(collective, codec, False))
    if cotangent_codec != "same":
        codecs.parse(cotangent_codec)


def check_varies(call: Call, tree: Any) -> None:
    """Reject a mean, or a reduction with a codec, of values that are the same on all ranks.

    Under ``check_vma`` the gradient of parameters that do not vary is already the sum over all
    ranks. A mean of this sum would be too large by the number of ranks, and nothing would be
    compressed.

    Raises:
      InvalidArgumentError: for a traced floating leaf that does not vary along the call's axes.
    """
    if not call.axes or not _jax.checks_varying():
        return
    if call.reduce_op != "mean" and codecs.is_raw(call.codec):
        return  # the program may count ranks, as by jax.lax.psum(1, axis)
    axes = call.axes[0] if len(call.axes) == 1 else call.axes
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        if not _jax.is_tracer(leaf) or not jnp.issubdtype(leaf.dtype, jnp.inexact):
            continue
        if _jax.varying(leaf).isdisjoint(call.axes):
            what = f"leaf {jax.tree_util.keystr(path)}" if path else "the operand"
            raise errors.InvalidArgumentError(
                f"{call.collective} with op={call.reduce_op!r}, codec={call.codec!r}: by its type "
                f"{what} is already the same on all ranks along {axes!r}, so there is nothing to "
                "reduce. If it is a gradient, jax.grad has already summed it over all ranks, "
                "because the parameters do not vary. To reduce each rank's own gradient, "
                "differentiate by parameters that vary: "
                f'own = jax.lax.pcast(params, {axes!r}, to="varying"), and jax.grad(loss)(own). '
                "If the value is meant to be the same on all ranks, do not reduce it. If an optax "
                "state with the spec P() has accumulated it (optax.MultiSteps around the "
                "exchange), put the exchange outside: "
                "optax.chain(allreduce_gradients(...), optax.MultiSteps(optimizer, k)). "
                "The exchange runs at every step in both cases."
            )


def rank_in(collective: str, what: str, rank: Any, size: int) -> int:
    """Return ``rank`` as an int; raise unless it is in [0, size)."""
    if _jax.is_tracer(rank) or isinstance(rank, (bool, np.bool_)):
        raise errors.InvalidArgumentError(
            f"{collective}: {what} must be a Python integer known when tracing, not {rank!r}."
        )
    try:
        number = operator.index(rank)
    except TypeError:
        raise errors.InvalidArgumentError(
            f"{collective}: {what} must be an integer, not {rank!r}."
        ) from None
    if not 0 <= number < size:
        raise errors.InvalidArgumentError(
            f"{collective}: {what}={number} is out of range; there are {size} ranks, "
            f"0 to {size - 1}."
        )
    return number


def vector_counts(collective: str, counts: Any, size: int) -> tuple[int, ...]:
    """Return a v-variant's row counts as one tuple: by rank, or by source and destination."""
    shape = (size, size) if collective == "alltoallv" else (size,)
    form = "[source][destination]" if collective == "alltoallv" else "[rank]"
    if _jax.is_tracer(counts):
        raise errors.InvalidArgumentError(
            f"{collective}: counts must be known when tracing; for computed counts use "
            "jaxccomp.lax.ragged_all_to_all."
        )
    try:
        table = np.asarray(counts)
    except ValueError:
        table = np.empty(0, object)
    if table.shape != shape or not np.issubdtype(table.dtype, np.integer) or (table < 0).any():
        raise errors.InvalidArgumentError(
            f"{collective}: counts must be non-negative integers {form} of shape {shape}, the same "
            f"on all ranks, not {counts!r}."
        )
    return tuple(table.reshape(-1).tolist())


def partner(
    collective: str, what: str, ranks: Ranks, rank: int, size: int, *, wildcard: int | None = None
) -> int:
    """Return the partner of ``rank``: ``ranks`` itself, or its entry for ``rank``; -1 for none.

    ``wildcard`` is a further value that is allowed.
    """
    if callable(ranks):
        ranks = ranks(rank)
    elif isinstance(ranks, (Sequence, np.ndarray)):
        if len(ranks) != size:
            raise errors.InvalidArgumentError(
                f"{collective}: {what} must have one entry per rank, that is {size}, not "
                f"{len(ranks)}."
            )
        ranks = ranks[rank]
    if ranks is None or (isinstance(ranks, (int, np.integer)) and ranks == -1):
        return -1
    if wildcard is not None and isinstance(ranks, (int, np.integer)) and ranks == wildcard:
        return wildcard
    return rank_in(collective, what, ranks, size)


def check_dense(name: str, tree: Any) -> None:
    """Raise for sparse arrays of `jax.experimental.sparse`: a reduction would add their indices.

    Raises:
      ArgumentTypeError: names the leaf, and what to reduce instead.
    """
    sparse = sys.modules.get("jax.experimental.sparse")
    if sparse is None:  # then the program has no such arrays
        return
    leaves = jax.tree_util.tree_flatten_with_path(
        tree, is_leaf=lambda leaf: isinstance(leaf, sparse.JAXSparse)
    )[0]
    for path, leaf in leaves:
        if isinstance(leaf, sparse.JAXSparse):
            what = f"leaf {jax.tree_util.keystr(path)}" if path else "the operand"
            raise errors.ArgumentTypeError(
                f"{name}: {what} is a sparse array ({type(leaf).__name__}), whose indices differ "
                "between ranks and cannot be reduced. Reduce x.todense(); or gather the parts, "
                "jaxccomp.allgather((x.data, x.indices)), and add them on each rank."
            )


def check_dtype(call: Call, dtype: Any) -> None:
    """Raise unless the reduction of ``call``, if any, is defined for ``dtype``."""
    op = call.reduce_op
    if not op:
        return
    allowed = _reductions_of(dtype)
    if op not in allowed:
        hint = ""
        if op == "mean" and allowed:
            hint = ' Use op="sum" and divide, or convert to a floating type first.'
        elif dtype == jnp.bool_:
            hint = " Convert to an integer type to count."
        raise errors.UnsupportedDTypeError(
            f"{call.collective}: op={op!r} is not defined for dtype {jnp.dtype(dtype).name}; "
            f"allowed for it: {errors.listed(allowed)}.{hint}"
        )


@functools.cache
def _reductions_of(dtype: Any) -> tuple[str, ...]:
    bits = ("and", "or", "xor")
    if dtype == jnp.bool_:
        return ("min", "max", *bits)
    if jnp.issubdtype(dtype, jnp.integer):
        return ("sum", "prod", "min", "max", *bits)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return ("sum", "mean", "prod")
    return ("sum", "mean", "prod", "min", "max")


def axes_of(name: str, axis_name: AxisName) -> tuple[Hashable, ...]:
    """Return ``axis_name`` as a tuple; raise unless all of its axes are in scope."""
    axes = tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)
    known = _jax.axes_in_scope()
    for axis in axes:
        if axis not in known:
            raise errors.UnknownAxisError(
                f"{name}: unknown axis {axis!r}; axes in scope: {errors.listed(known)}. "
                "axis_name= must name an axis of the surrounding jax.shard_map, jax.pmap or "
                "jax.vmap(axis_name=...)."
            )
    if not axes or len(set(axes)) != len(axes):
        raise errors.InvalidArgumentError(
            f"{name}: axis_name must name one or more different axes, not {axis_name!r}."
        )
    return axes


def _groups(
    name: str, groups: Groups | None, size: int, any_sizes: bool
) -> tuple[tuple[tuple[int, ...], ...] | None, int]:
    if groups is None:
        return None, size
    table = tuple(tuple(operator.index(i) for i in group) for group in groups)
    if sorted(i for group in table for i in group) != list(range(size)):
        raise errors.InvalidArgumentError(
            f"{name}: axis_index_groups must name each index 0 to {size - 1} exactly once, "
            f"not {groups!r}."
        )
    if len({len(group) for group in table}) > 1 and not any_sizes:
        raise errors.InvalidArgumentError(
            f"{name}: axis_index_groups must all have the same size, not {groups!r}."
        )
    return table, len(table[0])


def _refuse(collective: str, others: Mapping[str, object]) -> None:
    """Raise if ``others``, the unknown keyword arguments, is not empty."""
    for name in others:
        # Set by the operations, not by users.
        internal = ("op", "root", "has_ref")
        valid = [each for each in make_call.__kwdefaults__ or () if each not in internal]
        error = errors.unknown(f"keyword argument of {collective}:", name, valid)
        raise errors.UnknownKeywordError(str(error))


def _reduce_op(collective: str, op: str | None) -> str:
    if op is None:
        return ""
    valid = PREFIX_OPS if collective in ("scan", "exscan") else REDUCE_OPS
    if op not in valid:
        hint = f"{op!r} is a codec: write codec={op!r}." if _names_codec(op) else ""
        raise errors.unknown(f"op of {collective}:", op, valid, hint)
    return op


def _names_codec(text: object) -> bool:
    """Return whether an argument looks like a codec spec."""
    return re.split(r"[:|]", str(text))[0].strip() in codecs.table()


def _codec(collective: str, codec: codecs.CodecLike, has_ref: bool) -> str:
    text = codecs.canonical_choice(codec)
    if not has_ref:
        return text
    if not codecs.is_raw(text):
        return codecs.canonical(text)
    if text == "auto":
        # The lossless codec that compresses differences best. "delta" runs on CPUs only.
        return "delta" if jax.default_backend() == "cpu" else "lossless"
    raise errors.InvalidArgumentError(
        f"{collective}: ref= needs a codec, such as codec='lossless'; with codec={codec!r} the "
        "values are sent unencoded, and ref= has no effect."
    )


def _backend(backend: str) -> str:
    name = config.get("backend") if backend == "auto" else backend
    if name not in extensions.OWN and BACKENDS.find(name) is None:
        hint = "" if backend == name else "It is the option 'backend', or JAXCCOMP_BACKEND."
        raise BACKENDS.unknown(name, hint=hint)
    return name


def _algorithm(collective: str, algorithm: str, backend: str, codec: str) -> str:
    if algorithm == "auto":
        return algorithm
    if codecs.find_custom(codec) is not None:
        raise errors.InvalidArgumentError(
            f"{collective}: with codec={codec!r}, which the program has registered, the operation "
            f"is composed of others, so algorithm={algorithm!r} has no effect; leave it out."
        )
    if backend == "xla":
        hint = 'With backend="xla", XLA chooses the algorithm.'
    elif BACKENDS.find(backend) is not None:
        hint = f"backend={backend!r} chooses the algorithm."
    elif not engine.available():
        hint = "The others come with the native engine, which is not installed."
    else:
        algorithms.check(collective, algorithm)
        return algorithm
    raise errors.unknown(f"algorithm of {collective}:", algorithm, ["auto"], hint)
