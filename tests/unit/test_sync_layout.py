"""The routes of weights between two sides: each part arrives exactly once, for all shardings."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_errors import raises
from jax.sharding import PartitionSpec

from jaxccomp import errors
from jaxccomp.sync import _layout as layout

P = PartitionSpec
ARRAYS = {"a": (12, 8), "b": (24,), "c": (), "d": (0, 4), "e": (4, 6, 12)}
# Meshes, and the arrays' shardings along them.
CUTS = [
    ({}, None),
    ({"x": 2}, P()),
    ({"x": 2}, {"a": P("x"), "b": P("x"), "c": P(), "d": P(None, "x"), "e": P(None, "x")}),
    ({"x": 4}, {"a": P(None, "x"), "b": P(), "c": None, "d": P(), "e": P("x")}),
    (
        {"x": 2, "y": 3},
        {"a": P(("y", "x")), "b": P(("x", "y")), "c": P(), "d": P(), "e": P("x", "y")},
    ),
    ({"x": 3, "y": 2}, {"a": P("x", "y"), "b": P("y"), "c": P(), "d": P(), "e": P(None, "x", "y")}),
]


def parts(values, cut, index):
    """Return a rank's arrays, sharded as by JAX."""
    mesh, specs = cut
    if not mesh:
        return values
    devices = np.arange(np.prod(tuple(mesh.values()))).reshape(tuple(mesh.values()))
    abstract = jax.sharding.AbstractMesh(devices.shape, tuple(mesh))
    coordinates = dict(zip(mesh, np.argwhere(devices == index)[0], strict=True))
    found = {}
    for name, array in values.items():
        spec = specs if isinstance(specs, PartitionSpec) else specs[name] or P()
        local = jax.sharding.NamedSharding(abstract, spec).shard_shape(array.shape)
        at = []
        for dimension, size in enumerate(local):
            axes = spec[dimension] if dimension < len(spec) else None
            axes = (axes,) if isinstance(axes, str) else axes or ()
            place = 0
            for axis in axes:
                place = place * mesh[axis] + coordinates[axis]
            at.append(slice(place * size, (place + 1) * size))
        found[name] = array[tuple(at)]
    return found


def members_of(publishers, receivers):
    """Returns the members of two sides by rank, and their arrays."""
    values = {
        name: np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        for name, shape in ARRAYS.items()
    }
    members, held = {}, {}
    for publishes, cut in ((True, publishers), (False, receivers)):
        mesh, specs = cut
        for index in range(int(np.prod(tuple(mesh.values()))) if mesh else 2):
            rank = len(members)
            held[rank] = parts(values, cut, index)
            members[rank] = layout.Member(
                publishes, layout.leaves_of(held[rank], specs, mesh, index)
            )
    return members, held


@pytest.mark.parametrize("publishers,receivers", list(itertools.product(CUTS, CUTS)))
def test_each_part_arrives_exactly_once(publishers, receivers):
    members, held = members_of(publishers, receivers)
    layout.check_alike(members)
    names = list(ARRAYS)
    sent = {}
    came = {
        rank: [np.zeros(leaf.local_shape, int) for leaf in member.leaves]
        for rank, member in members.items()
        if not member.publishes
    }
    got = {rank: [np.full(each.shape, np.nan) for each in came[rank]] for rank in came}

    def within(rank, number, region):
        own = members[rank].leaves[number].region
        return tuple(
            slice(begin - first, end - first)
            for (begin, end), (first, _) in zip(region, own, strict=True)
        )

    for route in layout.routes(members, range(len(names))):
        assert members[route.owner].publishes and len(set(route.members)) == len(route.members)
        for number, region in route.parts:
            part = held[route.owner][names[number]][within(route.owner, number, region)]
            sent[number] = sent.get(number, 0) + part.size
            for rank in route.receivers:
                got[rank][number][within(rank, number, region)] = part
                came[rank][number][within(rank, number, region)] += 1
    for rank in got:
        for number, name in enumerate(names):
            assert (came[rank][number] == 1).all()
            np.testing.assert_array_equal(got[rank][number], held[rank][name])
    for number, name in enumerate(names):
        assert sent.get(number, 0) == np.prod(ARRAYS[name])  # each element is sent once


def test_replicas_share_the_sending_of_their_parts():
    members, _ = members_of(({"x": 4}, P()), ({"x": 2}, {"a": P("x"), "b": P("x"), "c": P(),
                                                         "d": P(), "e": P("x")}))  # fmt: skip
    owners = {route.owner for route in layout.routes(members, range(len(ARRAYS)))}
    assert owners == {0, 1, 2, 3}


def test_part_lost_with_its_only_owner_is_named():
    members, _ = members_of(CUTS[2], CUTS[0])
    del members[1]
    with raises(errors.InvalidArgumentError, "['a']", "rank 2", "mesh=", "specs="):
        layout.routes(members, range(len(ARRAYS)))
    members, _ = members_of(CUTS[1], CUTS[0])  # both ranks hold all values
    del members[0]
    assert layout.routes(members, range(len(ARRAYS)))


def test_arrays_are_grouped_into_buckets():
    leaves = layout.leaves_of([jnp.zeros(n, jnp.float32) for n in (4, 4, 100, 1)], None, {}, 0)
    assert list(layout.buckets(leaves, 32)) == [[0, 1], [2], [3]]
    assert list(layout.buckets([], 32)) == []


def test_arrays_of_other_processes_are_refused(monkeypatch):
    array = jnp.zeros(3)
    monkeypatch.setattr(type(array), "is_fully_addressable", False)
    with raises(errors.InvalidArgumentError, "leaf.addressable_data(0)", "specs=", "mesh="):
        layout.leaves_of(array, None, {}, 0)
