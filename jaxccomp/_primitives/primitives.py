"""One JAX primitive per collective, each made from a table row.

All leaves of a pytree are operands of one bind, so they share one schedule. The rules below are for
all collectives; a row adds only its transpose.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp

from jaxccomp import _jax, errors
from jaxccomp._call import (
    ANY_SOURCE,
    ANY_TAG,
    Call,
    kept_dimensions,
    reduced_values,
    result_shape,
    split_likes,
    split_references,
    with_likes,
)
from jaxccomp._primitives import PRIMITIVES, batching, bind, lowering, transpose

Array = Any


@dataclasses.dataclass(frozen=True)
class Row:
    """The parts of a primitive that differ by collective."""

    name: str
    # (call, cotangents of all results) -> cotangents of all operands. None: the tangents of the
    # results are the tangents of the operands.
    transpose: Callable[[Call, Sequence[Array]], Sequence[Array]] | None


ROWS = (
    Row("bcast", transpose.bcast),
    Row("allreduce", transpose.allreduce),
    Row("reduce", transpose.reduce),
    Row("allgather", transpose.allgather),
    Row("gather", transpose.to("scatter")),
    Row("scatter", transpose.to("gather")),
    Row("reduce_scatter", transpose.reduce_scatter),
    Row("alltoall", transpose.to("alltoall")),
    Row("allgatherv", transpose.allgatherv),
    Row("gatherv", transpose.to("scatterv")),
    Row("scatterv", transpose.to("gatherv")),
    Row("reduce_scatterv", transpose.to("allgatherv")),
    Row("alltoallv", transpose.alltoallv),
    Row("scan", transpose.prefix),
    Row("exscan", transpose.prefix),
    Row("permute", transpose.permute),
    Row("sendrecv", transpose.sendrecv),
    Row("send", transpose.send),
    Row("recv", transpose.recv),
    Row("barrier", None),
)


def define(row: Row) -> Any:
    """Make the primitive of a row."""
    return _jax.new_primitive(
        f"jaxccomp_{row.name}",
        abstract_eval=_abstract_eval,
        jvp=partial(_jvp, row),
        transpose=partial(_transposed, row),
        batcher=batching.batch,
        lowering=lowering.lower,
    )


def _abstract_eval(*avals: Any, call: Call) -> tuple[list[Any], set[Any]]:
    dropped = call.axes if call.invariant else ()
    effects = _jax.axis_effects(call.axes, f"jaxccomp.{call.collective}")
    if call.ordered:
        effects.add(_jax.ORDERED)
    elif call.collective == "barrier":
        effects.add(_jax.KEPT)
    values = reduced_values(call, avals)
    results = [
        _jax.result_aval(aval, result_shape(call, aval.shape), dropped, kept_dimensions(call))
        for aval in split_likes(call, values)[1]
    ]
    if call.status:
        pair = _jax.result_aval(avals[0], (2,), dropped, slice(0, 0))
        results.append(pair.update(dtype=jnp.dtype(jnp.int32), weak_type=False))
    if call.feedback:  # residuals differ by rank
        results += [_jax.result_aval(aval, aval.shape, (), slice(None)) for aval in values]
    return results, effects


def _jvp(row: Row, primals: Any, tangents: Any, *, call: Call) -> tuple[list[Array], list[Any]]:
    results = bind(call, primals)
    if row.transpose is None:
        return results, list(tangents)
    result_tangents = [_jax.zero_tangent(x) for x in results]
    if call.feedback and not all(map(_jax.is_zero, tangents)):
        raise errors.NotDifferentiableError(
            f"{call.collective}_with_feedback has no derivative: call it after "
            "differentiation, on the gradients. Wrap its operands in jax.lax.stop_gradient if no "
            f"derivative is needed, or use {call.collective}."
        )
    # Delta bases change only the encoding, so they have no tangents.
    primals, _ = split_references(call, primals)
    call = call.replace(has_ref=False)
    moving = [i for i, x in enumerate(primals) if jnp.issubdtype(x.dtype, jnp.inexact)]
    if all(_jax.is_zero(tangents[i]) for i in moving):
        return results, result_tangents
    if call.reduce_op not in ("", "sum", "mean"):
        raise errors.NotDifferentiableError(
            f"{call.collective} with op={call.reduce_op!r} has no derivative, like jax.lax.pmax; "
            'only op="sum" and op="mean" have one. Wrap the operand in jax.lax.stop_gradient if '
            "no derivative is needed."
        )
    if ANY_SOURCE in call.pairs or call.tag == ANY_TAG:
        raise errors.NotDifferentiableError(
            f"{call.collective} from ANY_SOURCE or with ANY_TAG has no derivative: the cotangent "
            "must be sent back to a known rank with a known tag. Give source= and tag=, or wrap "
            "`like` in jax.lax.stop_gradient if no derivative is needed."
        )
    # Send zero tangents too, so that all ranks run the same operations.
    sent = len(primals) - len(split_likes(call, primals)[1]) if call.likes >= 0 else 0
    received = [i for i in moving if i >= sent]
    if call.likes >= 0:
        call = with_likes(call, len(moving) - len(received), len(received))
    moved = bind(call.replace(status=False), [_jax.instantiate(tangents[i]) for i in moving])
    for i, tangent in zip(received, moved, strict=True):
        result_tangents[i - sent] = tangent
    return results, result_tangents


def _transposed(row: Row, cotangents: Any, *operands: Any, call: Call) -> list[Any]:
    if all(map(_jax.is_zero, cotangents)) and not call.ordered:
        return [_jax.zero_cotangent(x) if _jax.is_undefined(x) else None for x in operands]
    assert row.transpose is not None
    if call.likes >= 0:
        return transpose.exchange(call, [_jax.instantiate(ct) for ct in cotangents], operands)
    sent, references = split_references(call, operands)
    given = row.transpose(call.replace(has_ref=False), [_jax.instantiate(ct) for ct in cotangents])
    given = [ct if _jax.is_undefined(x) else None for ct, x in zip(given, sent, strict=True)]
    return given + [_jax.zero_cotangent(x) if _jax.is_undefined(x) else None for x in references]


def _keep_cotangent() -> Any:
    """Make the transpose of an allreduce whose cotangents are equal on all ranks.

    It is the identity and sends nothing. Its own transpose is the allreduce.
    """

    def bind_again(values: Sequence[Array], call: Call) -> list[Array]:
        return PRIMITIVES["keep_cotangent"].bind(*values, call=call)

    return _jax.new_primitive(
        "jaxccomp_keep_cotangent",
        abstract_eval=lambda *avals, call: (list(avals), set()),
        jvp=lambda primals, tangents, *, call: (
            bind_again(primals, call),
            bind_again([_jax.instantiate(x) for x in tangents], call),
        ),
        transpose=lambda cts, *_, call: bind(call, [_jax.instantiate(ct) for ct in cts]),
        batcher=lambda _, values, dims, *, call: (bind_again(values, call), dims),
        lowering=lambda _, *operands, call: operands,
    )


PRIMITIVES.update({row.name: define(row) for row in ROWS})
PRIMITIVES["keep_cotangent"] = _keep_cotangent()
