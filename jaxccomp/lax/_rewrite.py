"""Evaluates a jaxpr and replaces collectives of ``jax.lax`` by ours.

Operations that call functions (``jit``, ``shard_map``, ``scan``, ``while``, ``cond``, ``remat``,
``custom_jvp``, ``custom_vjp``) are kept: JAX's public functions stage them again with the rewritten
functions.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from jaxccomp import _jax, errors
from jaxccomp._api.error_feedback import residual_dtype_of
from jaxccomp._jax import hooks
from jaxccomp.lax import _sites
from jaxccomp.lax._rules import CollectiveRule, Site, choose

Array = Any
# Values, and the residuals of the collectives inside.
Staged = tuple[list[Array], list[Array]]

_ARRAY = object()
_CARRIES_RESIDUALS = (_jax.COND, _jax.JIT, _jax.SCAN, _jax.SHARD_MAP, _jax.WHILE)


@dataclasses.dataclass(frozen=True)
class Slot:
    """The residual of one operand of a ``psum`` or ``psum_scatter``.

    Attributes:
      shape: on each device; outside a ``shard_map`` with a leading dimension for its devices.
      dtype: of the residual.
      axes: the manual axes of an enclosing ``shard_map`` over which the residual varies; None if
        types do not show it.
      site: the collective.
    """

    shape: tuple[int, ...]
    dtype: Any
    axes: frozenset[Any] | None
    site: Site


@dataclasses.dataclass
class Traced:
    """A function as a jaxpr.

    Attributes:
      jaxpr: closed; its operands are the arrays among the leaves of the arguments.
      rebuild: makes the function's result from the jaxpr's results.
    """

    jaxpr: Any
    rebuild: Callable[[Sequence[Array]], Any]


def is_array(leaf: Any) -> bool:
    """Return whether a leaf is an operand of a program: an array, or a shape in its place."""
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct))


def trace(function: Callable[..., Any], args: Any, kwargs: Any) -> Traced:
    """Trace a function. Leaves that are no arrays, such as numbers, become constants."""
    leaves, treedef = jax.tree.flatten((args, kwargs))
    places = [i for i, leaf in enumerate(leaves) if is_array(leaf)]
    constants: list[Any] = []  # of the result; _ARRAY in place of arrays
    structure = None

    def flat(*arrays: Array) -> list[Array]:
        nonlocal constants, structure
        given = list(leaves)
        for i, array in zip(places, arrays, strict=True):
            given[i] = array
        args, kwargs = jax.tree.unflatten(treedef, given)
        results, structure = jax.tree.flatten(function(*args, **kwargs))
        constants = [_ARRAY if is_array(leaf) else leaf for leaf in results]
        return [leaf for leaf in results if is_array(leaf)]

    jaxpr = jax.make_jaxpr(flat)(*(leaves[i] for i in places))

    def rebuild(arrays: Sequence[Array]) -> Any:
        given = iter(arrays)
        whole = [next(given) if each is _ARRAY else each for each in constants]
        return jax.tree.unflatten(structure, whole)

    return Traced(jaxpr, rebuild)


class Rewriter:
    """Replaces collectives that match rules by ours.

    With ``feedback`` each ``psum`` and ``psum_scatter`` with a lossy codec has a residual per
    operand, in the order of the program.
    """

    def __init__(
        self,
        rules: Sequence[CollectiveRule],
        how: dict[str, Any],
        feedback: bool = False,
        residual_dtype: str | None = "float32",
    ) -> None:
        # JAX might rename a collective, which would then be sent without compression.
        hooks.require("collectives in jaxprs")
        self._rules = rules
        self._how = how
        self._feedback = feedback
        self._residual_dtype = residual_dtype
        self._jitted: dict[tuple[int, str], tuple[Any, Callable[..., Any]]] = {}

    # --- analysis ---

    def sites(self, jaxpr: Any, scope: str = "") -> Iterator[Site]:
        """Yield all collectives, except in derivative rules."""
        for eqn in _jax.opened(jaxpr)[0].eqns:
            inner = _join(scope, _jax.scope_of(eqn))
            site = _sites.site_of(eqn, inner)
            if site is not None:
                yield site
            for each in _jax.inner_jaxprs(eqn):
                yield from self.sites(each, inner)

    def has_rules(self, jaxpr: Any) -> bool:
        """Return whether there is a ``custom_vjp``, whose rules may have collectives."""
        return any(
            eqn.primitive.name == _jax.CUSTOM_VJP
            or any(map(self.has_rules, _jax.inner_jaxprs(eqn)))
            for eqn in _jax.opened(jaxpr)[0].eqns
        )

    def slots(self, jaxpr: Any, scope: str = "") -> list[Slot]:
        """Return the residuals of a jaxpr."""
        found = []
        for eqn in _jax.opened(jaxpr)[0].eqns:
            found += self._slots_of(eqn, scope)
        return found

    def _slots_of(self, eqn: Any, scope: str) -> list[Slot]:
        if not self._feedback:
            return []
        inner = _join(scope, _jax.scope_of(eqn))
        if (rule := self._rule_of(eqn, scope)) is not None:
            if not _keeps_residuals(eqn, rule):
                return []
            site = _sites.site_of(eqn, inner)
            assert site is not None
            varying = _jax.varying_of(eqn.invars[0])
            return [
                Slot(aval.shape, residual_dtype_of(aval.dtype, self._residual_dtype), varying, site)
                for aval in map(_jax.aval_of, eqn.invars)
            ]
        found = [slot for each in _jax.inner_jaxprs(eqn) for slot in self.slots(each, inner)]
        if found:
            self._check_feedback(eqn, found, inner)
        if eqn.primitive.name == _jax.SHARD_MAP:
            return [_outside(slot, _jax.shard_map_of(eqn)) for slot in found]
        return found

    def _check_feedback(self, eqn: Any, slots: list[Slot], scope: str) -> None:
        """Raise if residuals cannot be passed through an operation."""
        name, site = eqn.primitive.name, slots[0].site
        if name == _jax.WHILE:
            if self.slots(_jax.while_of(eqn).cond_jaxpr, scope):
                raise errors.InvalidArgumentError(
                    f"compress_with_feedback: the {site} is in the condition of a while_loop, "
                    "which has no results that a residual could be. Have a rule without a codec "
                    "take it."
                )
        elif name == _jax.COND:
            varies = _jax.varying_of(eqn.invars[0])
            for slot in slots:
                if varies.intersection(slot.site.axes):
                    raise errors.InvalidArgumentError(
                        f"compress_with_feedback: the {slot.site} is in a branch that devices "
                        f"along {', '.join(map(str, slot.site.axes))} may take differently, as the "
                        f"predicate at {_jax.line_of(eqn)} varies over it. Make the predicate "
                        "the same on all, by jax.lax.pmax for example."
                    )
        elif name not in _CARRIES_RESIDUALS:
            raise errors.InvalidArgumentError(
                f"compress_with_feedback: the {site} is inside {name}, which runs it again in "
                "derivatives, where it would need the residual as it was. Apply "
                "compress_with_feedback outside of jax.grad, to the training step, or match it by "
                "a rule without a codec."
            )

    def _rule_of(self, eqn: Any, scope: str) -> CollectiveRule | None:
        site = _sites.site_of(eqn, _join(scope, _jax.scope_of(eqn)))
        return None if site is None else choose(self._rules, site)

    def _is_concerned(self, eqn: Any, scope: str) -> bool:
        """Return whether an operation that calls functions must be staged again."""
        if eqn.primitive.name == _jax.CUSTOM_VJP:
            return True
        inner = _join(scope, _jax.scope_of(eqn))
        return any(
            self._rule_of(each, inner) is not None or self._is_concerned(each, inner)
            for jaxpr in _jax.inner_jaxprs(eqn)
            for each in _jax.opened(jaxpr)[0].eqns
        )

    # --- evaluation ---

    def evaluate(
        self, jaxpr: Any, args: Sequence[Array], residuals: Sequence[Array], scope: str = ""
    ) -> Staged:
        """Evaluate a jaxpr, closed or without constants."""
        jaxpr, consts = _jax.opened(jaxpr)
        env = dict(zip(jaxpr.constvars, consts, strict=True))
        env.update(zip(jaxpr.invars, args, strict=True))
        given, left = iter(residuals), []

        def read(atom: Any) -> Array:
            return atom.val if _jax.is_literal(atom) else env[atom]

        for group in self._groups(jaxpr.eqns, scope):
            eqn, operands = group[0], [[read(v) for v in each.invars] for each in group]
            taken = list(itertools.islice(given, sum(len(self._slots_of(e, scope)) for e in group)))
            with _jax.at_equation(eqn):
                results, kept = self._stage(group, operands, taken, scope)
            left += kept
            for each, values in zip(group, results, strict=True):
                env.update(zip(each.outvars, values, strict=True))
        return [read(v) for v in jaxpr.outvars], left

    def _groups(self, eqns: Sequence[Any], scope: str) -> Iterator[list[Any]]:
        """Yield groups of equations: the collectives of a pytree, or a single equation."""
        group: list[Any] = []
        for eqn in eqns:
            if group and not (
                _sites.are_one(group[0], eqn)
                and not {v for each in group for v in each.outvars}.intersection(
                    v for v in eqn.invars if not _jax.is_literal(v)
                )
                and self._rule_of(group[0], scope) is not None
                and self._rule_of(group[0], scope) == self._rule_of(eqn, scope)
            ):
                yield group
                group = []
            group.append(eqn)
        if group:
            yield group

    def _stage(
        self, group: list[Any], operands: list[list[Array]], residuals: list[Array], scope: str
    ) -> tuple[list[list[Array]], list[Array]]:
        eqn = group[0]
        rule = self._rule_of(eqn, scope)
        if rule is not None:
            how = {**self._how, "codec": rule.codec}
            if residuals:
                return _sites.stage_with_feedback(group, operands, residuals, how)
            return _sites.stage(group, operands, how), []
        if not self._is_concerned(eqn, scope):
            return [_jax.bind_again(eqn, operands[0])], []
        handler = _HANDLERS.get(eqn.primitive.name)
        if handler is None:
            raise errors.InvalidArgumentError(
                f"compress: a collective that a rule takes is inside {eqn.primitive.name} at "
                f"{_jax.line_of(eqn)}, which compress does not know. It goes through "
                f"{errors.listed(sorted(_HANDLERS))}."
            )
        inner = _join(scope, _jax.scope_of(eqn))
        values, left = handler(self, eqn, operands[0], residuals, inner)
        return [list(values)], left

    def rewritten(self, scope: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that traces ``function`` when called, and replaces its collectives."""

        def changed(*args: Any, **kwargs: Any) -> Any:
            traced = trace(function, args, kwargs)
            if slots := self.slots(traced.jaxpr, scope):
                raise errors.InvalidArgumentError(
                    f"compress_with_feedback: the {slots[0].site} is inside a rule of custom_jvp "
                    "or custom_vjp, which runs when derivatives are taken. Apply "
                    "compress_with_feedback outside of jax.grad, to the training step."
                )
            leaves = [leaf for leaf in jax.tree.leaves((args, kwargs)) if is_array(leaf)]
            return traced.rebuild(self.evaluate(traced.jaxpr, leaves, [], scope)[0])

        return changed

    def jitted(self, eqn: Any, count: int, scope: str, residuals: int) -> Callable[..., Any]:
        """Return the rewritten jitted function; always the same one, so JAX compiles it once."""
        params = _jax.jit_of(eqn)
        jaxpr = params.jaxpr
        if (id(jaxpr), scope) not in self._jitted:

            def run(*values: Array) -> tuple[Array, ...]:
                results, left = self.evaluate(jaxpr, values[:count], values[count:], scope)
                return (*results, *left)

            run.__name__ = run.__qualname__ = params.name
            function = jax.jit(run, **_jit_options(params, residuals))
            self._jitted[id(jaxpr), scope] = jaxpr, function
        return self._jitted[id(jaxpr), scope][1]


