"""Point-to-point operations and the barrier."""

from __future__ import annotations

from typing import Any, TypeVar, Unpack

import jax
import jax.numpy as jnp

from jaxccomp import _jax, errors
from jaxccomp._api.arguments import Ranks, make_call, partner
from jaxccomp._api.options import Options, operation
from jaxccomp._api.pytree import apply, exchange, is_float0
from jaxccomp._call import ANY_SOURCE, ANY_TAG, Call

T = TypeVar("T")


@operation
def barrier(x: Any = None, **options: Unpack[Options]) -> Any:
    """Wait until all ranks have called `barrier`.

    Operations on the result start after the barrier. The barrier has a JAX effect, so it runs even
    if its result is not used.

    On the wire: a few bytes per rank.

    Args:
      x: pytree of arrays of any shapes that are available after the barrier; or None.

    Returns:
      ``x``. An eager call returns when the barrier is complete.

    Example:
      >>> x = jaxccomp.barrier(x)                                        # doctest: +SKIP
    """
    call = make_call("barrier", **options)
    held = apply(call, (x, jnp.zeros((), jnp.int32)))
    if not any(map(_jax.is_tracer, jax.tree.leaves(held))):
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
    with_status: bool = False,
    **options: Unpack[Options],
) -> Any:
    """Send to one rank and receive from another, at the same time.

    On a communicator in program order (``comm.ordered()``) these are two messages: the peers may
    also use `recv` and `send`, and other ranks need not call it. Otherwise all ranks run the same
    program, and all of them must call it.

    On the wire: the values once.

    Args:
      x: pytree of arrays of any shape.
      dest: the destination rank; None or -1: none. It may also be a sequence with one entry per
        rank, or a function of the rank; along an axis it must be one of these, since all ranks run
        the same program.
      source: the source rank, given like ``dest``. Along an axis it may be omitted, because
        ``dest`` determines it.
      like: pytree of arrays with the shapes and dtypes of the received values, if they differ
        from ``x``; only in program order. Its values do not matter. Under ``vmap`` and
        derivatives it must depend on the batched or differentiated values, as for `recv`.
      ref: as for `bcast`, like ``x``: values that this rank and the destination hold, such as
        the last values sent. The difference to ``ref`` is sent. Not together with ``like``.
      recv_ref: the reference of the received values, which this rank and the source hold. Default:
        ``ref``.
      tag: distinguishes messages between the same ranks.
      send_tag: the tag of the sent message, if it is not ``tag``; only in program order.
      recv_tag: the tag of the received message, if it is not ``tag``; only in program order.
        ``jaxccomp.ANY_TAG``: any. A cotangent is then sent with the tag of the sent message, and
        received with any tag.
      with_status: whether to return the source and tag of the received message; only in program
        order, and with a source.

    Returns:
      The received values, in the shapes of ``like``, by default of ``x``; zeros without a source.
      With a status ``(values, source, tag)``, the last two int32 scalars.

    Example:
      >>> n = jaxccomp.world().size                                      # doctest: +SKIP
      >>> jaxccomp.sendrecv(x, dest=lambda r: (r + 1) % n,
      ...                   source=lambda r: (r - 1) % n)                # doctest: +SKIP
    """
    tags = [tag if each is None else each for each in (send_tag, recv_tag)]
    has_ref = ref is not None
    if (recv_ref is not None and not has_ref) or (like is not None and has_ref):
        raise errors.InvalidArgumentError(
            "sendrecv: "
            + ("recv_ref= goes with ref=" if like is None else "ref= does not go with like=")
            + ": with ref=, the received values must have the shapes and dtypes of x. Use "
            "send and recv, which take a ref= each."
        )
    refs = (ref, ref if recv_ref is None else recv_ref) if has_ref else ()
    call = make_call("sendrecv", has_ref=has_ref, **options).replace(
        tag=_tag("sendrecv", tags[0]),
        recv_tag=tags[1] if _is_any_tag(tags[1]) else _tag("sendrecv", tags[1]),
    )
    if like is not None or tags[0] != tags[1] or with_status:
        given = "like=" if like is not None else "send_tag= and recv_tag="
        _check_two_messages(call, "with_status=True" if with_status else given)
    if call.comm is None:
        return apply(_as_permute(call, dest, source), x, *refs)
    rank, size = call.comm.rank, call.size
    pair = (
        partner("sendrecv", "dest", dest, rank, size),
        partner("sendrecv", "source", source, rank, size),
    )
    call = call.replace(pairs=pair)
    if not with_status:
        return apply(call, x, *refs) if like is None else exchange(call, x, like)
    if pair[1] == -1:
        raise errors.InvalidArgumentError(
            "sendrecv: with_status=True needs a message, and source=None receives none."
        )
    _check_has_status("sendrecv", x if like is None else like)
    call = call.replace(status=True)
    values, status = apply(call, x, *refs) if like is None else exchange(call, x, like)
    return values, status[0], status[1]


