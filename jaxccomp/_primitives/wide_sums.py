"""Reductions whose values travel in a wider dtype than the operands'.

Two kinds: any reduction of the types of one byte or less, for which the engine has no arithmetic;
and those of float16 and bfloat16 by algorithms that send partial results, which would be rounded to
the operands' dtype at each hop, and may be beyond its range where the result is not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from jaxccomp import codecs
from jaxccomp._call import Call, add_carried, split_references
from jaxccomp._native import algorithms, engine
from jaxccomp._primitives.binding import bind
from jaxccomp._traced import wide
from jaxccomp._traced.wide import SUB_BYTE_INTEGERS as SUB_BYTE_INTEGERS
from jaxccomp._traced.wide import is_half

Array = Any


_PREFIXES = ("scan", "exscan")  # which merge partial results by any algorithm


def is_small(dtype: Any) -> bool:
    """Whether values of a dtype are of one byte or less, without arithmetic in the engine."""
    return wide.of_small(dtype) is not None


def of_small(call: Call, x: Array) -> tuple[Array, Callable[[Array], Array]]:
    """An operand of which `is_small` holds, as it is reduced; and what makes its result of that."""
    op, dtype, ranks = call.reduce_op, x.dtype, call.size
    return wide.enter(x, op, ranks), lambda result: wide.leave(result, op, dtype, ranks)


def must_split(call: Call, avals: Sequence[Any]) -> bool:
    """Whether half types, which travel as float32, must not travel with a codec that others have.

    So it is where the codec codes float32 and not the half type: those values travel exactly.
    """
    named = call.algorithm != "auto" or call.collective in _PREFIXES
    return named and _is_mixed(call, avals) and sums_partially(call, call.algorithm)


def reduce_apart(call: Call, operands: Sequence[Array]) -> list[Array]:
    """Runs a call that `must_split` as two."""
    values, carried = split_references(call, operands)
    chosen = [i for i, x in enumerate(values) if is_half(x.dtype)]
    count = len(values)

    def given(places: Sequence[int]) -> list[Array]:
        return [values[i] for i in places] + [carried[i] for i in places if call.carries]

    plain, exact = call.replace(codec="raw", feedback=False), given(chosen)
    if call.carries:
        plain, exact = add_carried(plain, exact)
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
    """Whether "auto" should be an algorithm that merges values at once, not to be split."""
    return (
        call.collective == "allreduce"
        and _is_mixed(call, avals)
        and sums_partially(call, algorithm)
    )


def sums_partially(call: Call, algorithm: str) -> bool:
    """Whether ranks of a call add up values that are sums, or products, already.

    Args:
      call: the call.
      algorithm: what runs; "auto" where that is not known.
    """
    if call.size == 1 or call.reduce_op not in ("sum", "mean", "prod"):
        return False
    if call.backend == "mpi":  # which divides a mean afterwards
        return True
    if call.size == 2:  # of which one adds both values, once
        return False
    return algorithm == "auto" or algorithms.sends_partial(call.collective, algorithm)


def widens(call: Call, avals: Sequence[Any], algorithm: str) -> bool:
    """Whether half types of a call travel as float32; ``algorithm`` as for `sums_partially`."""
    halves = any(is_half(aval.dtype) for aval in avals)
    return halves and sums_partially(call, algorithm)


def codec_of(call: Call, avals: Sequence[Any]) -> str:
    """The codec of values that travel as float32: none, where half types have none."""
    return call.codec if _coded_halves(call, avals) else "raw"


def enter(call: Call, operands: Sequence[Array]) -> list[Array]:
    """Operands, of which those of half types are made float32."""
    op, ranks = _op_of(call), call.size
    return [wide.enter(x, op, ranks) if is_half(x.dtype) else x for x in operands]


def leave(call: Call, results: Sequence[Array], avals: Sequence[Any]) -> list[Array]:
    """Results of what `enter` gave, in their own dtypes."""
    op, ranks = _op_of(call), call.size
    return [
        wide.leave(x, op, aval.dtype, ranks) if is_half(aval.dtype) else x
        for x, aval in zip(results, avals, strict=True)
    ]


def wide_avals(avals: Sequence[Any]) -> list[Any]:
    """Shapes and dtypes of what `enter` gives."""
    return [
        aval.update(dtype=jnp.dtype(jnp.float32)) if is_half(aval.dtype) else aval for aval in avals
    ]


def _op_of(call: Call) -> str:
    # Lossy codecs have thresholds and smallest scales, and residuals their own dtypes: not scaled.
    scaled = codecs.is_lossless(call.codec) and not (call.carries or call.feedback)
    return call.reduce_op if scaled else "prod"


def _is_mixed(call: Call, avals: Sequence[Any]) -> bool:
    """Whether the codec codes some operands, and not those of half types."""
    if codecs.is_raw(call.codec) or codecs.find_custom(call.codec) is not None:
        return False
    halves = [is_half(aval.dtype) for aval in avals if hasattr(aval, "dtype")]
    return any(halves) and not all(halves) and not _coded_halves(call, avals)


def _coded_halves(call: Call, avals: Sequence[Any]) -> bool:
    """Whether the codec codes all operands of half types."""
    if codecs.is_raw(call.codec):
        return False
    coded = set(engine.load().describe_codec(call.codec)["dtypes"])
    return all(aval.dtype.name in coded for aval in avals if is_half(aval.dtype))