def _join(scope: str, inner: str) -> str:
    return f"{scope}/{inner}" if scope and inner else scope or inner


def _keeps_residuals(eqn: Any, rule: CollectiveRule) -> bool:
    floating = all(jnp.issubdtype(_jax.aval_of(v).dtype, jnp.floating) for v in eqn.invars)
    return _sites.has_feedback(eqn) and floating and rule.is_lossy


def _outside(slot: Slot, params: _jax.ShardMap) -> Slot:
    """Return a residual of a ``shard_map``'s function as its caller sees it."""
    axes = _residual_axes(slot, params)
    if slot.axes is None:
        left = None
    else:
        left = slot.axes - params.manual_axes
    rows = int(np.prod([params.mesh.shape[axis] for axis in axes], dtype=int))
    shape = (rows, *slot.shape) if axes else slot.shape
    return dataclasses.replace(slot, shape=shape, axes=left)


def _residual_axes(slot: Slot, params: _jax.ShardMap) -> tuple[Any, ...]:
    """Return the axes of a ``shard_map`` over which a residual varies, in the mesh's order."""
    manual = [axis for axis in params.mesh.axis_names if axis in params.manual_axes]
    if not params.check_vma or slot.axes is None:
        return tuple(manual)
    return tuple(axis for axis in manual if axis in slot.axes)


