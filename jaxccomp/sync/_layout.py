"""Which parts of the weights each rank holds, and the routes by which they are sent.

No communication: all functions compute from the members' descriptions.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxccomp import errors

Region = tuple[tuple[int, int], ...]  # begin and end, by dimension


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One array of the tree, and the region of it that a rank holds."""

    path: str
    dtype: str
    shape: tuple[int, ...]  # of the whole array
    region: Region

    @property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of the part."""
        return tuple(end - begin for begin, end in self.region)


@dataclasses.dataclass(frozen=True)
class Member:
    """A rank's side, and the parts that it publishes or receives."""

    publishes: bool
    leaves: tuple[Leaf, ...]


@dataclasses.dataclass(frozen=True)
class Route:
    """Parts of arrays that one rank sends to the same receivers."""

    owner: int
    receivers: tuple[int, ...]
    parts: tuple[tuple[int, Region], ...]  # index of the leaf, and region of the whole array

    @property
    def members(self) -> tuple[int, ...]:
        """The owner's rank, then the receivers'."""
        return (self.owner, *self.receivers)


def check_mesh(mesh: Mapping[str, int] | None, ranks: int, what: str) -> dict[str, int]:
    """Returns the mesh's axes as a dict.

    Raises:
      InvalidArgumentError: if the product of the axes is not the number of ranks.
    """
    axes = dict(mesh or {})
    for name, size in axes.items():
        if not isinstance(name, str) or isinstance(size, bool) or not isinstance(size, int):
            raise errors.InvalidArgumentError(
                "mesh= gives the size of each axis by its name, such as {'model': 2}; not "
                f"{mesh!r}."
            )
    if axes and math.prod(axes.values()) != ranks:
        raise errors.InvalidArgumentError(
            f"mesh= {axes} is for {math.prod(axes.values())} ranks, but {ranks} {what}."
        )
    return axes


def dtype_of(name: str, leaf: Any, rounded: Any = None) -> str:
    """The dtype in which an array is sent.

    Args:
      name: the leaf's name, for errors.
      leaf: the array.
      rounded: the dtype to which floating-point values are rounded; None: no rounding.

    Raises:
      InvalidArgumentError: if the leaf is no array, or has a PRNG key dtype or float0.
    """
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        raise errors.InvalidArgumentError(f"{name} must be an array, not {type(leaf).__name__}.")
    if jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
        raise errors.InvalidArgumentError(
            f"{name} has the dtype {leaf.dtype}, which weights do not have; give "
            "jax.random.key_data of keys."
        )
    if leaf.dtype == jax.dtypes.float0:
        raise errors.InvalidArgumentError(
            f"{name} has the dtype float0, which has no values: it is a derivative by integers. "
            "Give weights, without it."
        )
    dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
    if rounded is not None and jax.numpy.issubdtype(dtype, jax.numpy.floating):
        dtype = jax.numpy.dtype(rounded)
    return str(dtype)


def leaves_of(
    tree: Any, specs: Any, axes: Mapping[str, int], index: int, rounded: Any = None
) -> tuple[Leaf, ...]:
    """Describes a rank's part of each array.

    Args:
      tree: this rank's parts: arrays, or objects with a shape and a dtype.
      specs: None (not sharded), a PartitionSpec for all leaves, or a tree of them.
      axes: the mesh: sizes by name, the last one changing fastest.
      index: the rank's place in the mesh.
      rounded: as for `dtype_of`.

    Raises:
      InvalidArgumentError: for specs that do not fit the tree or the mesh, and for arrays that are
        sharded over several processes.
    """
    paths_and_leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    coordinates, rest = {}, index
    for name, size in reversed(list(axes.items())):
        rest, coordinates[name] = divmod(rest, size)
    found = []
    for (path, leaf), spec in zip(paths_and_leaves, _specs_of(specs, structure), strict=True):
        name = jax.tree_util.keystr(path) or "the array"
        dtype = dtype_of(name, leaf, rounded)
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            raise errors.InvalidArgumentError(
                f"{name} is spread over several processes: give this process's part of it, "
                "leaf.addressable_data(0), and say by specs= and mesh= which one that is."
            )
        shape, region = [], []
        for dimension, size in enumerate(leaf.shape):
            parts, part = 1, 0
            for axis in _axes_at(spec, dimension):
                if axis not in axes:
                    raise errors.unknown(
                        "axis of mesh=", axis, axes, f"It is in the PartitionSpec of {name}."
                    )
                parts, part = parts * axes[axis], part * axes[axis] + coordinates[axis]
            shape.append(size * parts)
            region.append((size * part, size * (part + 1)))
        if len(spec) > len(shape):
            raise errors.InvalidArgumentError(
                f"{spec} is for {len(spec)} dimensions, but {name} has {len(shape)}."
            )
        found.append(Leaf(name, dtype, tuple(shape), tuple(region)))
    return tuple(found)


