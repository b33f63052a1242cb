"""Split-phase operations: ``*_start`` and `Handle`."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import jax

from jaxccomp import _jax, errors

Operation = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class _Started:
    """A started operation; lines are not compared, so a loop may carry handles of several lines."""

    operation: str
    line: str = dataclasses.field(compare=False)

    def __str__(self) -> str:
        return f"the {self.operation} of {self.line}"


@jax.tree_util.register_pytree_node_class
class Handle:
    """A started operation: a pytree of its results.

    The ``*_start`` functions return it. Jitted functions may return it and loops may carry it;
    `wait` returns the result, once.
    """

    def __init__(self, started: _Started, result: Any, *, must_be_waited_for: bool = False):
        self._started, self._result = started, result
        self._waited = False
        # False for handles that JAX makes when it rebuilds a pytree: some are never waited for.
        self._must_be_waited_for = must_be_waited_for

    def wait(self, after: Any = None) -> Any:
        """Return the result of the operation.

        Does not block: as with other results of JAX, computations that use the result wait for it.

        Args:
          after: pytree of arrays. Computations that use the result also wait for these, so that XLA
            computes them during the communication. Without it, XLA may choose another order.

        Returns:
          The result of the operation without ``_start``.

        Raises:
          InvalidArgumentError: on a second call.

        Example:
          >>> import jax, jax.numpy as jnp, jaxccomp
          >>> @jax.jit
          ... def step(grads, batch):
          ...     handle = jaxccomp.allreduce_start(grads)
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

    def tree_flatten(self) -> tuple[tuple[Any], _Started]:
        self._must_be_waited_for = False
        return (self._result,), self._started

    @classmethod
    def tree_unflatten(cls, started: _Started, children: tuple[Any]) -> Handle:
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


def start_of(function: Operation) -> Callable[..., Handle]:
    """Return the ``*_start`` function of the public operation ``function``."""
    name = function.__name__

    def start(*args: Any, **options: Any) -> Handle:
        return Handle(
            _Started(name, _jax.this_line()), function(*args, **options), must_be_waited_for=True
        )

    start.__name__ = start.__qualname__ = f"{name}_start"
    start.__module__ = function.__module__
    start.__doc__ = f"""Starts `{name}`, and gives a `Handle` whose `Handle.wait` gives its result.

On the wire, and for arguments and errors: as `{name}`.
"""
    start.__signature__ = inspect.signature(function)  # type: ignore
    return start
