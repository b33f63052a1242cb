"""Operations that are started in one place and waited for in another: ``*_start`` and `Handle`."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import jax

from jaxccomp import _compat, errors

Operation = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class _Started:
    """Which operation; equal for all lines, so that loops may carry handles of several."""

    operation: str
    line: str = dataclasses.field(compare=False)

    def __str__(self) -> str:
        return f"the {self.operation} of {self.line}"


@jax.tree_util.register_pytree_node_class
class Handle:
    """An operation that has been started: a pytree of the arrays that it gives.

    The ``*_start`` functions make it. It may be returned from jitted functions and carried through
    loops; `wait` gives the result, once.
    """

    def __init__(self, started: _Started, result: Any, *, must_be_waited_for: bool = False):
        self._started, self._result = started, result
        self._waited = False
        # JAX makes handles anew when it rebuilds a pytree, and no program waits for some of these.
        self._must_be_waited_for = must_be_waited_for

    def wait(self, after: Any = None) -> Any:
        """The result of the operation.

        Nothing stops here, as with other results of JAX: what needs the result waits for it.

        Args:
          after: pytree of arrays. What needs the result begins when these are computed, too, so
            that XLA computes them while values travel. Without, it may take another order.

        Returns:
          What the operation without ``_start`` gives.

        Raises:
          InvalidArgumentError: when it has been waited for already.

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
                f"{self._started} was never waited for. Where nothing needs its "
                "result XLA leaves the operation out: call wait() and use what it returns, or do "
                "not start it.",
                RuntimeWarning,
                stacklevel=2,
            )


def start_of(function: Operation) -> Callable[..., Handle]:
    """The function that starts ``function``, a public operation."""
    name = function.__name__

    def start(*args: Any, **options: Any) -> Handle:
        return Handle(
            _Started(name, _compat.this_line()), function(*args, **options), must_be_waited_for=True
        )

    start.__name__ = start.__qualname__ = f"{name}_start"
    start.__module__ = function.__module__
    start.__doc__ = f"""Starts `{name}`, and gives a `Handle` whose `Handle.wait` gives its result.

On the wire, and for arguments and errors: as `{name}`.
"""
    start.__signature__ = inspect.signature(function)  # type: ignore
    return start
