"""Operations that are composed of other operations of the engine, or of a registered backend.

A call is composed if its codec is written in JAX, if a registered backend runs it with a codec, or
if it runs on GPUs and the stage does not support it (on_cuda.py).
jaxccomp/_traced/collectives.py has the compositions. With the exchanger of this module, the engine
or the backend sends the values instead of jax.lax.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxccomp import codecs
from jaxccomp._call import Call, result_shape, split_likes, split_references, with_likes
from jaxccomp._primitives import bind
from jaxccomp._traced import codecs as traced_codecs
from jaxccomp._traced import collectives
from jaxccomp._traced.codecs import Codec
from jaxccomp._traced.collectives import LaxExchanger

Array = Any
Tree = Any

_MESSAGES = ("send", "recv", "sendrecv")
# The maximum number and the minimum size of an array's pieces. One piece is sent while the next is
# encoded; more pieces would only cost more messages.
_PIECES = 4
_MIN_PIECE_BYTES = 1 << 20
# A piece, and each rank's part of it, ends at a block boundary: this package's codecs have block
# lengths that divide this number.
_PIECE_MULTIPLE = 4096
_CUT = ("allreduce", "reduce", "bcast")


def following(spec: str) -> str:
    """Return the spec without its first codec, or "raw"; the other codecs encode bytes."""
    stages = codecs.parse(spec).stages[1:]
    return str(codecs.CodecSpec(stages)) if stages else "raw"


@dataclasses.dataclass(frozen=True)
class Composition:
    """How a call is composed.

    Attributes:
      find: finds the codec in JAX that encodes values before they are sent.
      moved: the codec of the operations that send encoded values.
      uncoded: the codec of the operations that send values for which `find` returns None.
      pieces: the maximum number of pieces of an array.
    """

    find: collectives.FindCodec
    moved: str
    uncoded: str
    pieces: int = _PIECES


def by_first_stage(spec: str) -> Composition:
    """Return a composition: the first codec runs in JAX, the engine applies the others."""
    rest = following(spec)
    return Composition(traced_codecs.find_for, rest, rest)


def run(call: Call, operands: Sequence[Array], composition: Composition) -> list[Array]:
    """Run ``call`` as a composition of other operations."""
    return _Composed(call.replace(invariant=False), composition).run(operands)


class _Composed:
    """One call."""

    def __init__(self, call: Call, how: Composition):
        self.call = call
        self.how = how

    def run(self, operands: Sequence[Array]) -> list[Array]:
        call = self.call
        if call.collective == "barrier":
            return bind(_with_codec(call, self.how.moved), operands)
        if call.collective in _MESSAGES:
            return self._message(operands)
        if call.collective == "ragged_alltoall":
            return self._run_together(operands)
        results: list[Array] = []
        lost: list[Array] = []
        values, refs = split_references(call, operands)
        for number, x in enumerate(values):
            own_refs = refs[number :: len(values)]
            codec = self._codec_of(x)
            if codec is None:
                results += self._run_uncoded(x, own_refs)
                lost += [jnp.zeros_like(x)] * call.feedback
                continue
            moved = self._run_in_pieces(codec, number, x, own_refs)
            results.append(moved[0])
            lost += moved[1:]
        return results + lost

    def _codec_of(self, x: Array) -> Codec | None:
        return self.how.find(self.call.codec, x.dtype.name)

    def _run_uncoded(self, x: Array, refs: Sequence[Array]) -> list[Array]:
        call = _with_codec(self.call, self.how.uncoded)
        if call.codec == "raw":  # delta bases have no use
            return bind(call.replace(has_ref=False), [x])
        return bind(call, [x, *refs])

    def _run_together(self, operands: Sequence[Array], first: int = 0) -> list[Array]:
        exchanger = EngineExchanger(self.call, self.how.moved)
        return collectives.run(self.call, operands, self.how.find, exchanger, first)

    def _run_in_pieces(
        self, codec: Codec, number: int, x: Array, refs: Sequence[Array]
    ) -> list[Array]:
        length = self._piece_length(codec, x)
        first = number * self.how.pieces
        if length >= x.size:
            return self._run_together([x, *refs], first)
        flat = [each.reshape(-1) for each in (x, *refs)]
        pieces = [
            self._run_together([each[begin : begin + length] for each in flat], first + piece)
            for piece, begin in enumerate(range(0, x.size, length))
        ]
        return [jnp.concatenate(column).reshape(x.shape) for column in zip(*pieces, strict=True)]

    def _piece_length(self, codec: Codec, x: Array) -> int:
        if codec.whole or self.call.collective not in _CUT:
            return x.size
        min_length = max(-(-x.size // self.how.pieces), _MIN_PIECE_BYTES // x.dtype.itemsize)
        multiple = _PIECE_MULTIPLE * self.call.size
        return -(-min_length // multiple) * multiple

    # --- Messages between two ranks --------------------------------------------------------------

    def _message(self, operands: Sequence[Array]) -> list[Array]:
        """Send or receive one message with the encoded values of all operands."""
        call = self.call
        values, refs = split_references(call, operands)
        sent, likes = split_likes(call, values)
        # Delta bases of the values to send come first, delta bases of the values to receive last.
        before, after = list(refs[: len(sent)]), list(refs[-len(likes) :])
        codes: list[Tree] = []
        if call.collective != "recv":
            codes = [self._encode(i, x, before) for i, x in enumerate(sent)]
        expected = [self._encoded_like(x) for x in likes] if call.collective != "send" else []
        moving = _with_codec(call, self.how.moved).replace(has_ref=False)
        leaves, like_leaves = jax.tree.leaves(codes), jax.tree.leaves(expected)
        if call.likes >= 0:
            moving = with_likes(moving, len(leaves), len(like_leaves))
            leaves += like_leaves
        elif call.collective == "recv":
            leaves = like_leaves
        moved = bind(moving, leaves)
        if call.collective == "send":  # return the operands, but not before they are sent
            return list(lax.optimization_barrier((*sent, *moved)))[: len(sent)]
        status = [moved.pop()] if call.status else []
        if call.collective == "sendrecv" and call.pairs[1] == -1:
            return [jnp.zeros_like(x) for x in likes]
        arrived = jax.tree.unflatten(jax.tree.structure(expected), moved)
        return [self._decode(i, x, arrived[i], after) for i, x in enumerate(likes)] + status

    def _encode(self, number: int, x: Array, refs: Sequence[Array]) -> Tree:
        codec = self._codec_of(x)
        if codec is None:
            return x
        key = None
        if codec.random:
            assert self.call.comm is not None
            key = traced_codecs.key_for(x, f"{self.call} {number}", self.call.comm.rank)
        return codec.encode(x - refs[number] if refs else x, key)

    def _encoded_like(self, x: Array) -> Tree:
        """Return zeros with the shapes of the encoding of values like ``x``."""
        codec = self._codec_of(x)
        if codec is None:
            return x
        key = traced_codecs.key_for(x, "", 0) if codec.random else None
        shapes = jax.eval_shape(codec.encode, x, key)
        return jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)

    def _decode(self, number: int, like: Array, code: Tree, refs: Sequence[Array]) -> Array:
        codec = self._codec_of(like)
        if codec is None:
            return code
        x = codec.decode(code, like.shape, like.dtype)
        return refs[number] + x if refs else x


def _with_codec(call: Call, codec: str) -> Call:
    return call.replace(codec=codec, cotangent_codec="same", feedback=False)


class EngineExchanger(LaxExchanger):
    """Moves blocks by the engine or a registered backend, between processes or along axes."""

    def __init__(self, call: Call, codec: str):
        super().__init__(call)
        self._how = _with_codec(call, codec).replace(
            algorithm="auto", reduce_op="", counts=(), pairs=(), root=-1, has_ref=False
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
