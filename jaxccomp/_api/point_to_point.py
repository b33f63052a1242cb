"""Messages between two ranks, and the barrier."""

from __future__ import annotations

from typing import Any, TypeVar, Unpack

import jax
import jax.numpy as jnp

from jaxccomp import _compat, errors
from jaxccomp._api.arguments import Ranks, make_call, partner
from jaxccomp._api.options import Options, operation
from jaxccomp._api.pytree import apply, exchange, is_float0
from jaxccomp._call import ANY_SOURCE, ANY_TAG, Call

T = TypeVar("T")


@operation
def barrier(x: Any = None, **options: Unpack[Options]) -> Any:
    """Waits until all ranks have come here.

    Operations on the values returned start after it. It takes place even if nobody uses them, and
    carries a JAX effect for that.

    On the wire: a few bytes per rank.

    Args:
      x: pytree of arrays that the barrier holds up, of any shapes; or None.

    Returns:
      ``x``. Called eagerly, it has waited when it returns.

    Example:
      >>> x = jaxccomp.barrier(x)                                        # doctest: +SKIP
    """
    call = make_call("barrier", **options)
    held = apply(call, (x, jnp.zeros((), jnp.int32)))
    if not any(map(_compat.is_tracer, jax.tree.leaves(held))):
        jax.block_until_ready(held)
    return held[0]


@operation
def sendrecv(
    x: Any,
    dest: Ranks = None,
    source: Ranks = None,
    *,
    like: Any = None,
    ref: Any = None,
    recv_ref: Any = None,
    tag: int = 0,
    send_tag: int | None = None,
    recv_tag: int | None = None,
    **options: Unpack[Options],
) -> Any:
    """Sends to one rank and receives from another, at the same time.

    On a communicator in program order (``comm.ordered()``) these are two messages: what is sent
    may be received with `recv`, and what is received sent with `send`. Only the ranks that are
    named take part. Otherwise all ranks run the same program, and all of them must call it.

    On the wire: the values once.

    Args:
      x: pytree of arrays of any shape.
      dest: the rank that gets this rank's values; None or -1: nobody. A sequence with one entry per
        rank, or a function of the rank, is asked for this rank's; along an axis it must be one of
        those, since all ranks run the same program.
      source: the rank whose values are received, given like ``dest``. Along an axis it follows from
        ``dest`` and may be left out.
      like: pytree of arrays of the shapes and dtypes that are received, where these are not those
        of ``x``; only in program order. Its values do not matter. Under ``vmap`` and derivatives it
        must depend on what is batched or differentiated, as that of `recv`.
      ref: as for `bcast`, like ``x``: values that this rank and the one that it sends to hold, such
        as what it has sent before. The difference to them travels. Not together with ``like``.
      recv_ref: the same of what is received: values that this rank and the one that it receives
        from hold. Default: ``ref``.
      tag: tells messages between the same ranks apart.
      send_tag: of what is sent, where it is not ``tag``; only in program order.
      recv_tag: of what is received, where it is not ``tag``; only in program order.

    Returns:
      What was received, in the shapes of ``like``, by default of ``x``; zeros where there is no
      source.

    Example:
      >>> n = jaxccomp.world().size                                      # doctest: +SKIP
      >>> jaxccomp.sendrecv(x, dest=lambda r: (r + 1) % n,
      ...                   source=lambda r: (r - 1) % n)                # doctest: +SKIP
    """
    tags = [tag if each is None else each for each in (send_tag, recv_tag)]
    referenced = ref is not None
    if (recv_ref is not None and not referenced) or (like is not None and referenced):
        raise errors.InvalidArgumentError(
            "sendrecv: "
            + ("recv_ref= goes with ref=" if like is None else "ref= does not go with like=")
            + ": what is received must be like what is sent, each with a reference. Use send and "
            "recv, which take ref= of their own."
        )
    refs = (ref, ref if recv_ref is None else recv_ref) if referenced else ()
    call = make_call("sendrecv", referenced=referenced, **options).replace(
        tag=_tag("sendrecv", tags[0]), recv_tag=_tag("sendrecv", tags[1])
    )
    if like is not None or tags[0] != tags[1]:
        _check_two_messages(call, "like=" if like is not None else "send_tag= and recv_tag=")
    if call.comm is None:
        return apply(_as_permute(call, dest, source), x, *refs)
    rank, size = call.comm.rank, call.size
    pair = (
        partner("sendrecv", "dest", dest, rank, size),
        partner("sendrecv", "source", source, rank, size),
    )
    call = call.replace(pairs=pair)
    return apply(call, x, *refs) if like is None else exchange(call, x, like)


