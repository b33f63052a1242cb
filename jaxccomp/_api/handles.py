"""Operations that are started in one place and waited for in another: ``*_start`` and `Handle`."""

from __future__ import annotations

import dataclasses
import inspect
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import jax

from jaxccomp import _compat, errors

Operation = Callable[..., Any]

# Arguments of operations that never become one with others: residuals, and those of operations
# whose operands may have other sizes on other ranks, where buckets would be full after other calls.
_ALONE = frozenset(("residual", "counts", "dest", "source"))


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

    def __init__(self, started: _Started, result: Any = None):
        self._started, self._result = started, result
        self._bucket: _Bucket | None = None
        self._waited = False
        # Of those that JAX makes anew, some are never meant to be waited for.
        self._must_be_waited_for = False

    def wait(self, after: Any = None) -> Any:
        """The result of the operation.

        Nothing stops here, as with other results of JAX: what needs the result waits for it.

        Args:
          after: pytree of arrays. What needs the result begins when these are computed, too, so
            that XLA computes them while values travel. Without, it may take another order.

        Returns:
          What the operation without ``_start`` gives.

        Raises:
          InvalidArgumentError: when it has been waited for already; with ``bucket_bytes``, within
            another traced function than the one that started it.

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
        self._launch()
        self._waited = True
        if after is None:
            return self._result
        return jax.lax.optimization_barrier((self._result, after))[0]

    def tree_flatten(self) -> tuple[tuple[Any], _Started]:
        self._launch()
        self._must_be_waited_for = False
        return (self._result,), self._started

    @classmethod
    def tree_unflatten(cls, started: _Started, children: tuple[Any]) -> Handle:
        return cls(started, *children)

    def _launch(self) -> None:
        if self._bucket is not None:
            self._bucket.launch(self)

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


class _Bucket:
    """Operations that become one: with the same arguments, within the same traced function."""

    def __init__(self, function: Operation, options: dict[str, Any], most_bytes: int):
        self._function, self._options, self._most_bytes = function, options, most_bytes
        self._trace = _compat.trace_state()
        self._call = _compat.at_this_line(lambda x, more: function(x, **options, **more))
        self._operands: list[Any] = []
        self._references: list[Any] = []
        self._handles: list[weakref.ref[Handle]] = []
        self._bytes = 0

    def takes(
        self, function: Operation, options: dict[str, Any], most_bytes: int, ref: Any
    ) -> bool:
        return (
            self._is_here()
            and (self._function, self._options, self._most_bytes) == (function, options, most_bytes)
            and (ref is None) == (self._references[0] is None)
        )

    def add(self, handle: Handle, x: Any, ref: Any) -> None:
        handle._bucket = self
        self._handles.append(weakref.ref(handle))
        self._operands.append(x)
        self._references.append(ref)
        self._bytes += sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(x))
        if self._bytes >= self._most_bytes:
            self.launch(handle)

    def launch(self, of: Handle) -> None:
        if not self._is_here():
            raise errors.InvalidArgumentError(
                f"{of._started} is waited for within another traced function, such "
                "as a loop's body or a branch, than the one that started it, where it would run "
                "again and again. Wait for it where it was started, or leave bucket_bytes= out."
            )
        _buckets().remove(self)
        more = {} if self._references[0] is None else {"ref": tuple(self._references)}
        results = self._call(tuple(self._operands), more)
        for each, result in zip(self._handles, results, strict=True):
            if (handle := each()) is not None:
                handle._result, handle._bucket = result, None

    def _is_here(self) -> bool:
        return self._trace == _compat.trace_state()


_of_thread = threading.local()


def _buckets() -> weakref.WeakSet[_Bucket]:
    """Those of this thread that are not full, as long as somebody may wait for them."""
    if not hasattr(_of_thread, "buckets"):
        _of_thread.buckets = weakref.WeakSet()
    return _of_thread.buckets


def start_of(function: Operation) -> Callable[..., Handle]:
    """The function that starts ``function``, a public operation."""
    name = function.__name__
    signature = inspect.signature(function)
    bucketed = next(iter(signature.parameters)) == "x" and not _ALONE & signature.parameters.keys()

    def start(*args: Any, **options: Any) -> Handle:
        most_bytes = options.pop("bucket_bytes", 0) if bucketed else 0
        handle = Handle(_Started(name, _compat.this_line()))
        if most_bytes:
            _check_bytes(most_bytes)
            # What does not fit is an error here, and not only where it is waited for.
            jax.eval_shape(lambda: function(*args, **options))
            given = dict(signature.bind(*args, **options).arguments)
            x, ref = given.pop("x"), given.pop("ref", None)
            _bucket_for(function, given, most_bytes, ref).add(handle, x, ref)
        else:
            handle._result = function(*args, **options)
        handle._must_be_waited_for = True
        return handle

    start.__name__ = start.__qualname__ = f"{name}_start"
    start.__module__ = function.__module__
    start.__doc__ = _described(name, bucketed)
    start.__signature__ = _with_bucket_bytes(signature) if bucketed else signature  # type: ignore
    return start


def _bucket_for(function: Operation, options: dict[str, Any], most_bytes: int, ref: Any) -> _Bucket:
    for bucket in _buckets():
        if bucket.takes(function, options, most_bytes, ref):
            return bucket
    bucket = _Bucket(function, options, most_bytes)
    _buckets().add(bucket)
    return bucket


def _check_bytes(given: Any) -> None:
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise errors.InvalidArgumentError(
            f"bucket_bytes must be a number of bytes, or 0 for a call of its own, not {given!r}."
        )


def _with_bucket_bytes(signature: inspect.Signature) -> inspect.Signature:
    more = inspect.Parameter("bucket_bytes", inspect.Parameter.KEYWORD_ONLY, default=0)
    return signature.replace(parameters=[*signature.parameters.values(), more])


def _described(name: str, bucketed: bool) -> str:
    text = f"""Starts `{name}`, and gives a `Handle` whose `Handle.wait` gives its result.

On the wire, and for arguments and errors: as `{name}`.
"""
    if bucketed:
        text += f"""
Args:
  bucket_bytes: with more than 0, operations that are started with the same arguments travel as one,
    when they have so many bytes together or the first of them is waited for. It pays for small
    values, of which each call costs more than its bytes.

Example:
  >>> first = jaxccomp.{name}_start(x, bucket_bytes=1 << 20)             # doctest: +SKIP
  >>> second = jaxccomp.{name}_start(y, bucket_bytes=1 << 20)            # doctest: +SKIP
  >>> x, y = first.wait(), second.wait()                                 # doctest: +SKIP
"""
    return text
