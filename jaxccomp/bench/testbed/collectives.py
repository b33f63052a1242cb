"""Times collectives of large values between the hosts of a testbed; run on each of its ranks.

    python -m jaxccomp.bench.testbed --hosts 4 --link 1gbit -- \
        python -m jaxccomp.bench.testbed.collectives jaxccomp --ops bcast --codec lossless

Also a script of its own, for environments that have an MPI and no jaxccomp. Each call starts after
a barrier, and what it takes is what it takes on the slowest rank. Rank 0 prints a line of JSON per
operation. What a size means: the bytes that a rank passes in (for bcast, of the value).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

OPERATIONS = ("bcast", "allreduce", "allgather", "alltoall")
CONTENDERS = ("mpi", "jaxccomp")
EXACT = ("none", "raw", "lossless", "zstd", "lz4")

Step = Callable[[], Any]


def values(source: str, dtype: str, size: int, rank: int, ranks: int) -> np.ndarray:
    """What ``rank`` passes in: ``size`` bytes of ``source``, begun elsewhere by each rank.

    Args:
      source: "random" (Gaussian, as weights are) or a .npy file, repeated as often as needed; one
        named ``*bfloat16.npy`` has the bits as uint16.
      dtype: "float32" or "bfloat16", of random values.
      size: bytes.
      rank: whose.
      ranks: of how many.
    """
    if source == "random":
        whole = np.random.default_rng(0).normal(0, 0.02, max(size // 4, 1)).astype(np.float32)
        if dtype == "bfloat16":
            whole = _bits_of_bfloat16(np.concatenate([whole, -whole[::-1]]))
    else:
        whole = np.load(source, allow_pickle=False).reshape(-1)
        dtype = "bfloat16" if whole.dtype == np.uint16 else str(whole.dtype)
    count = max(size // whole.itemsize // ranks, 1) * ranks
    return np.resize(np.roll(whole, -rank * (len(whole) // ranks)), count)


def _bits_of_bfloat16(x: np.ndarray) -> np.ndarray:
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def _as_float(x: np.ndarray) -> np.ndarray:
    """Values of bits of bfloat16; others as they are."""
    return (x.astype(np.uint32) << 16).view(np.float32) if x.dtype == np.uint16 else x


def expected(operation: str, make: Callable[[int], np.ndarray], rank: int, ranks: int) -> Any:
    """What the operation gives on ``rank``, flat; ``make(rank)`` are a rank's values."""
    if operation == "bcast":
        return make(0)
    if operation == "allgather":
        return np.concatenate([make(r) for r in range(ranks)])
    if operation == "alltoall":
        return np.concatenate([make(r).reshape(ranks, -1)[rank] for r in range(ranks)])
    total = _as_float(make(0)).copy()
    for r in range(1, ranks):
        total += _as_float(make(r))
    return total


def with_mpi(comm: Any, operation: str, x: np.ndarray, _: argparse.Namespace) -> Step:
    """The MPI library itself, on buffers that are kept."""
    rank, ranks = comm.Get_rank(), comm.Get_size()
    # No MPI adds bfloat16 portably: as many bytes of float32 are the next best.
    x = x.view(np.float32) if x.dtype == np.uint16 and operation == "allreduce" else x
    out = np.empty(x.size * (ranks if operation == "allgather" else 1), x.dtype)
    calls = {
        "bcast": lambda: comm.Bcast(x if rank == 0 else out, 0),
        "allreduce": lambda: comm.Allreduce(x, out),
        "allgather": lambda: comm.Allgather(x, out),
        "alltoall": lambda: comm.Alltoall(x, out),
    }

    def step() -> np.ndarray:
        calls[operation]()
        return x if operation == "bcast" and rank == 0 else out

    return step


def with_jaxccomp(comm: Any, operation: str, x: np.ndarray, given: argparse.Namespace) -> Step:
    """Operations of this package, one per jitted call."""
    import jax
    import ml_dtypes

    import jaxccomp as jcc

    jcc.init()
    options = {
        "codec": None if given.codec == "none" else given.codec,
        "algorithm": given.algorithm,
    }
    functions = {
        "bcast": lambda v: jcc.bcast(v, root=0, **options),
        "allreduce": lambda v: jcc.allreduce(v, op="sum", **options),
        "allgather": lambda v: jcc.allgather(v, **options),
        "alltoall": lambda v: jcc.alltoall(v, **options),
    }
    x = x.view(ml_dtypes.bfloat16) if x.dtype == np.uint16 else x
    x = x.reshape(comm.Get_size(), -1) if operation == "alltoall" else x
    call, value = jax.jit(functions[operation]), jax.device_put(x)
    return lambda: call(value).block_until_ready()


