"""Messages between two ranks, and the barrier."""

from __future__ import annotations

from typing import Any, TypeVar, Unpack

import jax
import jax.numpy as jnp

from jaxccomp import _compat, errors
from jaxccomp._arguments import Ranks, make_call, partner
from jaxccomp._call import Call
from jaxccomp._operation import Options, operation
from jaxccomp._pytree import apply

T = TypeVar("T")


@operation
def barrier(x: Any = None, **options: Unpack[Options]) -> Any:
    """Waits until all ranks have come here.

    Operations on the values returned start after it. Matched in program order, which costs an
    ordered JAX effect.

    On the wire: a few bytes per rank.

    Args:
      x: pytree of arrays that the barrier holds up, of any shapes; or None.

    Returns:
      ``x``. Called eagerly, it has waited when it returns.

    Example:
      >>> x = jaxccomp.barrier(x)                                        # doctest: +SKIP
    """
    call = make_call("barrier", **options).replace(ordered=True)
    held = apply(call, (x, jnp.zeros((), jnp.int32)))
    if not any(map(_compat.is_tracer, jax.tree.leaves(held))):
        jax.block_until_ready(held)
    return held[0]


@operation
def sendrecv(
    x: T, dest: Ranks = None, source: Ranks = None, *, tag: int = 0, **options: Unpack[Options]
) -> T:
    """Sends to one rank and receives from another, at the same time.

    On the wire: the values once.

    Args:
      x: pytree of arrays of any shape, the same on sender and receiver.
      dest: the rank that gets this rank's values; None or -1: nobody. A sequence with one entry per
        rank, or a function of the rank, is asked for this rank's; along an axis it must be one of
        those, since all ranks run the same program.
      source: the rank whose values are received, given like ``dest``. Along an axis it follows from
        ``dest`` and may be left out.
      tag: tells messages between the same ranks apart.

    Returns:
      Same shapes; zeros where there is no source.

    Example:
      >>> n = jaxccomp.world().size                                      # doctest: +SKIP
      >>> jaxccomp.sendrecv(x, dest=lambda r: (r + 1) % n,
      ...                   source=lambda r: (r - 1) % n)                # doctest: +SKIP
    """
    call = make_call("sendrecv", **options).replace(tag=_tag("sendrecv", tag))
    if call.comm is None:
        return apply(_as_permute(call, dest, source), x)
    rank, size = call.comm.rank, call.size
    pair = (
        partner("sendrecv", "dest", dest, rank, size),
        partner("sendrecv", "source", source, rank, size),
    )
    return apply(call.replace(pairs=pair), x)


@operation
def send(x: T, dest: Ranks, *, tag: int = 0, **options: Unpack[Options]) -> T:
    """Sends to one rank, which must call `recv`.

    Matched in program order, which costs an ordered JAX effect. Only between processes; along an
    axis all ranks run the same program, so use `sendrecv` or ``jaxccomp.lax.ppermute`` there.

    On the wire: the values once.

    Args:
      x: pytree of arrays of any shape.
      dest: the rank that gets them.
      tag: tells messages between the same ranks apart.

    Returns:
      ``x``. Its cotangent is what the receiver sends back, so use the result to differentiate.

    Example:
      >>> x = jaxccomp.send(x, dest=1)                                   # doctest: +SKIP
    """
    return _one_way("send", x, dest, "dest", tag, options)


@operation
def recv(like: T, source: Ranks, *, tag: int = 0, **options: Unpack[Options]) -> T:
    """Receives what one rank sends with `send`.

    Matched in program order, which costs an ordered JAX effect. Only between processes, as `send`.

    On the wire: the values once.

    Args:
      like: pytree of arrays of the shapes and dtypes that are sent; their values do not matter.
        To differentiate, it must depend on what is differentiated (its own cotangent is zero).
      source: the rank that sends.
      tag: as given to `send`.

    Returns:
      The values sent, in the shapes of ``like``.

    Example:
      >>> x = jaxccomp.recv(jnp.zeros(3), source=0)                      # doctest: +SKIP
    """
    return _one_way("recv", like, source, "source", tag, options)


def _one_way(collective: str, x: T, other: Ranks, what: str, tag: int, options: Options) -> T:
    if options.get("axis_name") is not None:
        raise errors.InvalidArgumentError(
            f"{collective}: along an axis all ranks run the same program; use jaxccomp.sendrecv("
            "x, dest=...) or jaxccomp.lax.ppermute, which say who sends to whom for all of them."
        )
    call = make_call(collective, **options)
    assert call.comm is not None
    rank = partner(collective, what, other, call.comm.rank, call.size)
    if rank < 0:
        raise errors.InvalidArgumentError(f"{collective}: {what} must be a rank, not {other!r}.")
    return apply(call.replace(pairs=(rank,), tag=_tag(collective, tag), ordered=True), x)


def _as_permute(call: Call, dest: Ranks, source: Ranks) -> Call:
    if dest is None or isinstance(dest, int):
        raise errors.InvalidArgumentError(
            "sendrecv: along an axis dest must say for every rank to whom it sends: a sequence "
            f"with {call.size} entries or a function of the rank, not {dest!r}."
        )
    ranks = range(call.size)
    to = [partner("sendrecv", "dest", dest, rank, call.size) for rank in ranks]
    pairs = [(rank, other) for rank, other in enumerate(to) if other >= 0]
    receivers = [other for _, other in pairs]
    if len(set(receivers)) < len(receivers):
        raise errors.InvalidArgumentError(
            f"sendrecv: two ranks send to the same one; destinations by rank: {to}."
        )
    if source is not None:
        given = [partner("sendrecv", "source", source, rank, call.size) for rank in ranks]
        sender = {other: rank for rank, other in pairs}
        expected = [sender.get(rank, -1) for rank in ranks]
        if given != expected:
            raise errors.InvalidArgumentError(
                f"sendrecv: dest and source do not fit: by dest, sources are {expected} "
                f"(-1: none), but source says {given}."
            )
    flat = tuple(rank for pair in pairs for rank in pair)
    return call.replace(collective="permute", pairs=flat)


def _tag(collective: str, tag: int) -> int:
    if isinstance(tag, bool) or not isinstance(tag, int) or not 0 <= tag < 2**31:
        raise errors.InvalidArgumentError(
            f"{collective}: tag must be an integer from 0 to 2**31 - 1, not {tag!r}."
        )
    return tag
