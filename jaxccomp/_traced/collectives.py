"""Collectives composed of jax.lax (the traced plane), for all platforms of JAX.

They implement ``backend="xla"``, and all operations on platforms without native handlers. They only
compute values: the primitives have the rules for derivatives and batching.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxccomp import _jax, errors
from jaxccomp._call import Call, rows, split_references
from jaxccomp._traced import codecs as traced_codecs
from jaxccomp._traced import stacked
from jaxccomp._traced.codecs import Codec, Wire

# --- Movement of whole blocks ---------------------------------------------------------------------

Array = Any
Tree = Any


class LaxExchanger:
    """Moves the blocks of a composed operation by jax.lax. Trees are moved leaf by leaf."""

    def __init__(self, call: Call):
        self.call = call
        self.axes = call.axes
        self.groups = None if call.groups is None else [list(group) for group in call.groups]

    def index(self) -> Array:
        """Return this rank's index along the axes."""
        return lax.axis_index(self.axes)

    def rank(self) -> Array:
        """Return this rank's index within its group."""
        if self.groups is None:
            return self.index()
        members = [i for group in self.groups for i in group]
        places = [i for group in self.groups for i in range(len(group))]
        return jnp.asarray(np.array(places)[np.argsort(members)])[self.index()]

    def sum(self, x: Array) -> Array:
        return lax.psum(x, self.axes, axis_index_groups=self.groups)

    def gather(self, tree: Tree) -> Tree:
        """Return all ranks' blocks, stacked."""
        return jax.tree.map(
            lambda x: lax.all_gather(x, self.axes, axis_index_groups=self.groups), tree
        )

    def exchange(self, tree: Tree) -> Tree:
        """Send row j to rank j; row j of the result is from rank j."""
        return jax.tree.map(
            lambda x: lax.all_to_all(x, self.axes, 0, 0, axis_index_groups=self.groups, tiled=True),
            tree,
        )

    def permute(self, tree: Tree, pairs: Sequence[tuple[int, int]]) -> Tree:
        """Move blocks from the first to the second rank of each pair; other ranks get zeros."""
        if self.groups is not None:
            pairs = [(group[s], group[d]) for group in self.groups for s, d in pairs]
        # jax.lax.ppermute numbers ranks in the order of the mesh's axes, not of its argument's.
        axes, order = _mesh_order(self.axes)
        ordered = [(order[s], order[d]) for s, d in pairs]
        return jax.tree.map(lambda x: lax.ppermute(x, axes, ordered), tree)

    def from_root(self, tree: Tree) -> Tree:
        """Broadcast the root's block.

        Uses a binomial tree, so that each other rank receives the block once. A sum of masked
        blocks would be simpler, but XLA would widen narrow types.
        """
        n, root = self.call.size, self.call.root
        place = (self.rank() - root) % n
        reached = 1
        while reached < n:
            senders = range(min(reached, n - reached))
            pairs = [((root + i) % n, (root + i + reached) % n) for i in senders]
            arrives = (reached <= place) & (place < 2 * reached)
            moved = self.permute(tree, pairs)
            tree = jax.tree.map(functools.partial(jnp.where, arrives), moved, tree)
            reached *= 2
        return tree


def _mesh_order(axes: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[int]]:
    """Return ``axes`` in the mesh's order, and each rank's number in that order."""
    names = _jax.mesh_axis_names()
    places = sorted(range(len(axes)), key=lambda i: names.index(axes[i]))
    sizes = [_jax.axes_in_scope()[axis] for axis in axes]
    numbers = np.arange(math.prod(sizes)).reshape([sizes[i] for i in places])
    return tuple(axes[i] for i in places), numbers.transpose(np.argsort(places)).ravel().tolist()


# --- Collectives ----------------------------------------------------------------------------------

# Returns the codec of a spec and a dtype's name; None if values are sent as they are.
FindCodec = Callable[[str, str], Codec | None]


def run(
    call: Call,
    operands: Sequence[Array],
    find_codec: FindCodec = traced_codecs.find_for,
    exchanger: LaxExchanger | None = None,
    first: int = 0,
) -> list[Array]:
    """Run ``call`` on each operand, encoded with the codec of ``find_codec``.

    ``find_codec`` must return the same codec on all ranks. ``exchanger`` moves blocks; the default,
    jax.lax, supports no communicator of several processes. Operand i draws the random numbers of
    operand ``first`` + i.
    """
    traced_codecs.find(call.codec)  # raises for unsupported codecs
    values, refs = split_references(call, operands)
    if call.comm is not None and exchanger is None:
        rows = [stacked.run(call, x[None]) for x in values]
        results = [x if same else x[0] for x, same in rows]
        return results + ([jnp.zeros_like(x) for x in values] if call.feedback else [])
    if call.collective == "barrier":
        return _barrier(call, operands)
    plane = Plane(find_codec, exchanger or LaxExchanger(call))
    if call.collective == "ragged_alltoall":
        return [_ragged_alltoall(call, plane, *operands)]
    if refs:
        call = call.replace(has_ref=False)
        n = len(values)
        return [
            _run_against(call, plane, x, refs[number::n], first + number)
            for number, x in enumerate(values)
        ]
    if call.feedback:
        pairs = [_with_losses(call, plane, x, number) for number, x in enumerate(operands, first)]
        return [result for result, _ in pairs] + [lost for _, lost in pairs]
    return [_run(call, plane, x, number) for number, x in enumerate(operands, first)]