def wire_bytes() -> int:
    """The larger of what this host's link has sent and received so far; 0 without one."""
    with open("/proc/self/net/dev", encoding="ascii") as file:
        for line in file:
            name, _, counters = line.partition(":")
            if name.strip() == "eth0":
                fields = counters.split()
                return max(int(fields[0]), int(fields[8]))
    return 0


def measure(comm: Any, step: Step, calls: int) -> dict[str, Any]:
    """Times calls: the slowest rank's seconds of each, and bytes over the busiest link."""
    from mpi4py import MPI

    seconds, sent = [], []
    for _ in range(calls):
        comm.Barrier()
        before, start = wire_bytes(), time.perf_counter()
        step()
        took = time.perf_counter() - start
        # Everybody's bytes have arrived only when everybody is done.
        comm.Barrier()
        count = wire_bytes() - before
        seconds.append(comm.allreduce(took, MPI.MAX))
        sent.append(comm.allreduce(count, MPI.MAX))
    return {
        "seconds": statistics.median(seconds),
        "each_seconds": [round(each, 5) for each in seconds],
        "wire_bytes": round(statistics.median(sent)),
    }


def wrong(given: argparse.Namespace, operation: str, result: Any, want: np.ndarray) -> str:
    """What is wrong with a result; "" when nothing is."""
    result = np.asarray(result).reshape(-1)
    if result.dtype.itemsize == 2:
        result = result.view(np.uint16)
    codec = given.codec.partition(":")[0] if given.contender == "jaxccomp" else "none"
    if codec not in EXACT:
        return "" if np.isfinite(_as_float(result)).all() else "not all values are finite"
    if operation != "allreduce":
        return "" if np.array_equal(result, want) else "wrong values"
    tolerance = 1e-2 if result.dtype == np.uint16 else 1e-5
    close = np.allclose(_as_float(result), want, rtol=tolerance, atol=tolerance * 0.1)
    return "" if close else "wrong sums"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Times collectives of large values.")
    parser.add_argument("contender", choices=CONTENDERS)
    parser.add_argument("--ops", default="bcast,allreduce,alltoall", help="default: %(default)s")
    parser.add_argument("--bytes", type=int, default=64 << 20, help="default: %(default)s")
    parser.add_argument("--calls", type=int, default=3, help="timed ones (default: %(default)s)")
    parser.add_argument("--codec", default="none", help="of jaxccomp (default: %(default)s)")
    parser.add_argument("--algorithm", default="auto", help="of jaxccomp (default: %(default)s)")
    parser.add_argument("--input", default="random", metavar="random|FILE.npy")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--out", metavar="FILE", help="append the lines there, too")
    given = parser.parse_args()

    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    rank, ranks = comm.Get_rank(), comm.Get_size()

    def make(of: int) -> np.ndarray:
        return values(given.input, given.dtype, given.bytes, of, ranks)

    contender = {"mpi": with_mpi, "jaxccomp": with_jaxccomp}[given.contender]
    for operation in given.ops.split(","):
        x = make(rank)
        step = contender(comm, operation, x, given)
        row = {"op": operation, "size": x.nbytes, "contender": given.contender, "hosts": ranks}
        result = step()
        faults = ""
        if not (given.contender == "mpi" and operation == "allreduce" and x.dtype == np.uint16):
            faults = wrong(given, operation, result, expected(operation, make, rank, ranks))
        del result
        faults = [each for each in comm.allgather(faults) if each]
        row |= {"error": faults[0]} if faults else measure(comm, step, given.calls)
        if rank == 0:
            print(json.dumps(row), flush=True)
            if given.out:
                with open(given.out, "a", encoding="utf-8") as file:
                    print(json.dumps(row), file=file)


if __name__ == "__main__":
    main()
