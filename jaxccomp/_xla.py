"""The traced plane: collectives composed from jax.lax, wherever JAX runs.

This is ``backend="xla"``, and what operations lower to on platforms without native handlers. It
only computes values: derivatives and batching are those of the primitive that is lowered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxccomp import _compat, _stacked, errors
from jaxccomp._call import Call, rows, split_references

Array = Any


def run(call: Call, operands: Sequence[Array]) -> list[Array]:
    """Runs ``call`` on each operand."""
    if call.codec not in CODECS:
        raise errors.unknown("codec of the traced plane:", call.codec, CODECS)
    values, refs = split_references(call, operands)
    if call.comm is not None:  # of this process alone
        stacked = [_stacked.run(call, x[None]) for x in values]
        return [x if same else x[0] for x, same in stacked]
    if call.collective == "barrier":
        return _barrier(call, operands)
    if call.collective == "ragged_alltoall":
        return [_ragged_alltoall(call, *operands)]
    if refs:
        call = call.replace(referenced=False)
        return [_run_against(call, x, ref) for x, ref in zip(values, refs, strict=True)]
    return [_run(call, x) for x in operands]


def _run_against(call: Call, x: Array, ref: Array) -> Array:
    """Sends the difference to what all ranks hold; values that no codec changes, as they are."""
    if CODECS[call.codec](x) is x:
        return _run(call.replace(codec="raw"), x)
    return ref + _run(call, x - ref)


def _run(call: Call, x: Array) -> Array:
    function = _TABLE[call.collective]
    if jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize == 1:
        # float8: only moved, and not every platform has collectives for it.
        bits = function(_Axis(call), lax.bitcast_convert_type(x, jnp.uint8))
        return lax.bitcast_convert_type(bits, x.dtype)
    return function(_Axis(call), x)


def _bf16(x: Array) -> Array:
    return x.astype(jnp.bfloat16) if x.dtype in (jnp.float32, jnp.float64) else x


def _same(x: Array) -> Array:
    return x


# What travels in place of a value; decoding is a cast back. XLA's shapes are static, so what
# "lossless" would save cannot be left out: the values travel as they are.
CODECS: dict[str, Callable[[Array], Array]] = {"raw": _same, "lossless": _same, "bf16": _bf16}


class _Axis:
    """The ranks of a call: moving whole blocks between them, coded, is all that travels."""

    def __init__(self, call: Call):
        self.call = call
        self.axes = call.axes
        self.groups = None if call.groups is None else [list(group) for group in call.groups]
        self.encode = CODECS[call.codec]
        self.coded = self.encode is not _same

    def rank(self) -> Array:
        """This rank, within its group."""
        index = lax.axis_index(self.axes)
        if self.groups is None:
            return index
        members = [i for group in self.groups for i in group]
        places = [i for group in self.groups for i in range(len(group))]
        return jnp.asarray(np.array(places)[np.argsort(members)])[index]

    def is_root(self) -> Array:
        return self.rank() == self.call.root

    def gather(self, x: Array) -> Array:
        wire = lax.all_gather(self.encode(x), self.axes, axis_index_groups=self.groups)
        return wire.astype(x.dtype)

    def exchange(self, x: Array) -> Array:
        """Row j goes to rank j; row j of the result comes from rank j."""
        wire = lax.all_to_all(
            self.encode(x), self.axes, 0, 0, axis_index_groups=self.groups, tiled=True
        )
        return wire.astype(x.dtype)

    def sum(self, x: Array) -> Array:
        return lax.psum(x, self.axes, axis_index_groups=self.groups)


def _bcast(axis: _Axis, x: Array) -> Array:
    # A sum of bit patterns in which all but the root's are zero: exact for every value, which a
    # sum of floats is not (-0.0, NaN payloads).
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return lax.complex(_bcast(axis, x.real), _bcast(axis, x.imag))
    wire = axis.encode(x)
    if wire.dtype == jnp.bool_:
        bits = wire.astype(jnp.uint8)
    else:
        bits = lax.bitcast_convert_type(wire, f"uint{wire.dtype.itemsize * 8}")
    bits = axis.sum(jnp.where(axis.is_root(), bits, jnp.zeros_like(bits)))
    if wire.dtype == jnp.bool_:
        return bits.astype(jnp.bool_)
    return lax.bitcast_convert_type(bits, wire.dtype).astype(x.dtype)


def _allreduce(axis: _Axis, x: Array) -> Array:
    op = axis.call.reduce_op
    if axis.coded:
        return _two_shot(axis, x)
    if op == "sum":
        return axis.sum(x)
    if op == "mean":
        half = x.dtype in (jnp.float16, jnp.bfloat16)  # their sum may overflow
        total = axis.sum(x.astype(jnp.float32) if half else x)
        return (total / np.asarray(axis.call.size, total.dtype)).astype(x.dtype)
    if op in ("max", "min") and x.dtype != jnp.bool_:
        reduce = lax.pmax if op == "max" else lax.pmin
        return reduce(x, axis.axes, axis_index_groups=axis.groups)
    return _stacked.reduce_rows(op, axis.gather(x))


def _two_shot(axis: _Axis, x: Array) -> Array:
    """Reduce-scatter, then all-gather, so that each value is coded twice, not once per rank."""
    n = axis.call.size
    flat = x.reshape(-1)
    length = math.ceil(flat.shape[0] / n)
    chunks = _stacked.fill(flat, n * length).reshape(n, length)
    mine = _stacked.reduce_rows(axis.call.reduce_op, axis.exchange(chunks))
    return axis.gather(mine).reshape(-1)[: flat.shape[0]].reshape(x.shape)


def _reduce_scatter(axis: _Axis, x: Array) -> Array:
    if axis.call.reduce_op == "sum" and not axis.coded:
        return lax.psum_scatter(x, axis.axes, axis_index_groups=axis.groups)
    return _stacked.reduce_rows(axis.call.reduce_op, axis.exchange(x))


def _at_root(axis: _Axis, x: Array) -> Array:
    return jnp.where(axis.is_root(), x, jnp.zeros_like(x))


def _prefix(axis: _Axis, x: Array) -> Array:
    everything = _stacked.prefix(axis.call, axis.gather(x))
    return lax.dynamic_index_in_dim(everything, axis.rank(), keepdims=False)


def _permute(axis: _Axis, x: Array) -> Array:
    pairs = list(zip(axis.call.pairs[::2], axis.call.pairs[1::2], strict=True))
    if axis.groups is not None:
        pairs = [(group[s], group[d]) for group in axis.groups for s, d in pairs]
    # jax.lax.ppermute numbers ranks in the order of the mesh's axes, not of those it is given.
    axes, order = _mesh_order(axis.axes)
    pairs = [(order[s], order[d]) for s, d in pairs]
    wire = axis.encode(x)
    if wire.dtype == x.dtype:
        return lax.ppermute(x, axes, pairs)
    return lax.ppermute(wire, axes, pairs).astype(x.dtype)


def _mesh_order(axes: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[int]]:
    """``axes`` as the mesh orders them, and each rank's number in that order."""
    names = _compat.mesh_axis_names()
    places = sorted(range(len(axes)), key=lambda i: names.index(axes[i]))
    sizes = [_compat.axes_in_scope()[axis] for axis in axes]
    numbers = np.arange(math.prod(sizes)).reshape([sizes[i] for i in places])
    return tuple(axes[i] for i in places), numbers.transpose(np.argsort(places)).ravel().tolist()


