"""`compress` and `compress_with_feedback`: compress the collectives of unchanged programs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

import jax
import jax.numpy as jnp

from jaxccomp import _jax, codecs, errors
from jaxccomp._api.error_feedback import check_residual_dtype
from jaxccomp.lax._rewrite import Rewriter, Slot, Traced, is_array, trace
from jaxccomp.lax._rules import CollectiveRule, as_rules

P = ParamSpec("P")
T = TypeVar("T")
Policy = codecs.CodecLike | CollectiveRule | list[CollectiveRule] | tuple[CollectiveRule, ...]


class CompressState(NamedTuple):
    """The state of `compress_with_feedback`.

    Attributes:
      residuals: an array for each operand of a ``psum`` or ``psum_scatter`` with a lossy codec, in
        program order: the codec's losses on this device. If the function calls a ``shard_map``
        with the collective, the array has the losses of all devices as rows.
    """

    residuals: tuple[Any, ...]


class Compressed(NamedTuple):
    """The result of `compress_with_feedback`.

    Attributes:
      init: ``init(*args, **kwargs)`` returns the initial state, zeros, for these arguments' shapes;
        arrays may be ``jax.ShapeDtypeStruct``.
      apply: ``apply(state, *args, **kwargs)`` returns the function's result and the next state.
    """

    init: Callable[..., CompressState]
    apply: Callable[..., tuple[Any, CompressState]]


def compress(
    function: Callable[P, T],
    policy: Policy,
    *,
    cotangent_codec: codecs.CodecLike = "same",
    backend: str = "auto",
    algorithm: str = "auto",
) -> Callable[P, T]:
    """Returns the function with its collectives compressed, anywhere in its program.

    The function is traced, and in its program (jaxpr) ``psum``, ``pmean``, ``psum_scatter``,
    ``all_gather``, ``all_to_all``, ``ragged_all_to_all`` and ``ppermute`` of ``jax.lax`` are
    replaced by the operations of `jaxccomp.lax` with the policy's codec: also in functions under
    ``jit``, ``shard_map``, ``scan``, ``while_loop``, ``cond``, ``checkpoint``, ``custom_jvp`` and
    ``custom_vjp``, and in derivatives by ``jax.grad``. Leaves of a pytree that one call reduces are
    sent in one exchange. With a lossless codec results are bitwise equal to the same collectives
    without a codec.

    ``shard_map`` may map the function, or the function may call ``shard_map``. A program that only
    uses ``jax.jit`` with sharded arguments has no collectives yet, because XLA adds them later: use
    `data_parallel`.

    Args:
      function: its arguments and results are pytrees. Leaves of arguments that are not arrays are
        constants of the program. It is traced once for each set of shapes and constants; under
        ``jax.jit``, once each time that ``jax.jit`` traces.
      policy: a codec, for floating operands with at least 1024 bytes on each device; or a sequence
        of `CollectiveRule`: the first rule that matches a collective gives its codec. Collectives
        without a rule are not changed.
      cotangent_codec: as for `jaxccomp.lax.psum`, for derivatives of the result.
      backend: as for `jaxccomp.lax.psum`.
      algorithm: as for `jaxccomp.lax.psum`.

    Returns:
      A function with the same arguments and results.

    Raises:
      InvalidArgumentError: when there is no collective, a rule matches none, or a matching one is
        inside an unknown operation.
      UnsupportedDTypeError: when a rule with a lossy codec matches values that are not floating.

    Example:
      >>> step = jax.jit(jaxccomp.compress(train_step, "bf16|lossless"))   # doctest: +SKIP
      >>> step = jaxccomp.compress(                                        # doctest: +SKIP
      ...     train_step,
      ...     [CollectiveRule("lossless", "all_gather"), CollectiveRule("int8", "psum")])
    """
    rules = as_rules(policy)
    how = {"cotangent_codec": cotangent_codec, "backend": backend, "algorithm": algorithm}
    programs = _Programs(function, lambda: Rewriter(rules, how), rules)

    @functools.wraps(function)
    def compressed(*args: P.args, **kwargs: P.kwargs) -> T:
        traced, rewriter, arrays = programs.find(args, kwargs)
        return traced.rebuild(rewriter.evaluate(traced.jaxpr, arrays, [])[0])

    return compressed


def compress_with_feedback(
    function: Callable[..., Any],
    policy: Policy,
    *,
    backend: str = "auto",
    algorithm: str = "auto",
    residual_dtype: str | None = "float32",
) -> Compressed:
    """Compresses as `compress`, with error feedback for sums with lossy codecs.

    Each ``psum`` of floating values (also ``pmean``) with a lossy codec becomes a
    `jaxccomp.allreduce_with_feedback`, each ``psum_scatter`` a
    `jaxccomp.reduce_scatter_with_feedback`; their residuals are the state. In a ``scan`` or a
    ``while_loop`` they are passed from iteration to iteration; a branch of ``cond`` that is not
    taken does not change them. An exchange with a non-finite result returns NaN and does not change
    its residuals. Other collectives are compressed as by `compress`.

    Args:
      function: a function that computes its gradients itself, such as a training step: the result
        has no derivatives.
      policy: as for `compress`.
      backend: as for `compress`.
      algorithm: as for `compress`.
      residual_dtype: as for `jaxccomp.optim.allreduce_gradients`.

    Returns:
      ``(init, apply)``; see `Compressed`. If ``shard_map`` maps the function, call ``init`` inside
      ``shard_map`` too.

    Raises:
      InvalidArgumentError: as `compress`; when a residual cannot be passed on (in ``checkpoint``,
        in ``custom_vjp``, in the condition of a ``while_loop``, or in a branch that may differ
        between devices); for a state of another program.
      UnsupportedDTypeError: as `compress`.

    Example:
      >>> step = jaxccomp.compress_with_feedback(train_step, "onebit")     # doctest: +SKIP
      >>> state = step.init(params, batch)                                 # doctest: +SKIP
      >>> apply = jax.jit(step.apply)                                      # doctest: +SKIP
      >>> params, state = apply(state, params, batch)                      # doctest: +SKIP
    """
    check_residual_dtype("compress_with_feedback", residual_dtype)
    rules = as_rules(policy)
    how = {"backend": backend, "algorithm": algorithm}
    programs = _Programs(function, lambda: Rewriter(rules, how, True, residual_dtype), rules)

    def init(*args: Any, **kwargs: Any) -> CompressState:
        traced, rewriter, _ = programs.find(args, kwargs)
        return CompressState(tuple(map(_zeros, rewriter.slots(traced.jaxpr))))

    def apply(state: CompressState, *args: Any, **kwargs: Any) -> tuple[Any, CompressState]:
        traced, rewriter, arrays = programs.find(args, kwargs)
        _check_state(state, rewriter.slots(traced.jaxpr))
        results, left = rewriter.evaluate(traced.jaxpr, arrays, state.residuals)
        return traced.rebuild(results), CompressState(tuple(left))

    return Compressed(init, apply)


class _Programs:
    """The programs of a function, for each set of shapes, dtypes and constants."""

    def __init__(
        self,
        function: Callable[..., Any],
        rewriter: Callable[[], Rewriter],
        rules: Sequence[CollectiveRule],
    ) -> None:
        self._function = function
        self._rewriter = rewriter
        self._rules = rules
        self._known: dict[Any, tuple[Traced, Rewriter]] = {}

    def find(self, args: Any, kwargs: Any) -> tuple[Traced, Rewriter, list[Any]]:
        """Return the program for these arguments, its rewriter, and its operands."""
        leaves, treedef = jax.tree.flatten((args, kwargs))
        arrays = [leaf for leaf in leaves if is_array(leaf)]
        if any(map(_jax.is_tracer, arrays)):  # an outer trace: nothing can be cached
            return *self._trace(args, kwargs), arrays
        around = jax.sharding.get_abstract_mesh(), cast(Any, jax.config).jax_enable_x64
        key = treedef, around, tuple(map(_kind, leaves))
        try:
            known = self._known.get(key)
        except TypeError:  # a constant that cannot be compared
            return *self._trace(args, kwargs), arrays
        if known is None:
            known = self._known[key] = self._trace(args, kwargs)
        return *known, arrays

    def _trace(self, args: Any, kwargs: Any) -> tuple[Traced, Rewriter]:
        traced = trace(self._function, args, kwargs)
        rewriter = self._rewriter()
        _check(rewriter, traced, self._rules, _name(self._function))
        return traced, rewriter


def _kind(leaf: Any) -> Any:
    if is_array(leaf):
        return (
            leaf.shape,
            leaf.dtype,
            getattr(leaf, "weak_type", False),
            getattr(leaf, "sharding", None),
        )
    return type(leaf), leaf


def _check(rewriter: Rewriter, traced: Traced, rules: Sequence[CollectiveRule], name: str) -> None:
    """Raise if there is nothing to compress, or a rule matches nothing."""
    sites = list(rewriter.sites(traced.jaxpr))
    if rewriter.has_rules(traced.jaxpr):
        return  # the collectives of their derivatives are not known yet
    if not sites:
        raise errors.InvalidArgumentError(
            f"compress: there is no collective of jax.lax in the program of {name}. If it is one "
            "for jax.jit with sharded arguments, XLA adds them when it compiles: "
            "jaxccomp.data_parallel makes one axis explicit."
        )
    for rule in rules:
        if not any(map(rule.takes, sites)):
            found = errors.listed(sorted(set(map(str, sites)))[:10])
            raise errors.InvalidArgumentError(
                f"compress: {rule} takes no collective in the program of {name}, which has: "
                f"{found}."
            )


def _check_state(state: CompressState, slots: Sequence[Slot]) -> None:
    given = [(x.shape, x.dtype) for x in map(jnp.asarray, state.residuals)]
    needed = [(slot.shape, jnp.dtype(slot.dtype)) for slot in slots]
    if given != needed:
        raise errors.InvalidArgumentError(
            "compress_with_feedback: the state belongs to another program: this one has residuals "
            f"{_listed(needed)}, the state {_listed(given)}. Start with init(*args)."
        )


def _listed(kinds: Sequence[tuple[tuple[int, ...], Any]]) -> str:
    return errors.listed(f"{dtype.name}[{','.join(map(str, shape))}]" for shape, dtype in kinds)


def _zeros(slot: Slot) -> Any:
    zeros = jnp.zeros(slot.shape, slot.dtype)
    return _jax.vary(zeros, slot.axes) if slot.axes else zeros


def _name(function: Callable[..., Any]) -> str:
    return getattr(inspect.unwrap(function), "__name__", repr(function))
