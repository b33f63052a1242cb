"""Replicates one rank's arrays to all ranks, and compares hashes of the results."""

from __future__ import annotations

import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxccomp import errors, ops
from jaxccomp.comm import Communicator
from jaxccomp.sync._control import Control


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
                f"{_named(said[0][1])}, and {other[0]} of {_named(other[1])}."
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


def _named(rows: list[Any]) -> str:
    return ", ".join(f"{dtype}{shape}" for dtype, shape in rows) or "no arrays"


def _hash(arrays: list[Any]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        digest.update(np.ascontiguousarray(np.asarray(array)).view(np.uint8).reshape(-1).data)
    return digest.hexdigest()
