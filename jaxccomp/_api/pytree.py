"""Flattens a pytree to the operands of one bind, and rebuilds it.

Only this module distinguishes kinds of leaves: Python and NumPy values, typed PRNG keys, sub-byte
types, empty leaves, and leaves of dtype float0, which have no values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr

from jaxccomp import _jax, errors
from jaxccomp._api import arguments
from jaxccomp._call import VECTOR, Call, reference_shape, result_shape, with_likes
from jaxccomp._primitives import wide_sums
from jaxccomp._primitives.primitives import bind

Array = Any

# Types of which XLA packs several values into a byte, and the wider types that are sent instead.
_PACKED = {
    **{jnp.dtype(narrow): unpacked for narrow, unpacked in wide_sums.SUB_BYTE_INTEGERS.items()},
    jnp.dtype(jnp.float4_e2m1fn): jnp.float8_e4m3fn,
}


def apply(call: Call, tree: Any, *refs: Any) -> Any:
    """Run ``call`` on all leaves of ``tree``, in one bind.

    Args:
      call: the operation.
      tree: the operands.
      *refs: pytrees like ``tree``: `references_each` delta bases, or one tree of residuals.

    Returns:
      The results; with feedback a pair of results and encoding errors, both like ``tree``; with a
      status a pair of results and status.
    """
    if call.reduce_op:
        arguments.check_dense(call.collective, tree)
    leaves, treedef = jax.tree.flatten(tree)
    pairs = [_to_wire(call, leaf) for leaf in leaves]
    shapes = [result_shape(call, wire.shape) for wire, _ in pairs]
    sent = [i for i, (wire, _) in enumerate(pairs) if not _is_empty(call, wire)]
    operands = [pairs[i][0] for i in sent]
    if call.has_ref or call.adds_residual:
        for ref in refs:
            wires = _references(call, tree, ref)
            operands += [wires[i] for i in sent]
    moved = bind(call, operands) if sent else []
    status = moved.pop() if call.status else None

    def restored(call: Call, moved: list[Array], shapes: list[tuple[int, ...]]) -> Any:
        arrived = dict(zip(sent, moved, strict=True))
        results = [
            restore(arrived[i] if i in arrived else _empty(call, wire, shape))
            for i, ((wire, restore), shape) in enumerate(zip(pairs, shapes, strict=True))
        ]
        return jax.tree.unflatten(treedef, results)

    if call.status:
        return restored(call, moved, shapes), status
    if not call.feedback:
        return restored(call, moved, shapes)
    lost = call.replace(invariant=False), moved[len(sent) :], [wire.shape for wire, _ in pairs]
    return restored(call, moved[: len(sent)], shapes), restored(*lost)


def exchange(call: Call, tree: Any, like: Any) -> Any:
    """Run a sendrecv that sends the leaves of ``tree`` and receives leaves like ``like``'s.

    Returns:
      The received values; with a status a pair of values and status.
    """
    sent = [wire for wire, _ in (_to_wire(call, leaf) for leaf in jax.tree.leaves(tree))]
    sent = [wire for wire in sent if not _is_empty(call, wire)]
    leaves, treedef = jax.tree.flatten(like)
    pairs = [_to_wire(call, leaf) for leaf in leaves]
    received = [i for i, (wire, _) in enumerate(pairs) if not _is_empty(call, wire)]
    operands = [*sent, *(pairs[i][0] for i in received)]
    moved = bind(with_likes(call, len(sent), len(received)), operands) if operands else []
    status = moved.pop() if call.status else None
    arrived = dict(zip(received, moved, strict=True))
    values = jax.tree.unflatten(
        treedef,
        [restore(arrived.get(i, wire)) for i, (wire, restore) in enumerate(pairs)],
    )
    return (values, status) if call.status else values


def _references(call: Call, tree: Any, ref: Any) -> list[Array]:
    """Return the leaves of ``ref`` in wire types; raise unless they fit the leaves of ``tree``."""
    (leaves, treedef), (refs, ref_treedef) = map(jax.tree.flatten_with_path, (tree, ref))
    if treedef != ref_treedef:
        paths, ref_paths = ([keystr(path) for path, _ in each] for each in (leaves, refs))
        missing = [path for path in paths if path not in ref_paths]
        surplus = [path for path in ref_paths if path not in paths]
        where = f"{treedef} and {ref_treedef}"
        if missing or surplus:
            place = "x, not in ref" if missing else "ref, not in x"
            where = f"the leaf {(missing or surplus)[0] or '(all of it)'} is in {place}"
        raise errors.InvalidArgumentError(
            f"{call.collective}: ref= must be a pytree of the same structure as x, but they "
            f"differ: {where}."
        )
    for (path, leaf), (_, other) in zip(leaves, refs, strict=True):
        x, reference = (as_array(call.collective, each) for each in (leaf, other))
        shape = reference_shape(call, x.shape)
        if (shape, x.dtype) != (reference.shape, reference.dtype) and not call.adds_residual:
            raise errors.InvalidArgumentError(
                f"{call.collective}: ref{keystr(path)} must have the shape and dtype of "
                f"{'x' if shape == x.shape else 'the result of x'}{keystr(path)}, "
                f"{_type(shape, x.dtype)}, not {_type(reference.shape, reference.dtype)}."
            )
    return [_to_wire(call, leaf)[0] for _, leaf in refs]


def _type(shape: tuple[int, ...], dtype: Any) -> str:
    name = "float0" if dtype == jax.dtypes.float0 else dtype.name
    return f"{name}[{','.join(map(str, shape))}]"


def as_array(collective: str, leaf: Any) -> Array:
    """Return a leaf as a JAX array or tracer; convert Python and NumPy scalars and arrays."""
    if isinstance(leaf, jax.Array):
        return leaf
    try:
        return jnp.asarray(leaf)
    except (TypeError, ValueError):
        raise errors.UnsupportedDTypeError(
            f"{collective}: leaves must be arrays or numbers, not {leaf!r} "
            f"({type(leaf).__name__}); take it out of the pytree."
        ) from None


def is_float0(leaf: Any) -> bool:
    """Return whether a leaf is a derivative with respect to integers (``allow_int=True``).

    Such a leaf has a shape but no values, so it is never sent: each rank makes the result itself.
    """
    return getattr(leaf, "dtype", None) == jax.dtypes.float0


def map_values(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply ``jax.tree.map``; for a float0 leaf, return float0 of the shape of the result."""

    def mapped(leaf: Any) -> Any:
        if not is_float0(leaf):
            return function(leaf)
        stand_in = jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.bool_)
        return np.zeros(jax.eval_shape(function, stand_in).shape, jax.dtypes.float0)

    return jax.tree.map(mapped, tree)


