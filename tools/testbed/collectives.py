"""Times collectives of large values between the hosts of a testbed; run on each of its ranks.

    python -m testbed --hosts 4 --link 1gbit -- \
        python tools/testbed/collectives.py jaxccomp --op bcast --codec lossless

A separate script, since some environments have an MPI and no jaxccomp. Each call starts after a
barrier; the time of a call is the slowest rank's. Rank 0 prints a line of JSON. --bytes is the size
of a rank's input (bcast: of the root's).
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

# When run as a script, tools is not on the path.
sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from bench import worker  # noqa: E402

OPERATIONS = ("bcast", "allreduce", "reduce_scatter", "allgather", "alltoall")
SUMS = ("allreduce", "reduce_scatter")

Step = Callable[[], Any]
Make = Callable[[int], np.ndarray]  # returns a rank's operand


def values(source: str, dtype: str, size: int, rank: int, ranks: int) -> np.ndarray:
    """The input of ``rank``: ``size`` bytes of ``source``, from a different offset on each rank.

    Args:
      source: "random" (Gaussian, like weights) or a .npy file, repeated as often as needed; uint16
        values are the bits of bfloat16.
      dtype: dtype of random values, "float32" or "bfloat16".
      size: bytes.
      rank: the rank.
      ranks: number of ranks.
    """
    if source == "random":
        whole = np.random.default_rng(0).normal(0, 0.02, max(size // 4, 1)).astype(np.float32)
        if dtype == "bfloat16":
            whole = _bits_of_bfloat16(np.concatenate([whole, -whole[::-1]]))
    else:
        whole = np.load(source, allow_pickle=False).reshape(-1)
    # Equal blocks for all ranks, also when pairs of bfloat16 are viewed as float32.
    count = max(size // whole.itemsize // (2 * ranks), 1) * 2 * ranks
    return np.resize(np.roll(whole, -rank * (len(whole) // ranks)), count)


def _bits_of_bfloat16(x: np.ndarray) -> np.ndarray:
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def _as_float(x: np.ndarray) -> np.ndarray:
    """Converts bits of bfloat16 (uint16) to float32; returns other dtypes unchanged."""
    return (x.astype(np.uint32) << 16).view(np.float32) if x.dtype == np.uint16 else x


def expected(operation: str, make: Make, rank: int, ranks: int) -> Any:
    """The operation's result on ``rank``, flat; ``make(rank)`` returns a rank's input."""
    if operation == "bcast":
        return make(0)
    if operation == "allgather":
        return np.concatenate([make(r) for r in range(ranks)])
    if operation == "alltoall":
        return np.concatenate([make(r).reshape(ranks, -1)[rank] for r in range(ranks)])
    total = _as_float(make(0)).copy()
    for r in range(1, ranks):
        total += _as_float(make(r))
    return total.reshape(ranks, -1)[rank] if operation == "reduce_scatter" else total


def with_mpi(comm: Any, x: np.ndarray, ref: Any, given: argparse.Namespace) -> Step:
    """The MPI library's own collectives, on reused buffers."""
    del ref
    rows = x.reshape(comm.Get_size(), -1) if given.op in worker.OF_ROWS else x
    return worker.with_mpi4py(given.op, rows, comm.Get_rank(), comm.Get_size())


def with_mpi4jax(comm: Any, x: np.ndarray, ref: Any, given: argparse.Namespace) -> Step:
    """mpi4jax, one operation per jitted call."""
    del ref
    rows = x.reshape(comm.Get_size(), -1) if given.op in worker.OF_ROWS else x
    return worker.with_mpi4jax(given.op, rows, comm.Get_rank(), comm.Get_size())


def with_jaxccomp(comm: Any, x: np.ndarray, ref: Any, given: argparse.Namespace) -> Step:
    """This package."""
    from testbed import own

    del comm
    return own.step(given.op, x, ref, given)


def wire_bytes() -> int:
    """The larger of the bytes sent and received over this host's link; 0 without a link."""
    with open("/proc/self/net/dev", encoding="ascii") as file:
        for line in file:
            name, _, counters = line.partition(":")
            if name.strip() == "eth0":
                fields = counters.split()
                return max(int(fields[0]), int(fields[8]))
    return 0


def measure(comm: Any, step: Step, warmups: int, calls: int) -> dict[str, Any]:
    """Times calls: the slowest rank's seconds of each, and bytes over the busiest link.

    The first ``warmups`` calls are not timed: first touches of memory may take several times as
    long as the operation.
    """
    from mpi4py import MPI

    for _ in range(warmups):
        comm.Barrier()
        step()
    seconds, sent = [], []
    for _ in range(calls):
        comm.Barrier()
        before, start = wire_bytes(), time.perf_counter()
        step()
        took = time.perf_counter() - start
        # All bytes have arrived when all ranks are done.
        comm.Barrier()
        count = wire_bytes() - before
        seconds.append(comm.allreduce(took, MPI.MAX))
        sent.append(comm.allreduce(count, MPI.MAX))
    return {
        "seconds": statistics.median(seconds),
        "each_seconds": [round(each, 5) for each in seconds],
        "wire_bytes": round(statistics.median(sent)),
    }