def _run_against(call: Call, plane: Plane, x: Array, refs: Sequence[Array], number: int) -> Array:
    """Send the difference to the delta base; without a codec, send the values."""
    axis = _Axis(call, plane, x.dtype)
    if axis.codec is None:
        return _run(call, plane, x, number)
    before = after = refs[0]
    if call.collective == "allgather":
        before = lax.dynamic_index_in_dim(before, axis.rank(), keepdims=False)
    elif call.collective == "scatter":
        after = lax.dynamic_index_in_dim(after, axis.rank(), keepdims=False)
    elif call.collective == "permute":
        after = _where_received(axis, refs[1])
    return after + _run(call, plane, x - before, number)


def _run(call: Call, plane: Plane, x: Array, number: int) -> Array:
    function = _TABLE[call.collective]
    if jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize == 1:
        # float8 is only moved here; some platforms have no collectives for it.
        bits = lax.bitcast_convert_type(x, jnp.uint8)
        return lax.bitcast_convert_type(function(_Axis(call, plane, bits.dtype), bits), x.dtype)
    return function(_Axis(call, plane, x.dtype, number), x)


class Plane(NamedTuple):
    """The codecs and the exchanger of a composed operation."""

    find_codec: FindCodec
    exchanger: LaxExchanger


class _Axis:
    """The ranks of a call: moves encoded blocks between them."""

    def __init__(self, call: Call, plane: Plane, dtype: Any, number: int = 0):
        """For values of ``dtype``; ``number`` is the operand's number in the call."""
        self.call = call
        self.exchanger = plane.exchanger
        self.axes = call.axes
        self.groups = None if call.groups is None else [list(group) for group in call.groups]
        self.codec = plane.find_codec(call.codec, jnp.dtype(dtype).name)
        if self.codec is not None and len({len(group) for group in self.groups or [()]}) > 1:
            raise errors.InvalidArgumentError(
                f"{call.collective}: with codec={call.codec!r} axis_index_groups must all have the "
                f"same size, not {call.groups}; leave the codec out."
            )
        # The dtype of sums of decoded values.
        in_float = stacked.is_half(dtype) and call.reduce_op in ("sum", "mean")
        self.sums_in = jnp.float32 if in_float else dtype
        self.number = number
        self.encodings = 0
        self.row_keys: Array | None = None  # keys by rank, with `draws_alike`
        self.lost: list[Array] = []  # errors by encoding, with feedback

    def rank(self) -> Array:
        """Return this rank's index within its group."""
        return self.exchanger.rank()

    def is_root(self) -> Array:
        return self.rank() == self.call.root

    def gather(self, x: Array) -> Array:
        """Return all ranks' values, stacked."""
        if self.codec is None:
            return self.exchanger.gather(x)
        wire = self.exchanger.gather(self._encode(x))
        return self.codec.decode_rows(wire, x.shape, x.dtype)

    def exchange(self, x: Array) -> Array:
        """Send row j to rank j; row j of the result is from rank j."""
        if self.codec is None:
            return self.exchanger.exchange(x)
        wire = self.exchanger.exchange(self._encode(x, rows=True))
        return self.codec.decode_rows(wire, x.shape[1:], x.dtype)

    def exchange_to_reduce(self, x: Array) -> Array:
        """Return the reduction of the rows of `exchange`; sums have the dtype `sums_in`."""
        op = self.call.reduce_op
        if self.codec is None:
            return stacked.reduce_rows(op, self.exchanger.exchange(x))
        wire = self.exchanger.exchange(self._encode(x, rows=True))
        if op not in ("sum", "mean"):
            return stacked.reduce_rows(op, self.codec.decode_rows(wire, x.shape[1:], x.dtype))
        total = self.codec.decode_sum(wire, x.shape[1:], x.dtype, self.sums_in)
        return total / x.shape[0] if op == "mean" else total

    def permute(self, x: Array, pairs: Sequence[tuple[int, int]]) -> Array:
        """Move values from the first to the second rank of each pair; other ranks get zeros."""
        if self.codec is None:
            return self.exchanger.permute(x, pairs)
        wire = self.exchanger.permute(self._encode(x), pairs)
        return self.codec.decode(wire, x.shape, x.dtype)

    def spread(self, x: Array) -> Array:
        """Broadcast the root's values; the root also gets the decoded ones."""
        if self.codec is None:
            return self.exchanger.from_root(x)
        wire = self.exchanger.from_root(self._encode(x))
        return self.codec.decode(wire, x.shape, x.dtype)

    def sum(self, x: Array) -> Array:
        return self.exchanger.sum(x)

    def _encode(self, x: Array, rows: bool = False) -> Wire:
        """Encode ``x``, or each of its rows."""
        assert self.codec is not None
        key = self._key(x, rows) if self.codec.random else None
        wire = jax.vmap(self.codec.encode)(x, key) if rows else self.codec.encode(x, key)
        if self.call.feedback:
            if rows:
                decoded = self.codec.decode_rows(wire, x.shape[1:], x.dtype, self.sums_in)
            else:
                decoded = self.codec.decode(wire, x.shape, x.dtype, self.sums_in)
            self.lost.append(x.astype(self.sums_in) - decoded)
        return wire

    def _key(self, x: Array, rows: bool) -> Array:
        """Return the key to encode ``x``, or the keys of its rows."""
        assert self.codec is not None
        self.encodings += 1
        constant = f"{self.call} {self.number} {self.encodings}"
        if not (self.codec.draws_alike and self.call.reduce_op):
            key = traced_codecs.key_for(x, constant, self.exchanger.index())
            return jax.random.split(key, x.shape[0]) if rows else key
        if not rows and self.row_keys is not None:  # ``x`` is the reduction of rows with this key
            return self.row_keys[self.rank()]
        key = traced_codecs.shared_key(self.sum(traced_codecs.hash_of(x)), constant)
        if not rows:
            return key
        self.row_keys = jax.random.split(key, x.shape[0])
        return self.row_keys


