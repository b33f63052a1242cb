"""Equations of a jaxpr: collectives of jax.lax, and operations that call functions.

Only this module uses the names of JAX's primitives and of their parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from jaxccomp._jax import internals
from jaxccomp._jax.internals import uses

extend = internals.module("jax.extend.core")
linear_util = internals.module("jax._src.linear_util")
partial_eval = internals.module("jax._src.interpreters.partial_eval")

# Names of primitives that call functions.
CHECKPOINTS = ("checkpoint", "remat2")
COND = "cond"
CUSTOM_JVP = "custom_jvp_call"
CUSTOM_VJP = "custom_vjp_call"
JIT = "jit"
SCAN = "scan"
SHARD_MAP = "shard_map"
WHILE = "while"

# Maps a primitive's name to its function in jax.lax, and the arguments of this function to the
# primitive's parameters. A primitive without _GROUPS has no parameter for groups.
_GROUPS = {"axis_index_groups": "axis_index_groups"}
_ALL_GATHER = {"axis_name": "axis_name", "axis": "all_gather_dimension", "tiled": "tiled"}
_COLLECTIVES: dict[str, tuple[str, dict[str, str]]] = {
    "psum": ("psum", {"axis_name": "axes"} | _GROUPS),
    "psum_invariant": ("psum", {"axis_name": "axes"}),
    "all_gather": ("all_gather", _ALL_GATHER | _GROUPS),
    "all_gather_invariant": ("all_gather", _ALL_GATHER),
    "reduce_scatter": (
        "psum_scatter",
        {"axis_name": "axis_name", "scatter_dimension": "scatter_dimension", "tiled": "tiled"}
        | _GROUPS,
    ),
    "all_to_all": (
        "all_to_all",
        {"axis_name": "axis_name", "split_axis": "split_axis", "concat_axis": "concat_axis"}
        | _GROUPS,
    ),
    "ragged_all_to_all": ("ragged_all_to_all", {"axis_name": "axis_name"} | _GROUPS),
    "ppermute": ("ppermute", {"axis_name": "axis_name", "perm": "perm"}),
}


class Collective(NamedTuple):
    """A collective of ``jax.lax`` in a jaxpr.

    Attributes:
      name: its name in ``jax.lax``.
      arguments: the keyword arguments of that function that the primitive has as parameters.
      invariant: whether the result has the same value, by its type, on all ranks of the axes.
    """

    name: str
    arguments: dict[str, Any]
    invariant: bool


@uses("collectives in jaxprs")
def collective_of(eqn: Any) -> Collective | None:
    """Return the collective of an equation; None for other operations."""
    primitive = eqn.primitive.name
    if primitive not in _COLLECTIVES:
        return None
    name, parameters = _COLLECTIVES[primitive]
    arguments = {each: eqn.params[parameter] for each, parameter in parameters.items()}
    return Collective(name, arguments, primitive.endswith("_invariant"))


@uses("collectives in jaxprs")
def group_size(eqn: Any) -> int:
    """Return the number of ranks in a group of a ``psum_scatter``."""
    return eqn.params["axis_size"]


@uses("collectives in jaxprs")
def are_alike(first: Any, second: Any) -> bool:
    """Return whether two equations are the same operation with the same parameters."""
    return first.primitive is second.primitive and first.params == second.params


def opened(jaxpr: Any) -> tuple[Any, Sequence[Any]]:
    """Return the open jaxpr of a closed or open one, and its constants (none if it is open)."""
    return getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ())


@uses("functions in jaxprs")
def inner_jaxprs(eqn: Any) -> list[Any]:
    """Return the jaxprs that an equation calls, without custom derivative rules."""
    return list(extend.jaxprs_in_params(eqn.params))


@uses("functions in jaxprs")
def is_literal(atom: Any) -> bool:
    """Return whether an operand of an equation is a constant instead of a variable."""
    return isinstance(atom, extend.Literal)


class Jit(NamedTuple):
    """The parameters of a ``jit`` equation; shardings that the user did not give are None."""

    jaxpr: Any
    name: str
    donated: Sequence[bool]
    keep_unused: bool
    inline: bool
    compiler_options: dict[str, Any]
    in_shardings: list[Any]
    out_shardings: list[Any]


@uses("functions in jaxprs")
def jit_of(eqn: Any) -> Jit:
    """Return the parameters of a ``jit`` equation."""
    params = eqn.params
    given = [
        [each if isinstance(each, jax.sharding.Sharding) else None for each in params[name]]
        for name in ("in_shardings", "out_shardings")
    ]
    return Jit(
        params["jaxpr"],
        params["name"],
        params["donated_invars"],
        params["keep_unused"],
        params["inline"],
        dict(params["compiler_options_kvs"]),
        *given,
    )


class ShardMap(NamedTuple):
    """The parameters of a ``shard_map`` equation."""

    jaxpr: Any
    mesh: Any
    in_specs: Sequence[Any]
    out_specs: Sequence[Any]
    manual_axes: frozenset[Any]
    check_vma: bool


@uses("functions in jaxprs")
def shard_map_of(eqn: Any) -> ShardMap:
    """Return the parameters of a ``shard_map`` equation."""
    names = ("jaxpr", "mesh", "in_specs", "out_specs", "newly_manual_axes", "check_vma")
    jaxpr, mesh, in_specs, out_specs, manual_axes, check_vma = (eqn.params[n] for n in names)
    return ShardMap(jaxpr, mesh, in_specs, out_specs, frozenset(manual_axes), check_vma)


class Scan(NamedTuple):
    """The parameters of a ``scan`` equation, whose operands are constants, carry, inputs."""

    jaxpr: Any
    const_count: int
    carry_count: int
    length: int
    reverse: bool
    unroll: Any


@uses("functions in jaxprs")
def scan_of(eqn: Any) -> Scan:
    """Return the parameters of a ``scan`` equation."""
    params = eqn.params
    if "num_consts" in params:  # JAX before 0.12
        counts = params["num_consts"], params["num_carry"]
    else:
        consts, carry, _ = params["ft_in"].unpack()
        counts = len(list(consts)), len(list(carry))
    return Scan(params["jaxpr"], *counts, params["length"], params["reverse"], params["unroll"])


class While(NamedTuple):
    """The parameters of a ``while`` equation; operands: constants of both functions, carry."""

    cond_jaxpr: Any
    body_jaxpr: Any
    cond_const_count: int
    body_const_count: int


@uses("functions in jaxprs")
def while_of(eqn: Any) -> While:
    """Return the parameters of a ``while`` equation."""
    names = ("cond_jaxpr", "body_jaxpr", "cond_nconsts", "body_nconsts")
    return While(*(eqn.params[name] for name in names))


@uses("functions in jaxprs")
def branches_of(eqn: Any) -> Sequence[Any]:
    """Return the jaxprs of a ``cond`` equation, whose first operand is their index."""
    return eqn.params["branches"]


@uses("functions in jaxprs")
def checkpointed_of(eqn: Any) -> Any:
    """Return the jaxpr of a ``checkpoint`` equation."""
    return eqn.params["jaxpr"]


@uses("functions in jaxprs")
def bind_again(eqn: Any, args: Sequence[Any]) -> list[Any]:
    """Stage an equation unchanged."""
    results = eqn.primitive.bind(*args, **eqn.primitive.get_bind_params(eqn.params))
    return list(results) if eqn.primitive.multiple_results else [results]


@uses("functions in jaxprs")
def bind_with_rules(
    eqn: Any, args: Sequence[Any], change: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> list[Any]:
    """Stage a ``custom_jvp`` or ``custom_vjp``; ``change`` wraps its function and its rules."""
    params = eqn.primitive.get_bind_params(eqn.params)
    changed = linear_util.transformation2(_call_changed)
    params["subfuns"] = tuple(changed(each, change) for each in params["subfuns"])
    return list(eqn.primitive.bind(*args, **params))


def _call_changed(
    function: Callable[..., Any],
    change: Callable[[Callable[..., Any]], Callable[..., Any]],
    *args: Any,
) -> Any:
    return change(function)(*args)


@uses("functions in jaxprs")
def bind_checkpoint(eqn: Any, args: Sequence[Any], function: Callable[..., Any]) -> list[Any]:
    """Stage ``function`` as a ``checkpoint`` with the parameters of ``eqn``.

    ``function`` must take and return the types that the equation takes and returns.
    """
    jaxpr, consts = opened(jax.make_jaxpr(function)(*args))
    if consts:  # the primitive takes no closed jaxpr: pass constants as leading operands
        jaxpr = partial_eval.convert_constvars_jaxpr(jaxpr)
    return list(eqn.primitive.bind(*consts, *args, **{**eqn.params, "jaxpr": jaxpr}))