def check(comm: Any, given: argparse.Namespace, result: Any, make: Make) -> dict[str, Any]:
    """Compares a peer's result with NumPy's."""
    result = np.asarray(result).reshape(-1)
    want = expected(given.op, make, comm.Get_rank(), comm.Get_size())
    if given.op in SUMS:
        good = np.allclose(result, want, rtol=1e-5, atol=1e-6)
    else:
        good = np.array_equal(result, want)
    found = {"check": "rounding" if given.op in SUMS else "bit-exact"}
    return found if all(comm.allgather(good)) else {"error": "wrong values"}


def check_jaxccomp(comm: Any, given: argparse.Namespace, result: Any, make: Make) -> dict[str, Any]:
    """Compares a result with NumPy's within the codec's error bound; adds the memory it used."""
    from testbed import own

    found = own.check(comm, given.op, result, make, expected, given.codec, given.algorithm)
    return found | own.memory(comm, given.op)


def coding(comm: Any, x: np.ndarray, ref: np.ndarray, codec: str) -> dict[str, float]:
    """A lower bound for the seconds of encoding and decoding, for codecs of this package."""
    from testbed import own

    if codec == own.INDEX_VALUE_ZSTD:
        return {}
    return {"coding_seconds": round(own.coding_seconds(comm, x, ref, codec), 5)}


def timelines(comm: Any, step: Step) -> dict[str, str]:
    """Makes one more call and draws its tasks: a picture for each rank, and one for all.

    Each rank's times start at a barrier.
    """
    from testbed import own

    comm.Barrier()
    each = comm.allgather(own.timeline(step))
    shown = {f"rank {rank}": str(line) for rank, line in enumerate(each)}
    return shown | {"all ranks": str(own.together(each))}


# name: (function that makes a step, function that checks its result)
CONTENDERS = {
    "mpi": (with_mpi, check),
    "mpi4jax": (with_mpi4jax, check),
    "jaxccomp": (with_jaxccomp, check_jaxccomp),
}


def run(comm: Any, given: argparse.Namespace) -> dict[str, Any]:
    """Checks and times one operation.

    Returns:
      A line of results, with "error" when a result is wrong.
    """
    rank, ranks = comm.Get_rank(), comm.Get_size()
    start, examine = CONTENDERS[given.contender]

    def make(of: int) -> np.ndarray:
        return values(given.input, given.dtype, given.bytes, of, ranks)

    x = make(rank)
    # No MPI adds bfloat16 portably: a peer sums the same bytes viewed as float32 instead.
    as_words = given.contender != "jaxccomp" and given.op in SUMS and x.dtype == np.uint16
    ref = values(given.ref, given.dtype, given.bytes, 0, ranks) if given.ref else None
    step = start(comm, x.view(np.float32) if as_words else x, ref, given)
    row = {"op": given.op, "size": x.nbytes, "contender": given.contender, "hosts": ranks}
    result = step()
    if given.check and not as_words:
        row |= examine(comm, given, result, make)
    del result
    if "error" in row:
        return row
    row |= measure(comm, step, given.warmups, given.calls)
    if given.coding and ref is not None:
        row |= coding(comm, x, ref, given.codec)
    if given.timeline:
        row["timelines"] = timelines(comm, step)
    return row


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Times collectives of large values.")
    add = parser.add_argument
    add("contender", choices=CONTENDERS)
    add("--op", default="bcast", choices=OPERATIONS, help="default: %(default)s")
    add("--bytes", type=int, default=64 << 20, help="default: %(default)s")
    add("--calls", type=int, default=3, help="timed calls (default: %(default)s)")
    add("--warmups", type=int, default=6, help="untimed calls before (default: %(default)s)")
    add("--codec", default="raw", help="jaxccomp's codec (default: %(default)s)")
    add("--algorithm", default="auto", help="jaxccomp's algorithm (default: %(default)s)")
    add("--input", default="random", metavar="random|FILE.npy")
    add("--ref", default="", metavar="FILE.npy", help="the delta base of a bcast, on all ranks")
    add("--dtype", default="float32", choices=("float32", "bfloat16"), help="of random values")
    add("--check", action="store_true", help="first compare a result with NumPy's")
    add("--coding", action="store_true", help="also report the minimum coding time, with --ref")
    add("--timeline", action="store_true", help="also show the tasks of a call (jaxccomp only)")
    add("--out", metavar="FILE", help="also write the line there")
    given = parser.parse_args()
    if given.timeline and given.contender != "jaxccomp":
        parser.error(f"--timeline shows tasks of jaxccomp; {given.contender} has none")

    from mpi4py import MPI

    row = run(MPI.COMM_WORLD, given)
    if MPI.COMM_WORLD.Get_rank() == 0:
        for name, picture in row.pop("timelines", {}).items():
            print(f"{name}: {picture}")
        print(json.dumps(row), flush=True)
        if given.out:
            with open(given.out, "w", encoding="utf-8") as file:
                print(json.dumps(row), file=file)


if __name__ == "__main__":
    main()
