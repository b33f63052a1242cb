"""Moves whole blocks between the ranks of a call, by collectives of jax.lax."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxccomp import _jax
from jaxccomp._call import Call

Array = Any
Tree = Any


class LaxMover:
    """Moves the blocks of a composed operation. Trees are moved leaf by leaf."""

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
        # jax.lax.ppermute numbers ranks in the order of the mesh's axes, not of its argument.
        axes, order = _mesh_order(self.axes)
        ordered = [(order[s], order[d]) for s, d in pairs]
        return jax.tree.map(lambda x: lax.ppermute(x, axes, ordered), tree)

    def from_root(self, tree: Tree) -> Tree:
        """Broadcast the root's block.

        Uses a binomial tree, so that each other rank receives the block once. A sum would be
        simpler, but XLA would widen narrow types.
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
