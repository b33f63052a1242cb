"""Non-blocking operations: `nonblocking` and `Handle`."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

import jax

from jaxccomp import _jax, errors

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
        # False for handles rebuilt by tree_unflatten: JAX makes some that it never uses.
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
                f"{self._started} has been waited for already. A handle gives its "
                "result once: keep what wait() returned."
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

    It takes the same arguments, sends the same bytes and raises the same errors. Operations of
    JAX never block Python; this form also separates the start of an operation from the place in
    a jitted function where its result is used, so that XLA computes in between.

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
            "write jaxccomp.nonblocking(jaxccomp.allreduce)(x) for jaxccomp.allreduce(x)"
        )
    name = getattr(operation, "__name__", "operation")

    @functools.wraps(operation)
    def start(*args: P.args, **options: P.kwargs) -> Handle[T]:
        started = _Started(name, _jax.this_line())
        return Handle(started, operation(*args, **options), must_be_waited_for=True)

    start.__doc__ = f"""Starts `{name}` and returns a `Handle`: see `jaxccomp.nonblocking`."""
    return start