def _specs_of(specs: Any, structure: Any) -> list[PartitionSpec]:
    if specs is None or isinstance(specs, PartitionSpec):
        return [specs or PartitionSpec()] * structure.num_leaves
    try:
        found = structure.flatten_up_to(specs)
    except (ValueError, TypeError, KeyError) as error:
        raise errors.InvalidArgumentError(
            f"specs= must be a PartitionSpec, or a tree of them like the weights: {error}"
        ) from None
    for spec in found:
        if spec is not None and not isinstance(spec, PartitionSpec):
            raise errors.InvalidArgumentError(
                f"specs= has {spec!r} where a PartitionSpec or None is expected."
            )
    return [spec or PartitionSpec() for spec in found]


def _axes_at(spec: PartitionSpec, dimension: int) -> tuple[str, ...]:
    names = spec[dimension] if dimension < len(spec) else None
    if names is None:
        return ()
    return names if isinstance(names, tuple) else (names,)


def check_alike(members: Mapping[int, Member]) -> None:
    """Checks that all ranks describe the same whole arrays.

    Raises:
      InvalidArgumentError: naming the first array that differs and both ranks; also if there is no
        publisher.
    """
    publishers = [rank for rank, member in members.items() if member.publishes]
    if not publishers:
        raise errors.InvalidArgumentError(
            f"none of ranks {listed(members)} publishes: one must make a Publisher."
        )
    first = publishers[0]
    for rank, member in members.items():
        for own, other in itertools.zip_longest(members[first].leaves, member.leaves):
            if _what(own) != _what(other):
                raise errors.InvalidArgumentError(
                    f"ranks {first} and {rank} of the world have different weights: {_what(own)} "
                    f"on rank {first}, {_what(other)} on rank {rank}. All give trees of the same "
                    "arrays; dtype= of a Publisher converts."
                )


def _what(leaf: Leaf | None) -> str:
    return "no more array" if leaf is None else f"{leaf.path} {leaf.dtype}{list(leaf.shape)}"


def listed(ranks: Sequence[int] | Mapping[int, Any]) -> str:
    """Formats ranks for an error text."""
    return ", ".join(map(str, ranks))


def routes(members: Mapping[int, Member], leaves: Sequence[int]) -> list[Route]:
    """The routes of these leaves, in the same order on all ranks.

    Each part is sent once, by one holder to all ranks that need it. Of several holders, the one
    with the fewest values to send so far is chosen.

    Raises:
      InvalidArgumentError: if a receiver needs a part that no rank publishes.
    """
    publishers = [rank for rank, member in members.items() if member.publishes]
    receivers = [rank for rank, member in members.items() if not member.publishes]
    sent = dict.fromkeys(publishers, 0)
    parts: dict[tuple[int, tuple[int, ...]], list[tuple[int, Region]]] = {}
    for number in leaves:
        owners = _holders(members, publishers, number)
        for wanted, who in _holders(members, receivers, number).items():
            found = 0
            for region, holders in owners.items():
                part = _common(region, wanted)
                if part is None:
                    continue
                found += _values(part)
                owner = min(holders, key=lambda rank: (sent[rank], rank))
                sent[owner] += _values(part)
                parts.setdefault((owner, tuple(who)), []).append((number, part))
            if found != _values(wanted):
                leaf = members[receivers[0]].leaves[number]
                raise errors.InvalidArgumentError(
                    f"no rank publishes all of {leaf.path} that rank {who[0]} receives: the ranks "
                    "that held it are gone, or mesh= and specs= of the publishers leave it out."
                )
    return [Route(owner, who, tuple(each)) for (owner, who), each in sorted(parts.items())]


def _holders(
    members: Mapping[int, Member], ranks: Sequence[int], number: int
) -> dict[Region, list[int]]:
    found: dict[Region, list[int]] = {}
    for rank in ranks:
        found.setdefault(members[rank].leaves[number].region, []).append(rank)
    return found


def _common(a: Region, b: Region) -> Region | None:
    found = tuple((max(x[0], y[0]), min(x[1], y[1])) for x, y in zip(a, b, strict=True))
    return None if any(begin >= end for begin, end in found) else found


def _values(region: Region) -> int:
    return math.prod(end - begin for begin, end in region)


def buckets(leaves: Sequence[Leaf], max_bytes: int) -> Iterator[list[int]]:
    """Groups consecutive leaves by index, up to `max_bytes` of whole arrays (or one leaf) each."""
    found: list[int] = []
    nbytes = 0
    for number, leaf in enumerate(leaves):
        size = math.prod(leaf.shape) * jax.numpy.dtype(leaf.dtype).itemsize
        if found and nbytes + size > max_bytes:
            yield found
            found, nbytes = [], 0
        found.append(number)
        nbytes += size
    if found:
        yield found
