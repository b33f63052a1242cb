"""The transpose of each collective, on the cotangents of all its results at once.

Along an axis, the objective is the sum of the ranks' objectives, as for jax.lax.psum. So a sum is
its own transpose. If the result has an invariant type (``shard_map`` with ``check_vma=True``), all
ranks have the same cotangent, and nothing is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxccomp import _jax
from jaxccomp._call import ANY_TAG, Call, rows, split_likes, with_likes
from jaxccomp._native import algorithms
from jaxccomp._primitives import PRIMITIVES, bind
from jaxccomp._traced import stacked

Array = Any
Cotangents = Sequence[Array]


def _bind(call: Call, values: Cotangents, **changes: Any) -> list[Array]:
    back = call.of_cotangents().replace(invariant=False, **changes)
    if not algorithms.has(back.collective, back.algorithm):
        back = back.replace(algorithm="auto")  # the transpose has no algorithm of that name
    return bind(back, values)


def to(collective: str) -> Callable[[Call, Cotangents], list[Array]]:
    """Return a transpose that is another collective with the same parameters."""
    return lambda call, cts: _bind(call, cts, collective=collective, reduce_op="")


def bcast(call: Call, cts: Cotangents) -> list[Array]:
    if not call.invariant:
        return _bind(call, cts, collective="reduce", reduce_op="sum")
    mine = lax.axis_index(call.axes) == call.root
    return [jnp.where(mine, ct, jnp.zeros_like(ct)) for ct in _vary(call, cts)]


def allreduce(call: Call, cts: Cotangents) -> list[Array]:
    if call.invariant and call.comm is not None:
        return PRIMITIVES["keep_cotangent"].bind(*cts, call=call.of_cotangents())
    if call.invariant:
        return _vary(call, _unmean(call, cts))
    return _bind(call, cts)


def reduce(call: Call, cts: Cotangents) -> list[Array]:
    return _unmean(call, _bind(call, cts, collective="bcast", reduce_op=""))


def allgather(call: Call, cts: Cotangents) -> list[Array]:
    if not call.invariant:
        return _bind(call, cts, collective="reduce_scatter", reduce_op="sum")
    rank = lax.axis_index(call.axes)
    return [lax.dynamic_index_in_dim(ct, rank, keepdims=False) for ct in _vary(call, cts)]


def allgatherv(call: Call, cts: Cotangents) -> list[Array]:
    if not call.invariant:
        return _bind(call, cts, collective="reduce_scatterv", reduce_op="sum")
    return [own_rows(call, ct, lax.axis_index(call.axes)) for ct in _vary(call, cts)]


def reduce_scatter(call: Call, cts: Cotangents) -> list[Array]:
    return _unmean(call, _bind(call, cts, collective="allgather", reduce_op=""))


def alltoallv(call: Call, cts: Cotangents) -> list[Array]:
    n = call.size
    counts = tuple(np.array(call.counts).reshape(n, n).T.ravel().tolist())
    return _bind(call, cts, counts=counts)


def prefix(call: Call, cts: Cotangents) -> list[Array]:
    return _bind(call, cts, reverse=not call.reverse)


def permute(call: Call, cts: Cotangents) -> list[Array]:
    swapped = [i for pair in zip(call.pairs[1::2], call.pairs[::2], strict=True) for i in pair]
    return _bind(call, cts, pairs=tuple(swapped))


def sendrecv(call: Call, cts: Cotangents) -> list[Array]:
    return _bind(_turned(call), cts)


def _turned(call: Call) -> Call:
    """Return a sendrecv with destination and source exchanged.

    The tags are exchanged as well. With ANY_TAG the tag of the received message is not known, so
    all ranks keep the tags of their messages.
    """
    tags = (call.tag, call.recv_tag)
    tag, recv_tag = tags if call.recv_tag == ANY_TAG else tags[::-1]
    return call.replace(pairs=call.pairs[::-1], tag=tag, recv_tag=recv_tag)


def exchange(call: Call, cts: Cotangents, operands: Sequence[Any]) -> list[Any]:
    """Transpose a sendrecv with different shapes: return the cotangents of all its operands."""
    sent, likes = split_likes(call, operands)
    back = with_likes(_turned(call), len(likes), len(sent))
    avals = map(_jax.aval_of, sent)
    given = _bind(back, [*cts, *(jnp.zeros(aval.shape, aval.dtype) for aval in avals)])
    undefined = _jax.is_undefined
    return [ct if undefined(x) else None for ct, x in zip(given, sent, strict=True)] + [
        _jax.zero_cotangent(x) if undefined(x) else None for x in likes
    ]


def send(call: Call, cts: Cotangents) -> list[Array]:
    back = _bind(call, cts, collective="recv")
    return [ct + more for ct, more in zip(cts, back, strict=True)]


def recv(call: Call, cts: Cotangents) -> list[Array]:
    _bind(call, cts, collective="send")
    return [jnp.zeros_like(ct) for ct in cts]


def own_rows(call: Call, x: Array, rank: Array) -> Array:
    """Return rank ``rank``'s rows of ``x``, padded with zeros to the largest count."""
    starts = np.cumsum(call.counts) - np.array(call.counts)
    longest = rows(call)[0]
    x = stacked.fill(x, x.shape[0] + longest)  # so that no slice exceeds the end
    block = lax.dynamic_slice_in_dim(x, jnp.asarray(starts)[rank], longest)
    real = jnp.arange(longest) < jnp.asarray(call.counts)[rank]
    return jnp.where(real.reshape(-1, *[1] * (x.ndim - 1)), block, jnp.zeros_like(block))


def _vary(call: Call, cts: Cotangents) -> list[Array]:
    return [_jax.vary(ct, call.axes) for ct in cts]


def _unmean(call: Call, cts: Cotangents) -> list[Array]:
    if call.reduce_op != "mean":
        return list(cts)
    return [ct / np.asarray(call.size, ct.dtype) for ct in cts]
