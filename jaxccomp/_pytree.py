"""From a pytree to the operands of one bind, and back.

Leaves are told apart only here: what is no array yet, typed PRNG keys, types narrower than a byte,
and leaves without elements.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxccomp import _arguments, _compat, errors
from jaxccomp._call import VECTOR, Call, result_shape
from jaxccomp._primitive import bind

Array = Any

# Types that XLA packs several to a byte, and what travels instead, with all values kept.
_PACKED = {
    jnp.dtype(jnp.int4): jnp.int8,
    jnp.dtype(jnp.int2): jnp.int8,
    jnp.dtype(jnp.uint4): jnp.uint8,
    jnp.dtype(jnp.uint2): jnp.uint8,
    jnp.dtype(jnp.float4_e2m1fn): jnp.float8_e4m3fn,
}


def apply(call: Call, tree: Any) -> Any:
    """Runs ``call`` on all leaves of ``tree``, in one bind."""
    leaves, treedef = jax.tree.flatten(tree)
    pairs = [_to_wire(call, leaf) for leaf in leaves]
    shapes = [result_shape(call, wire.shape) for wire, _ in pairs]
    sent = [i for i, (wire, _) in enumerate(pairs) if not _is_empty(call, wire)]
    moved = bind(call, [pairs[i][0] for i in sent]) if sent else ()
    arrived = dict(zip(sent, moved, strict=True))
    results = [
        restore(arrived[i] if i in arrived else _empty(call, wire, shape))
        for i, ((wire, restore), shape) in enumerate(zip(pairs, shapes, strict=True))
    ]
    return jax.tree.unflatten(treedef, results)


def as_array(collective: str, leaf: Any) -> Array:
    """A leaf as an array or tracer; Python and NumPy scalars and arrays are converted."""
    if isinstance(leaf, jax.Array):
        return leaf
    try:
        return jnp.asarray(leaf)
    except (TypeError, ValueError):
        raise errors.UnsupportedDTypeError(
            f"{collective}: leaves must be arrays or numbers, not {leaf!r} "
            f"({type(leaf).__name__}); take it out of the pytree."
        ) from None


def unpacked(dtype: Any) -> Any:
    """The type that values of ``dtype`` travel as: itself, unless XLA packs several to a byte."""
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
    _arguments.check_dtype(call, x.dtype)
    narrow = x.dtype
    if narrow in _PACKED:
        return x.astype(_PACKED[narrow]), lambda wide: wide.astype(narrow)
    return x, lambda result: result


@functools.cache
def _is_key(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jax.dtypes.prng_key))


def _is_empty(call: Call, x: Array) -> bool:
    """Whether no rank has any element to send."""
    if call.collective in VECTOR:
        return sum(call.counts) == 0 or 0 in x.shape[1:]
    return x.size == 0


def _empty(call: Call, x: Array, shape: tuple[int, ...]) -> Array:
    axes = _compat.varying(x) | (frozenset() if call.invariant else frozenset(call.axes))
    dropped = frozenset(call.axes) if call.invariant else frozenset()
    return _compat.vary(jnp.zeros(shape, x.dtype), axes - dropped)