def unpacked(dtype: Any) -> Any:
    """Return the wire type of ``dtype``: ``dtype``, or a wider type if XLA packs its values."""
    return _PACKED.get(jnp.dtype(dtype), dtype)


def _to_wire(call: Call, leaf: Any) -> tuple[Array, Callable[[Array], Array]]:
    x = as_array(call.collective, leaf)
    if _is_key(x.dtype):
        if call.reduce_op:
            raise errors.UnsupportedDTypeError(
                f"{call.collective}: typed PRNG keys ({x.dtype}) can be moved, not reduced."
            )
        kind = jax.random.key_impl(x)
        return jax.random.key_data(x), lambda data: jax.random.wrap_key_data(data, impl=kind)
    if is_float0(x):
        return x, lambda result: result
    arguments.check_dtype(call, x.dtype)
    if call.reduce_op and wide_sums.is_small(x.dtype):
        return wide_sums.of_small(call, x)
    narrow = x.dtype
    if narrow in _PACKED:
        return x.astype(_PACKED[narrow]), lambda unpacked: unpacked.astype(narrow)
    return x, lambda result: result


@functools.cache
def _is_key(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jax.dtypes.prng_key))


def _is_empty(call: Call, x: Array) -> bool:
    """Return whether no rank has values of this leaf to send."""
    if is_float0(x):
        return True
    if call.collective in VECTOR:
        return sum(call.counts) == 0 or 0 in x.shape[1:]
    return x.size == 0


def _empty(call: Call, x: Array, shape: tuple[int, ...]) -> Array:
    if is_float0(x):
        return np.zeros(shape, x.dtype)
    axes = _jax.varying(x) | (frozenset() if call.invariant else frozenset(call.axes))
    dropped = frozenset(call.axes) if call.invariant else frozenset()
    return _jax.vary(jnp.zeros(shape, x.dtype), axes - dropped)