@operation
def send(x: T, dest: Ranks, *, ref: T | None = None, tag: int = 0, **options: Unpack[Options]) -> T:
    """Sends to one rank, which must call `recv` or `sendrecv`.

    Matched in program order, which costs an ordered JAX effect. Only between processes; along an
    axis all ranks run the same program, so use `sendrecv` or ``jaxccomp.lax.ppermute`` there.

    On the wire: the values once.

    Args:
      x: pytree of arrays of any shape.
      dest: the rank that gets them. A rank may send to itself before it receives; what it sends is
        copied.
      ref: as for `bcast`, like ``x``: values that this rank and the receiver, which must give them
        to `recv`, hold already. The difference to them travels.
      tag: tells messages between the same ranks apart.

    Returns:
      ``x``. Its cotangent is what the receiver sends back, so use the result to differentiate.

    Example:
      >>> x = jaxccomp.send(x, dest=1)                                   # doctest: +SKIP
    """
    return apply(_one_way_call("send", dest, "dest", tag, ref, options), x, ref)


@operation
def recv(
    like: T,
    source: Ranks,
    *,
    ref: T | None = None,
    tag: int = 0,
    with_status: bool = False,
    **options: Unpack[Options],
) -> Any:
    """Receives what one rank sends with `send` or `sendrecv`.

    Matched in program order, which costs an ordered JAX effect. Only between processes, as `send`.
    Messages of one rank that fit are received in the order in which it has sent them.

    On the wire: the values once.

    Args:
      like: pytree of arrays of the shapes and dtypes that are sent; their values do not matter.
        To differentiate, it must depend on what is differentiated (its own cotangent is zero).
      source: the rank that sends. ``jaxccomp.ANY_SOURCE``: whose message comes first; it must still
        be like ``like``, and there is no derivative.
      ref: as for `bcast`, like ``like``: the values that the sender gives to `send` as its ``ref``.
      tag: as given to `send`. ``jaxccomp.ANY_TAG``: any.
      with_status: whether to tell who has sent, and under which tag.

    Returns:
      The values sent, in the shapes of ``like``. With a status ``(values, source, tag)``, the last
      two int32 scalars.

    Example:
      >>> x = jaxccomp.recv(jnp.zeros(3), source=0)                      # doctest: +SKIP
      >>> x, source, tag = jaxccomp.recv(
      ...     jnp.zeros(3), jaxccomp.ANY_SOURCE, tag=jaxccomp.ANY_TAG, with_status=True
      ... )                                                              # doctest: +SKIP
    """
    call = _one_way_call("recv", source, "source", tag, ref, options)
    if not with_status:
        return apply(call, like, ref)
    if all(is_float0(leaf) or not jnp.size(leaf) for leaf in jax.tree.leaves(like)):
        raise errors.InvalidArgumentError(
            "recv: with_status=True needs a message, and none travels for a like= without values."
        )
    values, status = apply(call.replace(status=True), like, ref)
    return values, status[0], status[1]


def _one_way_call(
    collective: str, other: Ranks, what: str, tag: int, ref: Any, options: Options
) -> Call:
    if options.get("axis_name") is not None:
        raise errors.InvalidArgumentError(
            f"{collective}: along an axis all ranks run the same program; use jaxccomp.sendrecv("
            "x, dest=...) or jaxccomp.lax.ppermute, which say who sends to whom for all of them."
        )
    call = make_call(collective, referenced=ref is not None, **options)
    assert call.comm is not None
    receives = collective == "recv"
    anybody = ANY_SOURCE if receives else None
    rank = partner(collective, what, other, call.comm.rank, call.size, anybody=anybody)
    if rank == -1:
        raise errors.InvalidArgumentError(f"{collective}: {what} must be a rank, not {other!r}.")
    tag = tag if receives and _is_any_tag(tag) else _tag(collective, tag)
    return call.replace(pairs=(rank,), tag=tag, ordered=True)


def _check_two_messages(call: Call, what: str) -> None:
    """Raises where sender and receiver of a sendrecv must be alike."""
    if call.comm is None:
        raise errors.InvalidArgumentError(
            f"sendrecv: along an axis all ranks run the same program, and what is received is like "
            f"what is sent; {what} is for a communicator in program order, comm=comm.ordered()."
        )
    if not call.ordered:
        raise errors.InvalidArgumentError(
            f"sendrecv: {what} needs a communicator in program order, comm=comm.ordered(): on "
            f"{call.comm.name!r} all ranks run the same program, and what is received is like what "
            "is sent."
        )


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


def _is_any_tag(tag: int) -> bool:
    return isinstance(tag, int) and tag == ANY_TAG


def _tag(collective: str, tag: int) -> int:
    if isinstance(tag, bool) or not isinstance(tag, int) or not 0 <= tag < 2**31:
        raise errors.InvalidArgumentError(
            f"{collective}: tag must be an integer from 0 to 2**31 - 1, not {tag!r}."
        )
    return tag
