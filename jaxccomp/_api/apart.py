"""Memory of independent operations: no operation waits for another because XLA reuses memory.

XLA on CPUs starts each computation when its inputs are ready, but assigns memory in the order of
one sequential schedule. If that schedule uses the results of a first operation before it computes
the operands of a second one, the operands may reuse memory of these results, and the second
operation waits for the first. Tokens order all operands before all uses of results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from jaxccomp import _jax
from jaxccomp._native import engine, ffi_targets
from jaxccomp._native.platforms import CPU

Array = Any


def run_apart(
    operands: Sequence[list[Array]], run: Callable[[int, list[Array]], list[Array]]
) -> list[list[Array]]:
    """Run independent operations.

    Args:
      operands: the operands of each operation.
      run: ``run(number, operands)`` binds operation ``number`` and returns its results.

    Returns:
      The results of each operation.
    """
    results, tokens = [], []
    for number, values in enumerate(operands):
        token: list[Array] = []
        if number > 0:
            values, token = _passed(values, (), token=True)
        results.append(run(number, values))
        tokens.append(token)
    later = [[each for token in tokens[i + 1 :] for each in token] for i in range(len(tokens))]
    return [_passed(*pair, token=False)[0] for pair in zip(results, later, strict=True)]


def _passed(
    values: list[Array], tokens: Sequence[Array], *, token: bool
) -> tuple[list[Array], list[Array]]:
    """Return values, and a token if requested; constants need none."""
    places = [i for i, value in enumerate(values) if _jax.is_tracer(value)]
    if not places or not (tokens or token):
        return values, []
    passed = _PASS.bind(*[values[i] for i in places], *tokens, tokens=len(tokens), token=token)
    values = list(values)
    for i, value in zip(places, passed[: len(places)], strict=True):
        values[i] = value
    return values, passed[len(places) :]


def _abstract_eval(*avals: Any, tokens: int, token: bool) -> tuple[list[Any], set[Any]]:
    results = list(avals[: len(avals) - tokens])
    if token:
        aval = _jax.result_aval(avals[0], (1,), (), slice(0, 0))
        results.append(aval.update(dtype=jnp.dtype(jnp.uint8), weak_type=False))
    return results, set()


def _jvp(primals: Any, tangents: Any, **params: Any) -> tuple[list[Array], list[Any]]:
    results = _PASS.bind(*primals, **params)
    values = tangents[: len(tangents) - params["tokens"]]
    return results, [*values, *map(_jax.zero_tangent, results[len(values) :])]


def _batch(_: Any, values: Any, dims: Any, **params: Any) -> tuple[list[Array], list[Any]]:
    results = _PASS.bind(*values, **params)
    kept = dims[: len(dims) - params["tokens"]]
    return results, [*kept, *[None] * (len(results) - len(kept))]


def _lower(ctx: Any, *operands: Any, tokens: int, token: bool) -> Any:
    """Lower to a no-op call; operands that XLA would have to copy bypass the call."""
    count = len(operands) - tokens
    if _jax.platforms(ctx) != (CPU.name,) or not engine.available():
        extra = [jnp.zeros(1, jnp.uint8)] * token
        return _jax.lower_traced(ctx, lambda *xs: [*xs[:count], *extra], operands, ordered=False)
    results = list(operands[:count])
    through = [i for i in range(count) if _jax.is_free(operands[i])]
    places, outputs = [*through, *range(count, len(operands))], [*through, *[count] * token]
    if not outputs:
        return results
    avals_in, avals_out = _jax.avals_in(ctx), _jax.avals_out(ctx)
    passed = _jax.lower_ffi(
        ctx.replace(
            avals_in=[avals_in[i] for i in places], avals_out=[avals_out[i] for i in outputs]
        ),
        ffi_targets.pass_target(),
        [operands[i] for i in places],
        {},
        alias="always",
        ordered=False,
    )
    for i, value in zip(outputs, passed, strict=True):
        results[i:] = [value, *results[i + 1 :]]
    return results


_PASS = _jax.new_primitive(
    "jaxccomp_pass",
    abstract_eval=_abstract_eval,
    jvp=_jvp,
    transpose=lambda cotangents, *operands, **params: list(cotangents),
    batcher=_batch,
    lowering=_lower,
)
