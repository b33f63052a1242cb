"""One rank of one contender: measures operations and writes a line of JSON for each.

Runs as a script, also in environments without jaxccomp:

    mpiexec -n 2 python worker.py CONTENDER OUT_FOLDER OPERATION:BYTES...

Every rank writes its own file, so that a contender needs no gather of results.
Inputs are small integers as float32: sums are exact, and every result is checked bit by bit.

BYTES is the size of a rank's input (bcast: of the root's).
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

Step = Callable[[], Any]

# A rank's input of these operations has one row for each rank.
OF_ROWS = ("scatter", "reduce_scatter", "alltoall")

_BLOCK = 64 << 10  # values


def repetitions(size_bytes: int) -> int:
    """How many calls to time: about a second's worth, the same number on all ranks."""
    return max(10, min(1000, (256 << 20) // max(size_bytes, 1)))


def rank_and_size() -> tuple[int, int]:
    """This process's rank and the number of ranks, from the launcher's variables."""
    for rank, size in (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE")):
        if rank in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1


def operand(operation: str, size_bytes: int, rank: int, ranks: int) -> np.ndarray:
    """The input of ``rank``."""
    count = max(size_bytes // 4 // ranks, 1) * ranks
    values = (np.arange(count) % 1000 + rank).astype(np.float32)
    return values.reshape(ranks, -1) if operation in OF_ROWS else values


def expected(operation: str, size_bytes: int, rank: int, ranks: int) -> np.ndarray | None:
    """The operation's result on ``rank``, by NumPy; None if contenders may return other values."""
    if operation in ("reduce", "gather") and rank != 0:
        return None
    each = [operand(operation, size_bytes, r, ranks) for r in range(ranks)]
    match operation:
        case "bcast":
            return each[0]
        case "allreduce" | "reduce":
            return np.sum(each, axis=0)
        case "reduce_scatter":
            return np.sum([rows[rank] for rows in each], axis=0)
        case "allgather" | "gather":
            return np.stack(each)
        case "scatter":
            return each[0][rank]
        case "alltoall":
            return np.stack([rows[rank] for rows in each])
        case "sendrecv":
            return each[(rank - 1) % ranks]
    return each[rank] + 1  # empty


def time_calls(step: Step, count: int) -> float:
    """The median time of a call in microseconds."""
    for _ in range(max(3, count // 10)):
        step()
    times = []
    for _ in range(count):
        start = time.perf_counter_ns()
        step()
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times) / 1000


# --- contenders: each takes (operation, operand, rank, ranks) and returns a step ------------


def jitted(function: Callable[[Any], Any], x: np.ndarray) -> Step:
    """A step that calls ``jit(function)`` and waits for the result."""
    import jax

    call, value = jax.jit(function), jax.device_put(x)
    return lambda: call(value).block_until_ready()


def with_jaxccomp(operation: str, x: np.ndarray, rank: int, ranks: int) -> Step:
    """Operations of this package, one per jitted call."""
    import jaxccomp as jcc

    jcc.init()
    following, before = (rank + 1) % ranks, (rank - 1) % ranks
    functions = {
        "bcast": lambda v: jcc.bcast(v, root=0),
        "allreduce": lambda v: jcc.allreduce(v, op="sum"),
        "reduce": lambda v: jcc.reduce(v, op="sum", root=0),
        "reduce_scatter": lambda v: jcc.reduce_scatter(v, op="sum"),
        "allgather": jcc.allgather,
        "gather": lambda v: jcc.gather(v, root=0),
        "scatter": lambda v: jcc.scatter(v, root=0),
        "alltoall": jcc.alltoall,
        "sendrecv": lambda v: jcc.sendrecv(v, dest=following, source=before),
        "empty": lambda v: v + 1,
    }
    return jitted(functions[operation], x)


def with_empty(operation: str, x: np.ndarray, rank: int, ranks: int) -> Step:
    """A jitted call of x + 1: the overhead of JAX itself."""
    del operation, rank, ranks
    return jitted(lambda v: v + 1, x)


def with_memory(operation: str, x: np.ndarray, rank: int, ranks: int) -> Step:
    """The minimum of reads and writes of a rank, in its own memory.

    In a sum each rank adds its share of all operands, and copies the other ranks' sums.
    """
    operands = [x.reshape(-1).copy() for _ in range(ranks)]
    count = x.size // ranks
    root = rank == 0
    added = operation in ("allreduce", "reduce", "reduce_scatter")
    copied = {  # values copied from each operand
        "bcast": [0 if root else x.size],
        "allreduce": [x.size - count],
        "reduce": [x.size - count if root else 0],
        "allgather": [x.size] * ranks,
        "gather": [x.size if root else 0] * ranks,
        "scatter": [count],
        "alltoall": [x.size],
        "sendrecv": [x.size],
    }.get(operation, [])
    result = np.empty((ranks, x.size), x.dtype)

    def step() -> None:
        # Block by block, so that partial sums stay in the cache.
        for first in range(0, count if added else 0, _BLOCK):
            block = slice(first, min(first + _BLOCK, count))
            total = result[0, block]
            np.add(operands[0][block], operands[-1][block], out=total)
            for each in operands[1:-1]:
                np.add(total, each[block], out=total)
        for row, each, size in zip(result, operands, copied, strict=False):
            if size:
                np.copyto(row[-size:], each[-size:])

    return step


def with_mpi4py(
    operation: str, x: np.ndarray, rank: int, ranks: int, *, fresh: bool = False
) -> Step:
    """MPI on NumPy buffers: the lower bound. ``fresh``: results in new memory, like XLA's."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    shape = _result_shape(operation, x, ranks)
    following, before = (rank + 1) % ranks, (rank - 1) % ranks
    kept = np.empty(shape, x.dtype)

    def out() -> np.ndarray:
        return np.empty(shape, x.dtype) if fresh else kept

    def bcast() -> np.ndarray:
        result = x if rank == 0 else out()
        comm.Bcast(result, 0)
        return result

    def into(call: Callable[[np.ndarray, np.ndarray], None]) -> Step:
        def step() -> np.ndarray:
            result = out()
            call(x, result)
            return result

        return step

    steps = {
        "bcast": bcast,
        "allreduce": into(comm.Allreduce),
        "reduce": into(comm.Reduce),
        "reduce_scatter": into(comm.Reduce_scatter_block),
        "allgather": into(comm.Allgather),
        "gather": into(comm.Gather),
        "scatter": into(comm.Scatter),
        "alltoall": into(comm.Alltoall),
        "sendrecv": into(lambda a, b: comm.Sendrecv(a, following, 0, b, before, 0)),
    }
    return steps[operation]


def _result_shape(operation: str, x: np.ndarray, ranks: int) -> tuple[int, ...]:
    if operation in ("allgather", "gather"):
        return (ranks, *x.shape)
    return x.shape[1:] if operation in ("scatter", "reduce_scatter") else x.shape


def with_mpi4py_fresh(operation: str, x: np.ndarray, rank: int, ranks: int) -> Step:
    """``with_mpi4py`` with results in new memory."""
    return with_mpi4py(operation, x, rank, ranks, fresh=True)


def with_mpi4jax(operation: str, x: np.ndarray, rank: int, ranks: int) -> Step:
    """The operations of mpi4jax, one per jitted call."""
    import mpi4jax
    from mpi4py import MPI

    following, before = (rank + 1) % ranks, (rank - 1) % ranks
    functions = {
        "bcast": lambda v: mpi4jax.bcast(v, 0),
        "allreduce": lambda v: mpi4jax.allreduce(v, op=MPI.SUM),
        "reduce": lambda v: mpi4jax.reduce(v, MPI.SUM, 0),
        "allgather": mpi4jax.allgather,
        "gather": lambda v: mpi4jax.gather(v, 0),
        "scatter": lambda v: mpi4jax.scatter(v if rank == 0 else v[0], 0),
        "alltoall": mpi4jax.alltoall,
        "sendrecv": lambda v: mpi4jax.sendrecv(v, v, before, following),
    }

    def value_alone(v: Any) -> Any:
        # Older releases return (value, token).
        result = functions[operation](v)
        return result[0] if isinstance(result, (tuple, list)) else result

    return jitted(value_alone, x)


def with_lax(operation: str, x: np.ndarray, rank: int, ranks: int) -> Step:
    """Collectives of jax.lax over the processes of jax.distributed."""
    import jax
    import jax.numpy as jnp
    from jax import lax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices("cpu")), ("i",))
    sharding = NamedSharding(mesh, PartitionSpec("i"))
    ring = [(i, (i + 1) % ranks) for i in range(ranks)]

    def of_root(v: Any) -> Any:
        """Zero on all ranks except the root: a sum then broadcasts or scatters."""
        return jnp.where(lax.axis_index("i") == 0, v, 0)

    functions = {
        "bcast": lambda v: lax.psum(of_root(v), "i"),
        "allreduce": lambda v: lax.psum(v, "i"),
        "reduce": lambda v: lax.psum(v, "i"),
        "reduce_scatter": lambda v: lax.psum_scatter(v, "i"),
        "allgather": lambda v: lax.all_gather(v, "i"),
        "gather": lambda v: lax.all_gather(v, "i"),
        "scatter": lambda v: lax.psum_scatter(of_root(v), "i"),
        "alltoall": lambda v: lax.all_to_all(v, "i", 0, 0, tiled=True),
        "sendrecv": lambda v: lax.ppermute(v, "i", ring),
    }
    function = jax.shard_map(
        lambda v: functions[operation](v[0])[None],
        mesh=mesh,
        in_specs=PartitionSpec("i"),
        out_specs=PartitionSpec("i"),
    )
    call = jax.jit(function)
    value = jax.make_array_from_process_local_data(sharding, x[None], (ranks, *x.shape))

    return lambda: call(value).block_until_ready()


def join_distributed(implementation: str) -> Callable[[int, int], None]:
    """A start-up of jax.distributed with an implementation of the CPU collectives."""

    def start(rank: int, ranks: int) -> None:
        import jax

        jax.config.update("jax_cpu_collectives_implementation", implementation)
        jax.distributed.initialize(os.environ["JAXCCOMP_BENCH_COORDINATOR"], ranks, rank)

    return start


def join_with_jaxccomp(rank: int, ranks: int) -> None:
    """A start-up of jax.distributed with this package's library of XLA's collectives."""
    import jaxccomp  # noqa: F401  (connects the library with the engine)

    join_distributed("mpi")(rank, ranks)


def nothing(rank: int, ranks: int) -> None:
    """No start-up."""
    del rank, ranks


# name: (start-up, step)
CONTENDERS: dict[str, tuple[Callable[[int, int], None], Callable[..., Step]]] = {
    "jaxccomp": (nothing, with_jaxccomp),
    "jaxccomp-ucx": (nothing, with_jaxccomp),
    "empty": (nothing, with_empty),
    "memory": (nothing, with_memory),
    "mpi4py": (nothing, with_mpi4py),
    "mpi4py-fresh": (nothing, with_mpi4py_fresh),
    "mpi4jax": (nothing, with_mpi4jax),
    "mpi4jax-malloc": (nothing, with_mpi4jax),
    "jaxccomp-xla": (join_with_jaxccomp, with_lax),
    "jax-gloo": (join_distributed("gloo"), with_lax),
    "jax-mpi": (join_distributed("mpi"), with_lax),
}


def measure(make: Callable[..., Step], operation: str, size: int, rank: int, ranks: int) -> dict:
    """Checks and times one operation at one size."""
    row: dict[str, Any] = {"op": operation, "size_bytes": size, "rank": rank}
    step = make(operation, operand(operation, size, rank, ranks), rank, ranks)
    result, want = step(), expected(operation, size, rank, ranks)
    if result is not None and want is not None:
        if not isinstance(result, np.ndarray):
            result = np.asarray(result.addressable_data(0))
        if not np.array_equal(result.reshape(-1), want.reshape(-1)):
            return row | {"error": "wrong result"}
    return row | {"median_us": time_calls(step, repetitions(size))}


def main(contender: str, folder: str, *cases: str) -> None:
    """Measures the cases, each given as ``operation:bytes``."""
    rank, ranks = rank_and_size()
    start, make = CONTENDERS[contender]
    start(rank, ranks)
    with open(os.path.join(folder, f"{rank}.jsonl"), "w", encoding="utf-8") as file:
        for case in cases:
            operation, _, size = case.partition(":")
            print(json.dumps(measure(make, operation, int(size), rank, ranks)), file=file)
            file.flush()
    if contender == "jax-mpi":
        os._exit(0)  # JAX's MPI client aborts at the interpreter's exit


if __name__ == "__main__":
    main(*sys.argv[1:])
