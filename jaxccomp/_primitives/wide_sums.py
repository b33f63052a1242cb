"""Reductions that send values in a wider dtype than the operands'.

1. All reductions of types of at most one byte for which the engine has no arithmetic.
2. Reductions of float16 and bfloat16 ("half types") by algorithms that send partial results. In the
   operands' dtype, a partial result would be rounded at each hop, and may exceed the range even if
   the result does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from jaxccomp import codecs
from jaxccomp._call import Call, add_residuals, split_references
from jaxccomp._native import algorithms, engine
from jaxccomp._primitives import bind
from jaxccomp._traced import stacked
from jaxccomp._traced.stacked import SUB_BYTE_INTEGERS as SUB_BYTE_INTEGERS
from jaxccomp._traced.stacked import is_half

Array = Any


_PREFIXES = ("scan", "exscan")  # all their algorithms merge partial results


def is_small(dtype: Any) -> bool:
    """Return whether a dtype has at most one byte and no arithmetic in the engine."""
    return stacked.of_small(dtype) is not None


def of_small(call: Call, x: Array) -> tuple[Array, Callable[[Array], Array]]:
    """Convert an operand of an `is_small` dtype; return it and a function for its result."""
    op, dtype, ranks = call.reduce_op, x.dtype, call.size
    return stacked.enter(x, op, ranks), lambda result: stacked.leave(result, op, dtype, ranks)


def must_split(call: Call, avals: Sequence[Any]) -> bool:
    """Return whether operands of half types need a separate call.

    They do if they are sent as float32 and the codec supports float32 but not the half type: values
    of a dtype that the codec does not support are sent raw.
    """
    named = call.algorithm != "auto" or call.collective in _PREFIXES
    return named and _is_mixed(call, avals) and sums_partially(call, call.algorithm)


def reduce_apart(call: Call, operands: Sequence[Array]) -> list[Array]:
    """Run a call that `must_split` as two calls."""
    values, residuals_in = split_references(call, operands)
    chosen = [i for i, x in enumerate(values) if is_half(x.dtype)]
    count = len(values)

    def given(places: Sequence[int]) -> list[Array]:
        return [values[i] for i in places] + [residuals_in[i] for i in places if call.adds_residual]

    plain, exact = call.replace(codec="raw", feedback=False), given(chosen)
    if call.adds_residual:
        plain, exact = add_residuals(plain, exact)
    others = [i for i in range(count) if i not in chosen]
    moved = bind(call, given(others))
    results = dict(zip(chosen, bind(plain, exact), strict=True))
    results |= dict(zip(others, moved[: len(others)], strict=True))
    if not call.feedback:
        return [results[i] for i in range(count)]
    lost = {i: jnp.zeros_like(values[i]) for i in chosen}
    lost |= dict(zip(others, moved[len(others) :], strict=True))
    return [each[i] for each in (results, lost) for i in range(count)]


def wants_another(call: Call, avals: Sequence[Any], algorithm: str) -> bool:
    """Return whether "auto" should choose two_shot: without partial results, one call is enough."""
    return (
        call.collective == "allreduce"
        and _is_mixed(call, avals)
        and sums_partially(call, algorithm)
    )


def sums_partially(call: Call, algorithm: str) -> bool:
    """Return whether ranks of a call reduce partial sums or products.

    Args:
      call: the call.
      algorithm: the algorithm that runs; "auto" if it is not known.
    """
    if call.size == 1 or call.reduce_op not in ("sum", "mean", "prod"):
        return False
    if call.backend == "mpi":  # MPI's algorithm is unknown, and a mean is divided after the sum
        return True
    if call.size == 2:  # each result is one operation on two values
        return False
    return algorithm == "auto" or algorithms.sends_partial(call.collective, algorithm)


def widens(call: Call, avals: Sequence[Any], algorithm: str) -> bool:
    """Return whether a call sends half types as float32; ``algorithm`` as in `sums_partially`."""
    halves = any(is_half(aval.dtype) for aval in avals)
    return halves and sums_partially(call, algorithm)


def codec_of(call: Call, avals: Sequence[Any]) -> str:
    """Return the codec of values sent as float32: "raw" unless it supports the half types."""
    return call.codec if _encodes_halves(call, avals) else "raw"


def enter(call: Call, operands: Sequence[Array]) -> list[Array]:
    """Convert operands of half types to float32."""
    op, ranks = _op_of(call), call.size
    return [stacked.enter(x, op, ranks) if is_half(x.dtype) else x for x in operands]


def leave(call: Call, results: Sequence[Array], avals: Sequence[Any]) -> list[Array]:
    """Convert results of operands that `enter` converted back to their dtypes."""
    op, ranks = _op_of(call), call.size
    return [
        stacked.leave(x, op, aval.dtype, ranks) if is_half(aval.dtype) else x
        for x, aval in zip(results, avals, strict=True)
    ]


def wide_avals(avals: Sequence[Any]) -> list[Any]:
    """Return the shapes and dtypes that `enter` returns for operands of ``avals``."""
    return [
        aval.update(dtype=jnp.dtype(jnp.float32)) if is_half(aval.dtype) else aval for aval in avals
    ]


def _op_of(call: Call) -> str:
    # "prod" is not scaled. A scale would change the results of lossy codecs, which have thresholds
    # and minimum scales, and the unit of residuals.
    scaled = codecs.is_lossless(call.codec) and not (call.adds_residual or call.feedback)
    return call.reduce_op if scaled else "prod"


def _is_mixed(call: Call, avals: Sequence[Any]) -> bool:
    """Return whether the codec encodes some operands, but not the ones of half types."""
    if codecs.is_raw(call.codec) or codecs.find_custom(call.codec) is not None:
        return False
    halves = [is_half(aval.dtype) for aval in avals if hasattr(aval, "dtype")]
    return any(halves) and not all(halves) and not _encodes_halves(call, avals)


def _encodes_halves(call: Call, avals: Sequence[Any]) -> bool:
    """Return whether the codec encodes all operands of half types."""
    if codecs.is_raw(call.codec):
        return False
    supported = set(engine.load().describe_codec(call.codec)["dtypes"])
    return all(aval.dtype.name in supported for aval in avals if is_half(aval.dtype))
