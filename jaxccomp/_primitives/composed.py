"""Operations whose codec is written in JAX: composed of those of the engine, which send its codes.

The composition is the traced plane's (jaxccomp/_traced/collectives.py); what it moves by differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxccomp import codecs
from jaxccomp._call import Call, result_shape, split_likes, split_references, with_likes
from jaxccomp._primitives.binding import bind
from jaxccomp._traced import codecs as traced_codecs
from jaxccomp._traced import collectives
from jaxccomp._traced.codecs import Codec
from jaxccomp._traced.lax_mover import LaxMover

Array = Any
Tree = Any

_MESSAGES = ("send", "recv", "sendrecv")
# An array that is cut travels in so many pieces, each of at least so many bytes: while one is under
# way the next is encoded. More pieces would only cost more messages.
_PIECES = 4
_LEAST_PIECE_BYTES = 1 << 20
# Pieces end where no block of a codec does: all of ours have blocks of a power of two up to this.
_PIECE_MULTIPLE = 4096
_CUT = ("allreduce", "reduce", "bcast")


def run(call: Call, operands: Sequence[Array]) -> list[Array]:
    """Runs ``call``, whose codec the program has registered, on the engine."""
    call = call.replace(invariant=False)
    if call.collective == "barrier":
        return bind(_raw(call), operands)
    if call.collective in _MESSAGES:
        return _message(call, operands)
    results: list[Array] = []
    lost: list[Array] = []
    if call.collective == "ragged_alltoall":
        return _run_together(call, operands)
    values, refs = split_references(call, operands)
    for number, x in enumerate(values):
        own_refs = refs[number :: len(values)]
        if traced_codecs.find_for(call.codec, x.dtype.name) is None:
            results += _run_raw(call, x, own_refs)
            lost += [jnp.zeros_like(x)] * call.feedback
            continue
        moved = _run_in_pieces(call, number, x, own_refs)
        results.append(moved[0])
        lost += moved[1:]
    return results + lost


def _run_raw(call: Call, x: Array, refs: Sequence[Array]) -> list[Array]:
    raw = _raw(call)
    if raw.codec == "raw":  # which has no use for references
        return bind(raw.replace(referenced=False), [x])
    return bind(raw, [x, *refs])


def _run_together(call: Call, operands: Sequence[Array], first: int = 0) -> list[Array]:
    return collectives.run(call, operands, traced_codecs.find_for, EngineMover(call), first)


def _run_in_pieces(call: Call, number: int, x: Array, refs: Sequence[Array]) -> list[Array]:
    codec = traced_codecs.find_for(call.codec, x.dtype.name)
    assert codec is not None
    length = _piece_length(call, codec, x)
    first = number * _PIECES
    if length >= x.size:
        return _run_together(call, [x, *refs], first)
    flat = [each.reshape(-1) for each in (x, *refs)]
    pieces = [
        _run_together(call, [each[begin : begin + length] for each in flat], first + piece)
        for piece, begin in enumerate(range(0, x.size, length))
    ]
    return [jnp.concatenate(column).reshape(x.shape) for column in zip(*pieces, strict=True)]


def _piece_length(call: Call, codec: Codec, x: Array) -> int:
    if codec.whole or call.collective not in _CUT:
        return x.size
    least = max(-(-x.size // _PIECES), _LEAST_PIECE_BYTES // x.dtype.itemsize)
    multiple = _PIECE_MULTIPLE * call.size
    return -(-least // multiple) * multiple


def _raw(call: Call) -> Call:
    """``call`` without the program's codec; a stage that follows it codes bytes, and stays."""
    stages = codecs.parse(call.codec).stages[1:]
    codec = str(codecs.CodecSpec(stages)) if stages else "raw"
    return call.replace(codec=codec, cotangent_codec="same", feedback=False)


