"""Programs whose collectives are compressed without a change to them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar

import jax
import jax.numpy as jnp

from jaxccomp import _compat, codecs, errors
from jaxccomp._api.error_feedback import check_residual_dtype
from jaxccomp.lax._rewrite import Rewriter, Slot, Traced, is_array, trace
from jaxccomp.lax._rules import CollectiveRule, as_rules

P = ParamSpec("P")
T = TypeVar("T")
Policy = codecs.CodecLike | Sequence[CollectiveRule]


class CompressState(NamedTuple):
    """What `compress_with_feedback` keeps.

    Attributes:
      residuals: an array for each operand of a ``psum`` or ``psum_scatter`` with a lossy codec, in
        the program's order: what the codec lost of this device's. Of one in a ``shard_map`` that
        the function calls, all devices' as rows.
    """

    residuals: tuple[Any, ...]


class Compressed(NamedTuple):
    """What `compress_with_feedback` makes of a function.

    Attributes:
      init: ``init(*args, **kwargs)`` gives the first state, zeros, for arguments of such shapes;
        ``jax.ShapeDtypeStruct`` stands for an array.
      apply: ``apply(state, *args, **kwargs)`` gives the function's result and the next state.
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
    """The same function with its collectives compressed, wherever in its program they are.

    The function is traced, and in its program (its jaxpr) ``psum``, ``pmean``, ``psum_scatter``,
    ``all_gather``, ``all_to_all``, ``ragged_all_to_all`` and ``ppermute`` of ``jax.lax`` become
    those of `jaxccomp.lax`, with the codec that the policy says: in functions under ``jit``,
    ``shard_map``, ``scan``, ``while_loop``, ``cond``, ``checkpoint``, ``custom_jvp`` and
    ``custom_vjp`` too, and in what ``jax.grad`` has made. Leaves of a pytree that one call reduces
    go in one exchange. With a lossless codec results are bit for bit what they would be with the
    same collectives raw.

    The function may be what ``shard_map`` maps, or may call ``shard_map`` itself. What ``jax.jit``
    does with sharded arguments alone has no collectives in its program: XLA adds them later. For
    these there is `data_parallel`.

    Args:
      function: its arguments and results are pytrees. Leaves of arguments that are no arrays are
        constants of the program. It is traced once for each set of shapes and constants; under
        ``jax.jit``, whenever that traces.
      policy: a codec, for all that is floating and has 1024 bytes or more on each device; or a
        sequence of `CollectiveRule`, of which the first that takes a collective says its codec.
        What none takes stays as it is.
      cotangent_codec: as for `jaxccomp.lax.psum`, where derivatives are taken of the result.
      backend: as for `jaxccomp.lax.psum`.
      algorithm: as for `jaxccomp.lax.psum`.

    Returns:
      A function with the same arguments and results.

    Raises:
      InvalidArgumentError: where there is no collective at all, a rule takes none, or one that a
        rule takes is inside an operation that is not known.
      UnsupportedDTypeError: where a rule with a lossy codec takes what is not floating.

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
    """As `compress`, but what lossy codecs lose of sums is added to the next ones.

    Each ``psum`` of floating values (``pmean`` is one) with a lossy codec becomes a
    `jaxccomp.allreduce_with_feedback`, each ``psum_scatter`` a
    `jaxccomp.reduce_scatter_with_feedback`, and their residuals are the state. In a ``scan`` or a
    ``while_loop`` they go from one turn to the next; a branch of ``cond`` that is not taken leaves
    them as they are. An exchange whose result is not finite gives NaN and leaves its own residuals
    as they are. Other collectives are compressed as `compress` does.

    Args:
      function: one that has the gradients already, such as a training step: there are no
        derivatives of the result.
      policy: as for `compress`.
      backend: as for `compress`.
      algorithm: as for `compress`.
      residual_dtype: as for `jaxccomp.optim.allreduce_gradients`.

    Returns:
      ``(init, apply)``; see `Compressed`. If the function is what ``shard_map`` maps, call ``init``
      there, too.

    Raises:
      InvalidArgumentError: as `compress`; where a residual cannot be carried (in ``checkpoint``,
        in ``custom_vjp``, in the condition of a ``while_loop``, or in a branch that devices may
        take differently); for a state of another program.
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
        """The program for these arguments, what rewrites it, and its operands."""
        leaves, treedef = jax.tree.flatten((args, kwargs))
        arrays = [leaf for leaf in leaves if is_array(leaf)]
        if any(map(_compat.is_tracer, arrays)):  # the trace around is of this call alone
            return *self._trace(args, kwargs), arrays
        around = jax.sharding.get_abstract_mesh(), jax.config.jax_enable_x64
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
    """Raises where there is nothing to compress, or a rule takes nothing."""
    sites = list(rewriter.sites(traced.jaxpr))
    if rewriter.has_rules(traced.jaxpr):
        return  # what their derivatives have is not known yet
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
            "compress_with_feedback: the state is that of another program: this one has residuals "
            f"{_listed(needed)}, the state {_listed(given)}. Start with init(*args)."
        )


def _listed(kinds: Sequence[tuple[tuple[int, ...], Any]]) -> str:
    return errors.listed(f"{dtype.name}[{','.join(map(str, shape))}]" for shape, dtype in kinds)


def _zeros(slot: Slot) -> Any:
    zeros = jnp.zeros(slot.shape, slot.dtype)
    return _compat.vary(zeros, slot.axes) if slot.axes else zeros


def _name(function: Callable[..., Any]) -> str:
    return getattr(inspect.unwrap(function), "__name__", repr(function))
