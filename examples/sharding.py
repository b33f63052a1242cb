"""Common parts of the examples of `jit` with shardings: how processes join, and what they print."""

import zlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


def join(shape: tuple[int, ...], names: tuple[str, ...]) -> Mesh:
    """Joins the processes that mpiexec has started.

    Args:
      shape: of the mesh; -1 stands for the rest of the devices.
      names: of its axes.

    Returns:
      A mesh of all processes' devices.
    """
    jax.distributed.initialize(cluster_detection_method="mpi4py")
    return Mesh(np.array(jax.devices()).reshape(shape), names)


def put(values: Any, mesh: Mesh, spec: P) -> jax.Array:
    """Divides values, which are the same in all processes, over the devices of the mesh."""
    array, sharding = np.asarray(values), NamedSharding(mesh, spec)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def report(losses: Sequence[jax.Array], parameters: Any) -> None:
    """Prints the first and last loss, and a checksum of the parameters on this process's devices.

    Runs with equal checksums have computed the same bits.
    """
    checksum = 0
    for leaf in jax.tree.leaves(parameters):
        for shard in sorted(leaf.addressable_shards, key=lambda each: each.device.id):
            checksum = zlib.crc32(np.ascontiguousarray(shard.data).tobytes(), checksum)
    first, last = float(losses[0]), float(losses[-1])
    text = f"process {jax.process_index()}: loss {first:.6f} -> {last:.6f}, "
    print(f"{text}parameters {checksum:08x}\n", end="", flush=True)  # in one write