class EngineMover(LaxMover):
    """Moves blocks by the engine: between processes, and along axes that it reaches."""

    def __init__(self, call: Call):
        super().__init__(call)
        self._how = _raw(call).replace(
            algorithm="auto", reduce_op="", counts=(), pairs=(), root=-1, referenced=False
        )

    def index(self) -> Array:
        return super().index() if self.call.comm is None else self.call.comm.rank

    def sum(self, x: Array) -> Array:
        return self._bind(self._how.replace(collective="allreduce", reduce_op="sum"), x)

    def gather(self, tree: Tree) -> Tree:
        return self._bind(self._how.replace(collective="allgather"), tree)

    def exchange(self, tree: Tree) -> Tree:
        return self._bind(self._how.replace(collective="alltoall"), tree)

    def permute(self, tree: Tree, pairs: Sequence[tuple[int, int]]) -> Tree:
        flat = tuple(rank for pair in pairs for rank in pair)
        return self._bind(self._how.replace(collective="permute", pairs=flat), tree)

    def from_root(self, tree: Tree) -> Tree:
        return self._bind(self._how.replace(collective="bcast", root=self.call.root), tree)

    def _bind(self, call: Call, tree: Tree) -> Tree:
        leaves, treedef = jax.tree.flatten(tree)
        sent = [leaf for leaf in leaves if leaf.size]
        moved = iter(bind(call, sent) if sent else [])
        arrived = [
            next(moved) if leaf.size else jnp.zeros(result_shape(call, leaf.shape), leaf.dtype)
            for leaf in leaves
        ]
        return jax.tree.unflatten(treedef, arrived)


# --- Messages between two ranks ------------------------------------------------------------------


def _message(call: Call, operands: Sequence[Array]) -> list[Array]:
    """All that a rank sends is one message, of the codes of all operands."""
    values, refs = split_references(call, operands)
    sent, likes = split_likes(call, values)
    # What is sent has the first references, what is received the last.
    before, after = list(refs[: len(sent)]), list(refs[-len(likes) :])
    codes: list[Tree] = []
    if call.collective != "recv":
        codes = [_encode(call, i, x, before) for i, x in enumerate(sent)]
    expected = [_encoded_like(call, x) for x in likes] if call.collective != "send" else []
    raw = _raw(call).replace(referenced=False)
    leaves, like_leaves = jax.tree.leaves(codes), jax.tree.leaves(expected)
    if call.likes >= 0:
        raw = with_likes(raw, len(leaves), len(like_leaves))
        leaves += like_leaves
    elif call.collective == "recv":
        leaves = like_leaves
    moved = bind(raw, leaves)
    if call.collective == "send":  # whose results are its operands, once they are sent
        return list(lax.optimization_barrier((*sent, *moved)))[: len(sent)]
    status = [moved.pop()] if call.status else []
    if call.collective == "sendrecv" and call.pairs[1] == -1:
        return [jnp.zeros_like(x) for x in likes]
    arrived = jax.tree.unflatten(jax.tree.structure(expected), moved)
    return [_decode(call, i, x, arrived[i], after) for i, x in enumerate(likes)] + status


def _encode(call: Call, number: int, x: Array, refs: Sequence[Array]) -> Tree:
    codec = traced_codecs.find_for(call.codec, x.dtype.name)
    if codec is None:
        return x
    key = None
    if codec.random:
        assert call.comm is not None
        key = traced_codecs.key_for(x, f"{call} {number}", call.comm.rank)
    return codec.encode(x - refs[number] if refs else x, key)


def _encoded_like(call: Call, x: Array) -> Tree:
    """Zeros of the shapes that a code of values like ``x`` has."""
    codec = traced_codecs.find_for(call.codec, x.dtype.name)
    if codec is None:
        return x
    key = traced_codecs.key_for(x, "", 0) if codec.random else None
    shapes = jax.eval_shape(codec.encode, x, key)
    return jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)


def _decode(call: Call, number: int, like: Array, code: Tree, refs: Sequence[Array]) -> Array:
    codec = traced_codecs.find_for(call.codec, like.dtype.name)
    if codec is None:
        return code
    x = codec.decode(code, like.shape, like.dtype)
    return refs[number] + x if refs else x