@operation
def send(x: T, dest: Ranks, *, ref: T | None = None, tag: int = 0, **options: Unpack[Options]) -> T:
    """Send to one rank, which must call `recv` or `sendrecv`.

    Messages match in program order, so the call has an ordered JAX effect. It works only between
    processes. Along an axis all ranks run the same program: use `sendrecv` or
    ``jaxccomp.lax.ppermute``.

    On the wire: the values once.

    Args:
      x: pytree of arrays of any shape.
      dest: the destination rank. A rank may send to itself before it receives: the values are
        copied.
      ref: as for `bcast`, like ``x``: values that this rank and the receiver hold; the receiver
        must pass them to `recv`. The difference to ``ref`` is sent.
      tag: distinguishes messages between the same ranks.

    Returns:
      ``x``. For derivatives, use this result: the receiver sends its cotangent back.

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
    """Receive from one rank, which calls `send` or `sendrecv`.

    Messages match in program order, so the call has an ordered JAX effect. As `send`, it works only
    between processes. Matching messages of one rank are received in the order of sending.

    On the wire: the values once.

    Args:
      like: pytree of arrays with the shapes and dtypes of the message; its values do not matter.
        For derivatives, ``like`` must depend on the differentiated values (its cotangent is zero).
      source: the source rank. ``jaxccomp.ANY_SOURCE``: the source of the first message, which must
        also have the shapes and dtypes of ``like``; there is no derivative.
      ref: as for `bcast`, like ``like``: the ``ref`` that the sender passes to `send`.
      tag: the tag of the message. ``jaxccomp.ANY_TAG``: any.
      with_status: whether to return the message's source and tag.

    Returns:
      The received values, in the shapes of ``like``. With a status ``(values, source, tag)``, the
      last two int32 scalars.

    Example:
      >>> x = jaxccomp.recv(jnp.zeros(3), source=0)                      # doctest: +SKIP
      >>> x, source, tag = jaxccomp.recv(
      ...     jnp.zeros(3), jaxccomp.ANY_SOURCE, tag=jaxccomp.ANY_TAG, with_status=True
      ... )                                                              # doctest: +SKIP
    """
    call = _one_way_call("recv", source, "source", tag, ref, options)
    if not with_status:
        return apply(call, like, ref)
    _check_has_status("recv", like)
    values, status = apply(call.replace(status=True), like, ref)
    return values, status[0], status[1]


def _one_way_call(
    collective: str, other: Ranks, what: str, tag: int, ref: Any, options: Options
) -> Call:
    if options.get("axis_name") is not None:
        raise errors.InvalidArgumentError(
            f"{collective}: along an axis all ranks run the same program; use jaxccomp.sendrecv("
            "x, dest=...) or jaxccomp.lax.ppermute, which name the destination of every rank."
        )
    call = make_call(collective, has_ref=ref is not None, **options)
    assert call.comm is not None
    receives = collective == "recv"
    wildcard = ANY_SOURCE if receives else None
    rank = partner(collective, what, other, call.comm.rank, call.size, wildcard=wildcard)
    if rank == -1:
        raise errors.InvalidArgumentError(f"{collective}: {what} must be a rank, not {other!r}.")
    tag = tag if receives and _is_any_tag(tag) else _tag(collective, tag)
    return call.replace(pairs=(rank,), tag=tag, ordered=True)


def _check_has_status(collective: str, like: Any) -> None:
    if all(is_float0(leaf) or not jnp.size(leaf) for leaf in jax.tree.leaves(like)):
        raise errors.InvalidArgumentError(
            f"{collective}: with_status=True needs a message, and like= without values gets no "
            "message."
        )


def _check_two_messages(call: Call, what: str) -> None:
    """Raise unless the call is in program order: only then may the two messages differ."""
    if call.comm is None:
        raise errors.InvalidArgumentError(
            f"sendrecv: {what} needs a communicator in program order, comm=comm.ordered(): along "
            "an axis all ranks run the same program, and receive the shapes that they send."
        )
    if not call.ordered:
        raise errors.InvalidArgumentError(
            f"sendrecv: {what} needs a communicator in program order, comm=comm.ordered(): on "
            f"{call.comm.name!r} all ranks run the same program, and receive the shapes "
            "that they send."
        )


def _as_permute(call: Call, dest: Ranks, source: Ranks) -> Call:
    if dest is None or isinstance(dest, int):
        raise errors.InvalidArgumentError(
            "sendrecv: along an axis dest must name the destination of every rank: a sequence "
            f"with {call.size} entries or a function of the rank, not {dest!r}."
        )
    ranks = range(call.size)
    to = [partner("sendrecv", "dest", dest, rank, call.size) for rank in ranks]
    pairs = [(rank, other) for rank, other in enumerate(to) if other >= 0]
    receivers = [other for _, other in pairs]
    if len(set(receivers)) < len(receivers):
        raise errors.InvalidArgumentError(
            f"sendrecv: two ranks send to the same rank; destinations by rank: {to}."
        )
    if source is not None:
        given = [partner("sendrecv", "source", source, rank, call.size) for rank in ranks]
        sender = {other: rank for rank, other in pairs}
        expected = [sender.get(rank, -1) for rank in ranks]
        if given != expected:
            raise errors.InvalidArgumentError(
                f"sendrecv: dest and source do not match: by dest, the sources of the ranks are "
                f"{expected} (-1: none), but source gives {given}."
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
