"""A process of jax.distributed, without MPI and UCX: `kv_store_worker.py CASE RANK RANKS PORT`.

Prints one JSON object.
"""

import json
import sys
import time

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

import jaxccomp as jcc
from jaxccomp import comm, errors
from jaxccomp._native import engine


def package(rank, ranks):
    """Reports the ranks, groups, and the backends that work or fail."""
    world = jcc.init()
    found = {"rank": world.rank, "size": world.size, "way": engine.load().describe()["transports"]}
    found["group"] = world.split(rank % 2, key=-rank).processes
    found["again"] = world.split(None if rank == 0 else 0) is None
    try:
        jcc.allreduce(np.ones(3))
    except errors.EngineUnavailableError as error:
        found["error"] = str(error)
    mesh = jax.make_mesh((ranks,), ("i",))

    def total(backend):
        along = jax.shard_map(
            lambda: jcc.allreduce(jax.lax.axis_index("i") + 1, axis_name="i", backend=backend)[
                None
            ],
            mesh=mesh,
            in_specs=(),
            out_specs=P("i"),
        )
        return int(jax.jit(along)().addressable_shards[0].data[0])

    found["sum"] = [total("auto"), total("xla")]
    try:
        total("native")
    except errors.EngineUnavailableError as error:
        found["native"] = str(error)
    return found


def alone(rank, ranks):
    """Returns the error of a process whose peer does not call init."""
    jax.devices()  # JAX waits here for all processes
    if rank == 1:
        time.sleep(4)
        return {"error": ""}
    try:
        jcc.init(timeout_seconds=2.0)
    except errors.InitializationError as error:
        assert not comm.is_initialized()
        return {"error": str(error)}
    return {"error": "did not wait"}


def main(case, rank, ranks, port):
    jax.distributed.initialize(f"127.0.0.1:{port}", int(ranks), int(rank))
    print(json.dumps(globals()[case](int(rank), int(ranks))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