def _jit_options(params: _jax.Jit, residuals: int) -> dict[str, Any]:
    options: dict[str, Any] = {
        "donate_argnums": tuple(i for i, donated in enumerate(params.donated) if donated),
        "keep_unused": params.keep_unused,
        "inline": params.inline,
    }
    if params.compiler_options:
        options["compiler_options"] = params.compiler_options
    shardings = {"in_shardings": params.in_shardings, "out_shardings": params.out_shardings}
    for name, given in shardings.items():
        if any(each is not None for each in given):
            options[name] = (*given, *[None] * residuals)
    return options


def _parted(eqn: Any, results: Sequence[Array]) -> Staged:
    """Split a function's results into an equation's results and residuals."""
    count = len(eqn.outvars)
    return list(results[:count]), list(results[count:])


def _jit(
    rewriter: Rewriter, eqn: Any, args: list[Array], residuals: list[Array], scope: str
) -> Staged:
    function = rewriter.jitted(eqn, len(args), scope, len(residuals))
    return _parted(eqn, function(*args, *residuals))


def _shard_map(
    rewriter: Rewriter, eqn: Any, args: list[Array], residuals: list[Array], scope: str
) -> Staged:
    params = _jax.shard_map_of(eqn)
    axes = [_residual_axes(slot, params) for slot in rewriter.slots(params.jaxpr, scope)]

    def run(*values: Array) -> tuple[Array, ...]:
        rows = zip(axes, values[len(args) :], strict=True)
        own = [row[0] if over else row for over, row in rows]
        results, left = rewriter.evaluate(params.jaxpr, values[: len(args)], own, scope)
        kept = [lost[None] if over else lost for over, lost in zip(axes, left, strict=True)]
        return (*results, *kept)

    specs = [PartitionSpec(over) if over else PartitionSpec() for over in axes]
    results = jax.shard_map(
        run,
        mesh=params.mesh,
        in_specs=(*params.in_specs, *specs),
        out_specs=(*params.out_specs, *specs),
        axis_names=set(params.manual_axes),
        check_vma=params.check_vma,
    )(*args, *residuals)
    return _parted(eqn, results)