def _alltoallv(axis: _Axis, x: Array) -> Array:
    """Pads each block to the largest, exchanges those, and closes the gaps."""
    n, (taken, given) = axis.call.size, rows(axis.call)
    counts = np.array(axis.call.counts).reshape(n, n)
    longest = int(counts.max())
    starts = np.cumsum(counts, axis=1) - counts
    out = starts[:, :, None] + np.arange(longest)  # row of the operand, for each row sent
    sent = np.arange(longest) < counts[:, :, None]
    back = np.zeros((n, given), np.int32)  # row received, for each row of the result
    real = np.zeros((n, given), bool)
    for rank in range(n):
        source = np.concatenate([i * longest + np.arange(counts[i, rank]) for i in range(n)])
        back[rank, : len(source)] = source
        real[rank, : len(source)] = True
    rank = axis.rank()
    blocks = _stacked.take(
        x, jnp.asarray(np.clip(out, 0, max(taken - 1, 0)))[rank], jnp.asarray(sent)[rank]
    )
    received = axis.exchange(blocks).reshape(n * longest, *x.shape[1:])
    return _stacked.take(received, jnp.asarray(back)[rank], jnp.asarray(real)[rank])


def _reduce_scatterv(axis: _Axis, x: Array) -> Array:
    return _stacked.reduce_rows(
        axis.call.reduce_op, axis.exchange(_stacked.split_rows(axis.call, x))
    )


def _barrier(call: Call, operands: Sequence[Array]) -> list[Array]:
    arrived = lax.psum(jnp.ones((), jnp.int32), call.axes)
    return list(lax.optimization_barrier((*operands, arrived)))[:-1]


def _ragged_alltoall(
    call: Call,
    operand: Array,
    output: Array,
    input_offsets: Array,
    send_sizes: Array,
    recv_offsets: Array,
    recv_sizes: Array,
) -> Array:
    blocks = _stacked.cut_ragged(operand, input_offsets, send_sizes)
    received = _Axis(call).exchange(blocks)
    return _stacked.place_ragged(output, received, recv_offsets, recv_sizes)


_TABLE: dict[str, Callable[[_Axis, Array], Array]] = {
    "bcast": _bcast,
    "allreduce": _allreduce,
    "reduce": lambda axis, x: _at_root(axis, _allreduce(axis, x)),
    "allgather": lambda axis, x: axis.gather(x),
    "gather": lambda axis, x: _at_root(axis, axis.gather(x)),
    "scatter": lambda axis, x: axis.exchange(x)[axis.call.root],
    "reduce_scatter": _reduce_scatter,
    "alltoall": lambda axis, x: axis.exchange(x),
    "allgatherv": lambda axis, x: _stacked.join_rows(axis.call, axis.gather(x)),
    "gatherv": lambda axis, x: _at_root(axis, _stacked.join_rows(axis.call, axis.gather(x))),
    "scatterv": lambda axis, x: axis.exchange(_stacked.split_rows(axis.call, x))[axis.call.root],
    "reduce_scatterv": _reduce_scatterv,
    "alltoallv": _alltoallv,
    "scan": _prefix,
    "exscan": _prefix,
    "permute": _permute,
}