def _allreduce(axis: _Axis, x: Array) -> Array:
    op = axis.call.reduce_op
    if axis.codec is not None:
        return _two_shot(axis, x)
    if op in ("sum", "mean"):
        # Sizes of groups may differ.
        max_ranks = max(map(len, axis.groups or [range(axis.call.size)]))
        total = axis.sum(stacked.enter(x, op, max_ranks))
        if op == "mean":
            total /= np.asarray(axis.call.size, total.dtype)
        return stacked.leave(total, op, x.dtype, max_ranks)
    if op in ("max", "min") and x.dtype != jnp.bool_:
        reduce = lax.pmax if op == "max" else lax.pmin
        return reduce(x, axis.axes, axis_index_groups=axis.groups)
    return stacked.reduce_rows(op, axis.gather(x))


def _two_shot(axis: _Axis, x: Array) -> Array:
    """Reduce-scatter, then all-gather: each value is encoded twice, not once per rank."""
    n = axis.call.size
    flat = x.reshape(-1)
    length = math.ceil(flat.shape[0] / n)
    chunks = stacked.fill(flat, n * length).reshape(n, length)
    mine = _reduced(axis, chunks)
    return axis.gather(mine).reshape(-1)[: flat.shape[0]].reshape(x.shape)


def _with_losses(call: Call, plane: Plane, x: Array, number: int) -> tuple[Array, Array]:
    """Return a reduction and the errors of this rank's encodings."""
    axis = _Axis(call, plane, x.dtype, number)
    result = _TABLE[call.collective](axis, x)
    if axis.codec is None:
        return result, jnp.zeros_like(x)
    if call.collective == "reduce_scatter":
        (rows,) = axis.lost
        return result, _finite(rows.astype(x.dtype))
    rows, merged = axis.lost  # the two encodings of `_two_shot`
    if call.reduce_op == "mean":
        merged *= np.asarray(call.size, merged.dtype)  # means were encoded; residuals have sums
    rows = rows.at[axis.rank()].add(_finite(merged))
    return result, _finite(rows.reshape(-1)[: x.size].reshape(x.shape).astype(x.dtype))


def _finite(x: Array) -> Array:
    return jnp.where(jnp.isfinite(x), x, jnp.zeros_like(x))


def _reduce_scatter(axis: _Axis, x: Array) -> Array:
    if axis.call.reduce_op == "sum" and axis.codec is None:
        values = stacked.enter(x, "sum", axis.call.size)
        total = lax.psum_scatter(values, axis.axes, axis_index_groups=axis.groups)
        return stacked.leave(total, "sum", x.dtype, axis.call.size)
    return _reduced(axis, x)


def _reduced(axis: _Axis, x: Array) -> Array:
    """Return the reduction of all ranks' rows for this rank."""
    return axis.exchange_to_reduce(x).astype(x.dtype)


