"""Sends arrays to the ranks: the weights of one version in buckets, or one rank's arrays to all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxccomp import codecs, errors, ops
from jaxccomp.comm import Communicator
from jaxccomp.sync import _layout as layout
from jaxccomp.sync._control import Control

# --- Versions -------------------------------------------------------------------------------------

# Bytes of whole arrays. Parts that are sliced out take this much memory again while the bucket is
# in flight.
BUCKET_BYTES = 64 << 20

Arrays = list[jax.Array]


class Transfer:
    """This rank's side of sending all arrays, for one set of members."""

    def __init__(
        self,
        members: Mapping[int, layout.Member],
        rank: int,
        group: Callable[[str, tuple[int, ...]], Communicator],
        codec: str,
    ):
        """Plans; no communication.

        Args:
          members: the members, by rank.
          rank: this rank.
          group: makes a communicator in program order from a name and ranks.
          codec: the codec of the differences.
        """
        self._leaves = members[rank].leaves
        self._publishes = members[rank].publishes
        self._codec = codec
        self._buckets = []
        comms: dict[tuple[int, ...], Communicator | None] = {}
        for numbers in layout.buckets(self._leaves, BUCKET_BYTES):
            mine = []
            for route in layout.routes(members, numbers):
                # All ranks count all routes, so that names agree.
                name = f"{len(comms)}"
                if route.members not in comms:
                    comms[route.members] = (
                        group(name, route.members) if rank in route.members else None
                    )
                if rank in route.members:
                    mine.append((route, comms[route.members]))
            if mine:
                programs = {
                    referenced: jax.jit(self._program(numbers, mine, referenced))
                    for referenced in (False, True)
                }
                self._buckets.append((numbers, programs))

    def run(self, source: Arrays, base: Arrays | None) -> Arrays:
        """Sends `source`, or receives.

        Args:
          source: the values that a publisher sends; on a receiver, any arrays of their shapes.
          base: the previous version, if all ranks of all routes have it.

        Returns:
          On a receiver, the received arrays (ready).
        """
        received: Arrays = list(source)
        for numbers, programs in self._buckets:
            values = [source[number] for number in numbers]
            if base is None:
                results = programs[False](values, None)
            else:
                results = programs[True](values, [base[number] for number in numbers])
            jax.block_until_ready(results)
            if not self._publishes:
                for number, result in zip(numbers, results, strict=True):
                    received[number] = result
        return received

    def _program(
        self, numbers: Sequence[int], mine: list[tuple[layout.Route, Any]], referenced: bool
    ) -> Callable[[Arrays, Arrays | None], Arrays]:
        place = {number: i for i, number in enumerate(numbers)}

        def cut(arrays: Arrays, parts: Sequence[tuple[int, layout.Region]]) -> Arrays:
            return [self._cut(arrays[place[n]], n, region) for n, region in parts]

        def program(source: Arrays, base: Arrays | None) -> Arrays:
            found: list[list[tuple[layout.Region, jax.Array]]] = [[] for _ in numbers]
            for route, comm in mine:
                how: dict[str, Any] = {"codec": "lossless"}
                if codecs.is_raw(self._codec):  # no differences
                    how = {"codec": "raw"}
                elif base is not None:
                    how = {"ref": cut(base, route.parts), "codec": self._codec}
                parts = ops.bcast(cut(source, route.parts), root=0, comm=comm, **how)
                for (number, region), part in zip(route.parts, parts, strict=True):
                    found[place[number]].append((region, part))
            if self._publishes:  # run() waits for these results
                return [part.ravel()[:1] for each in found for _, part in each]
            return [self._joined(n, each) for n, each in zip(numbers, found, strict=True)]

        program.__name__ = f"sync_{'delta' if referenced else 'full'}"
        return program

    def _within(
        self, number: int, region: layout.Region
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        own = self._leaves[number].region
        pairs = list(zip(region, own, strict=True))
        return (
            tuple(begin - first for (begin, _), (first, _) in pairs),
            tuple(end - first for (_, end), (first, _) in pairs),
        )

    def _cut(self, array: jax.Array, number: int, region: layout.Region) -> jax.Array:
        if region == self._leaves[number].region:
            return array
        return jax.lax.slice(array, *self._within(number, region))

    def _joined(self, number: int, parts: list[tuple[layout.Region, jax.Array]]) -> jax.Array:
        leaf = self._leaves[number]
        if len(parts) == 1 and parts[0][0] == leaf.region:
            return parts[0][1]
        whole = jnp.zeros(leaf.local_shape, leaf.dtype)
        for region, part in parts:
            whole = jax.lax.dynamic_update_slice(whole, part, self._within(number, region)[0])
        return whole


# --- Replicas, whose hashes are compared afterwards -----------------------------------------------


def replicate(tree: Any, root: int, comm: Communicator, codec: str) -> Any:
    """Implements `jaxccomp.sync.replicate`."""
    control = Control(comm.ordered())
    leaves, structure = jax.tree.flatten(tree)
    own = [str(structure), [[str(leaf.dtype), list(leaf.shape)] for leaf in leaves]]
    said = control.descriptions(own)
    for rank, other in enumerate(said):
        if other != said[0]:
            raise errors.InvalidArgumentError(
                f"ranks 0 and {rank} of {comm.name!r} do not have the same arrays: {said[0][0]} of "
                f"{_array_names(said[0][1])}, and {other[0]} of {_array_names(other[1])}."
            )
    # Only the root's values are read.
    arrays = [
        jnp.zeros(leaf.shape, leaf.dtype)
        if comm.rank != root or isinstance(leaf, jax.ShapeDtypeStruct)
        else leaf
        for leaf in leaves
    ]
    received = ops.bcast(arrays, root=root, comm=comm.ordered(), codec=codec) if arrays else []
    hashes = control.descriptions(_hash(received))
    other = [rank for rank, each in enumerate(hashes) if each != hashes[root]]
    if other:
        raise errors.SyncError(f"ranks {other} of {comm.name!r} have other bits than rank {root}.")
    return jax.tree.unflatten(structure, received)


def _array_names(rows: list[Any]) -> str:
    return ", ".join(f"{dtype}{shape}" for dtype, shape in rows) or "no arrays"


def _hash(arrays: list[Any]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        digest.update(np.ascontiguousarray(np.asarray(array)).view(np.uint8).reshape(-1).data)
    return digest.hexdigest()
