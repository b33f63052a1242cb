"""Operations that overlap: `nonblocking` and `Handle`, and `run_apart` for several operations.

XLA on CPUs starts each computation when its inputs are ready, but assigns memory in the order of
one sequential schedule. If that schedule uses the results of a first operation before it computes
the operands of a second one, the operands may reuse memory of these results, and the second
operation waits for the first. `run_apart` orders all operands before all uses of results.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar

import jax
import jax.numpy as jnp

from jaxccomp import _jax, errors
from jaxccomp._native import engine, platforms
from jaxccomp._native.platforms import CPU

Array = Any

P = ParamSpec("P")
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class _Started:
    """A started operation. Equality ignores the line: a loop may carry handles of several lines."""

    operation: str
    line: str = dataclasses.field(compare=False)

    def __str__(self) -> str:
        return f"the {self.operation} of {self.line}"


@jax.tree_util.register_pytree_node_class
class Handle(Generic[T]):
    """A started operation: a pytree of its results.

    Functions made by `nonblocking` return a handle. A jitted function may return it, and a loop may
    carry it. `wait` returns the result; call it once.
    """

    def __init__(self, started: _Started, result: T, *, must_be_waited_for: bool = False):
        self._started, self._result = started, result
        self._waited = False
        # False for handles rebuilt by tree_unflatten: JAX makes some handles that it never uses.
        self._must_be_waited_for = must_be_waited_for

    def wait(self, after: Any = None) -> T:
        """Return the result of the operation.

        Does not block: as for other results of JAX, computations that use the result wait for it.

        Args:
          after: pytree of arrays. Computations that use the result also wait for these arrays, so
            that XLA computes them during the communication. Without ``after``, XLA may choose
            another order.

        Returns:
          The result of the operation.

        Raises:
          InvalidArgumentError: on a second call.

        Example:
          >>> import jax, jax.numpy as jnp, jaxccomp
          >>> @jax.jit
          ... def step(grads, batch):
          ...     handle = jaxccomp.nonblocking(jaxccomp.allreduce)(grads)
          ...     prepared = jnp.tanh(batch)
          ...     return handle.wait(after=prepared), prepared
          >>> step(jnp.ones(3), jnp.zeros(2))[0].shape                       # doctest: +SKIP
          (3,)
        """
        if self._waited:
            raise errors.InvalidArgumentError(
                f"wait() of {self._started} has already been called. A handle returns its "
                "result once: keep the result of wait()."
            )
        self._must_be_waited_for = False
        self._waited = True
        if after is None:
            return self._result
        return jax.lax.optimization_barrier((self._result, after))[0]

    def tree_flatten(self) -> tuple[tuple[T], _Started]:
        self._must_be_waited_for = False
        return (self._result,), self._started

    @classmethod
    def tree_unflatten(cls, started: _Started, children: tuple[T]) -> Handle[T]:
        return cls(started, *children)

    def __repr__(self) -> str:
        return f"<handle of {self._started}>"

    def __del__(self) -> None:
        if self._must_be_waited_for:
            warnings.warn(
                f"{self._started} was never waited for. XLA removes an operation whose "
                "result is not used: call wait() and use the result, or do not start it.",
                RuntimeWarning,
                stacklevel=2,
            )


def nonblocking(operation: Callable[P, T]) -> Callable[P, Handle[T]]:
    """Returns the non-blocking form of an operation.

    The form takes the same arguments, sends the same bytes and raises the same errors. Operations
    of JAX never block Python. This form also separates the start of an operation from the use of
    its result in a jitted function, so that XLA computes in between.

    Args:
      operation: an operation of this package, such as `jaxccomp.allreduce` or `jaxccomp.lax.psum`.

    Returns:
      A function that starts the operation and returns its `Handle`.

    Raises:
      InvalidArgumentError: if ``operation`` is not a function.

    Example:
      >>> import jax.numpy as jnp, jaxccomp
      >>> handle = jaxccomp.nonblocking(jaxccomp.allreduce)(jnp.ones(3), "max")
      >>> handle.wait()
      Array([1., 1., 1.], dtype=float32)
    """
    if not callable(operation):
        raise errors.InvalidArgumentError(
            f"nonblocking takes an operation, not a value of type {type(operation).__name__}: "
            "write jaxccomp.nonblocking(jaxccomp.allreduce)(x) instead of jaxccomp.allreduce(x)."
        )
    name = getattr(operation, "__name__", "operation")

    @functools.wraps(operation)
    def start(*args: P.args, **options: P.kwargs) -> Handle[T]:
        started = _Started(name, _jax.this_line())
        return Handle(started, operation(*args, **options), must_be_waited_for=True)

    start.__doc__ = f"""Starts `{name}` and returns a `Handle`: see `jaxccomp.nonblocking`."""
    return start


# --- Independent operations that do not wait for each other's memory ------------------------------


def run_apart(
    operands: Sequence[list[Array]], run: Callable[[int, list[Array]], list[Array]]
) -> list[list[Array]]:
    """Run independent operations, so that none waits for memory that another one uses.

    The operands of each operation except the first pass through a call that also returns a token.
    The results of an operation pass through a call that takes the tokens of all later operations.
    So XLA's sequential schedule has all operands before all uses of results.

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
    """Pass values through a call that takes ``tokens``; return them, and a new token if requested.

    Constants are not passed: their memory is not reused.
    """
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
    """Lower to a call that does nothing. Operands that XLA would have to copy are not passed."""
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
        platforms.pass_target(),
        [operands[i] for i in places],
        {},
        alias="always",
        ordered=False,
    )
    for i, value in zip(through, passed[: len(through)], strict=True):
        results[i] = value
    return [*results, *passed[len(through) :]]


_PASS = _jax.new_primitive(
    "jaxccomp_pass",
    abstract_eval=_abstract_eval,
    jvp=_jvp,
    transpose=lambda cotangents, *operands, **params: list(cotangents),
    batcher=_batch,
    lowering=_lower,
)