def _scan(
    rewriter: Rewriter, eqn: Any, args: list[Array], residuals: list[Array], scope: str
) -> Staged:
    params = _jax.scan_of(eqn)
    consts, carried = params.const_count, params.carry_count

    def body(carry: Any, xs: list[Array]) -> tuple[Any, list[Array]]:
        values, own = carry
        results, left = rewriter.evaluate(params.jaxpr, [*args[:consts], *values, *xs], own, scope)
        return (results[:carried], left), results[carried:]

    start = consts + carried
    (values, left), ys = lax.scan(
        body,
        (args[consts:start], residuals),
        args[start:],
        length=params.length,
        reverse=params.reverse,
        unroll=params.unroll,
    )
    return [*values, *ys], left


def _while(
    rewriter: Rewriter, eqn: Any, args: list[Array], residuals: list[Array], scope: str
) -> Staged:
    params = _jax.while_of(eqn)
    first = params.cond_const_count
    second = first + params.body_const_count

    def condition(carry: Any) -> Array:
        operands = [*args[:first], *carry[0]]
        return rewriter.evaluate(params.cond_jaxpr, operands, [], scope)[0][0]

    def body(carry: Any) -> Any:
        operands = [*args[first:second], *carry[0]]
        return rewriter.evaluate(params.body_jaxpr, operands, carry[1], scope)

    values, left = lax.while_loop(condition, body, (args[second:], residuals))
    return values, left


def _cond(
    rewriter: Rewriter, eqn: Any, args: list[Array], residuals: list[Array], scope: str
) -> Staged:
    def branch(jaxpr: Any, begin: int, end: int) -> Callable[..., Staged]:
        def run(values: list[Array], given: list[Array]) -> Staged:
            results, left = rewriter.evaluate(jaxpr, values, given[begin:end], scope)
            return results, [*given[:begin], *left, *given[end:]]

        return run

    branches, begin = [], 0
    for jaxpr in _jax.branches_of(eqn):
        end = begin + len(rewriter.slots(jaxpr, scope))
        branches.append(branch(jaxpr, begin, end))
        begin = end
    values, left = lax.switch(args[0], branches, args[1:], residuals)
    return values, left


def _checkpoint(
    rewriter: Rewriter, eqn: Any, args: list[Array], residuals: list[Array], scope: str
) -> Staged:
    def run(*values: Array) -> list[Array]:
        return rewriter.evaluate(_jax.checkpointed_of(eqn), values, [], scope)[0]

    return _jax.bind_checkpoint(eqn, args, run), residuals


def _custom(
    rewriter: Rewriter, eqn: Any, args: list[Array], residuals: list[Array], scope: str
) -> Staged:
    change = functools.partial(rewriter.rewritten, scope)
    return _jax.bind_with_rules(eqn, args, change), residuals


_HANDLERS: dict[str, Callable[[Rewriter, Any, list[Array], list[Array], str], Staged]] = {
    **dict.fromkeys(_jax.CHECKPOINTS, _checkpoint),
    _jax.COND: _cond,
    _jax.CUSTOM_JVP: _custom,
    _jax.CUSTOM_VJP: _custom,
    _jax.JIT: _jit,
    _jax.SCAN: _scan,
    _jax.SHARD_MAP: _shard_map,
    _jax.WHILE: _while,
}