def _at_root(axis: _Axis, x: Array) -> Array:
    return jnp.where(axis.is_root(), x, jnp.zeros_like(x))


def _prefix(axis: _Axis, x: Array) -> Array:
    everything = stacked.prefix(axis.call, axis.gather(x))
    return lax.dynamic_index_in_dim(everything, axis.rank(), keepdims=False)


def _permute(axis: _Axis, x: Array) -> Array:
    sources, destinations = axis.call.pairs[::2], axis.call.pairs[1::2]
    received = axis.permute(x, list(zip(sources, destinations, strict=True)))
    if axis.codec is None:
        return received
    # A rank without a sender receives zeros, which need not decode to zeros.
    return _where_received(axis, received)


def _where_received(axis: _Axis, x: Array) -> Array:
    """Return ``x`` on destinations of a permutation, else zeros."""
    is_destination = np.isin(np.arange(axis.call.size), axis.call.pairs[1::2])
    return jnp.where(jnp.asarray(is_destination)[axis.rank()], x, jnp.zeros_like(x))


def _alltoallv(axis: _Axis, x: Array) -> Array:
    """Pad each block to the largest, exchange the padded blocks, and remove the padding."""
    n, (taken, given) = axis.call.size, rows(axis.call)
    counts = np.array(axis.call.counts).reshape(n, n)
    longest = int(counts.max())
    starts = np.cumsum(counts, axis=1) - counts
    out = starts[:, :, None] + np.arange(longest)  # row of the operand, for each row sent
    sent = np.arange(longest) < counts[:, :, None]
    max_rows = int(counts.sum(axis=0).max())  # with a communicator, `given` is only this rank's
    back = np.zeros((n, max_rows), np.int32)  # row received, for each row of the result
    real = np.zeros((n, max_rows), bool)
    for rank in range(n):
        source = np.concatenate([i * longest + np.arange(counts[i, rank]) for i in range(n)])
        back[rank, : len(source)] = source
        real[rank, : len(source)] = True
    rank = axis.rank()
    blocks = stacked.take(
        x, jnp.asarray(np.clip(out, 0, max(taken - 1, 0)))[rank], jnp.asarray(sent)[rank]
    )
    received = axis.exchange(blocks).reshape(n * longest, *x.shape[1:])
    rows_back, are_real = jnp.asarray(back)[rank], jnp.asarray(real)[rank]
    return stacked.take(received, rows_back[:given], are_real[:given])


def _allgatherv(axis: _Axis, x: Array) -> Array:
    padded = stacked.fill(x, max(axis.call.counts))
    return stacked.join_rows(axis.call, axis.gather(padded))


def _own_rows(axis: _Axis, x: Array) -> Array:
    """Return this rank's rows of a block padded to the largest."""
    return x[: rows(axis.call)[1]]


def _scatterv(axis: _Axis, x: Array) -> Array:
    blocks = axis.exchange(stacked.split_rows(axis.call, x))
    return _own_rows(axis, blocks[axis.call.root])


def _reduce_scatterv(axis: _Axis, x: Array) -> Array:
    return _own_rows(axis, _reduced(axis, stacked.split_rows(axis.call, x)))


def _barrier(call: Call, operands: Sequence[Array]) -> list[Array]:
    arrived = lax.psum(jnp.ones((), jnp.int32), call.axes)
    return list(lax.optimization_barrier((*operands, arrived)))[:-1]


def _ragged_alltoall(
    call: Call,
    plane: Plane,
    operand: Array,
    output: Array,
    input_offsets: Array,
    send_sizes: Array,
    recv_offsets: Array,
    recv_sizes: Array,
) -> Array:
    blocks = stacked.cut_ragged(operand, input_offsets, send_sizes)
    received = _Axis(call, plane, blocks.dtype).exchange(blocks)
    return stacked.place_ragged(output, received, recv_offsets, recv_sizes)


_TABLE: dict[str, Callable[[_Axis, Array], Array]] = {
    "bcast": lambda axis, x: axis.spread(x),
    "allreduce": _allreduce,
    "reduce": lambda axis, x: _at_root(axis, _allreduce(axis, x)),
    "allgather": lambda axis, x: axis.gather(x),
    "gather": lambda axis, x: _at_root(axis, axis.gather(x)),
    "scatter": lambda axis, x: axis.exchange(x)[axis.call.root],
    "reduce_scatter": _reduce_scatter,
    "alltoall": lambda axis, x: axis.exchange(x),
    "allgatherv": _allgatherv,
    "gatherv": lambda axis, x: _at_root(axis, _allgatherv(axis, x)),
    "scatterv": _scatterv,
    "reduce_scatterv": _reduce_scatterv,
    "alltoallv": _alltoallv,
    "scan": _prefix,
    "exscan": _prefix,
    "permute": _permute,
}
