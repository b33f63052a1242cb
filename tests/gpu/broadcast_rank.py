"""A rank of broadcast.py: seconds of a broadcast, its overlap, and the time it blocks the host.

    broadcast_rank.py DEVICE MIB LINK SECONDS

Rank 0 prints a line for each row of CASES. `seconds` is the median over rounds, each from a barrier
to the end of the slowest rank. `dispatch_us` is how long the call blocked the host's thread, and
`held` its fraction of the whole, both of the rank that was blocked longest: on a GPU the stage
blocks a thread until the operation is over. `both_seconds` is the time of the broadcast and,
dispatched right after it, of independent matrix products on the main stream, which alone take as
long as the broadcast. `overlap` is the fraction of the shorter one that the longer one hid. `trace`
has for each rank the time that its wire was busy in one call.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from mpi4py import MPI
from timing import Timed, overlap, products, timed

import jaxccomp as jcc
from jaxccomp._native import platforms

world = jcc.init()
ROUNDS = 3


@dataclasses.dataclass(frozen=True)
class Case:
    """A codec of the broadcast."""

    name: str
    codec: str | None


CASES = (
    Case("raw", None),
    Case("lossless", "lossless"),
    Case("nvcomp.ans", "nvcomp.ans"),
)


def values(mib: int) -> np.ndarray:
    """The root's values, like trained weights; every rank makes them, to check its result."""
    block = np.random.default_rng(0).normal(0, 0.02, 1 << 20).astype(np.float32)
    # Repeated every 2 MiB, which is too far apart for these codecs to exploit.
    return np.resize(block.astype(ml_dtypes.bfloat16), mib << 19)


def why_not(case: Case, device: str) -> str:
    """Why a case cannot run; empty if it can. The same on all ranks."""
    if device == "cpu":
        missing = "a codec of GPUs" if (case.codec or "").startswith("nvcomp") else ""
    elif case.codec is None or platforms.cuda_runs(case.codec, "bfloat16"):
        missing = ""
    else:
        missing = f"the engine has no {case.codec} on this GPU (nvCOMP is not found)"
    return next(filter(None, MPI.COMM_WORLD.allgather(missing)), "")


def sized(w: jax.Array, seconds: float) -> tuple[int, Timed]:
    """The number of products that take about ``seconds``, and their measured time."""
    program = jax.jit(products)
    few = timed(program, w, jnp.int32(50), rounds=1)
    count = max(int(50 * seconds / few.seconds), 1)
    count = MPI.COMM_WORLD.bcast(count)
    return count, timed(program, w, jnp.int32(count), rounds=1, warmups=1)


def spans(function, x: jax.Array) -> dict:
    """Seconds of one call: of its messages, of the whole, and of blocking the host's thread."""
    MPI.COMM_WORLD.Barrier()
    with jcc.trace.record() as timeline:
        start = time.perf_counter()
        result = function(x)
        held = time.perf_counter() - start
        jax.block_until_ready(result)
        whole = time.perf_counter() - start
    return {
        "wire_seconds": round(timeline.busy(("send", "recv")), 4),
        "call_seconds": round(whole, 4),
        "held_seconds": round(held, 6),
    }


def measure(case: Case, x: jax.Array, w: jax.Array, want: np.ndarray) -> dict:
    """Checks and times one case; returns its line."""
    function = jax.jit(lambda v: jcc.bcast(v, codec=case.codec))
    got = np.asarray(function(x)).view(np.uint16)
    equal = MPI.COMM_WORLD.allgather(bool(np.array_equal(got, want.view(np.uint16))))
    del got
    row = {"name": case.name, "ranks": world.size, "codec": case.codec or "raw"}
    row |= {"mib": want.nbytes >> 20}
    if not all(equal):
        wrong = [rank for rank, each in enumerate(equal) if not each]
        return row | {"wrong": f"ranks {wrong} have other values than the root"}
    alone = timed(function, x, rounds=ROUNDS, warmups=1)
    held = MPI.COMM_WORLD.allreduce(alone.held, MPI.MAX)
    count, computed = sized(w, alone.seconds)
    program = jax.jit(products)
    both = timed(lambda v: (function(v), program(w, jnp.int32(count))), x, rounds=1, warmups=1)
    return row | {
        "seconds": round(alone.seconds, 5),
        "bytes_per_second": round(want.nbytes / alone.seconds),
        "dispatch_us": round(held * 1e6, 1),
        "held": round(held / alone.seconds, 4),
        "computed_seconds": round(computed.seconds, 5),
        "both_seconds": round(both.seconds, 5),
        "overlap": overlap(alone.seconds, computed.seconds, both.seconds),
        "trace": MPI.COMM_WORLD.allgather(spans(function, x)),
    }


def main(platform: str, mib: str, link: str, seconds: str) -> int:
    """Runs the cases; returns 1 when a value is wrong."""
    start, worst, longest = time.monotonic(), 0, 0.0
    jcc.config.set("timeout_seconds", 120)
    device = jax.local_devices(backend=platform)[0]
    want = values(int(mib))
    mine = want if world.rank == 0 else np.zeros_like(want)
    x = jax.device_put(mine, device)
    side = 256 if platform == "cpu" else 4096
    w = jax.device_put(
        np.random.default_rng(1).standard_normal((side, side), np.float32) / side, device
    )
    for case in CASES:
        began = time.monotonic()
        left = MPI.COMM_WORLD.bcast(float(seconds) - (began - start))
        why = why_not(case, platform)
        if not why and left < longest:
            why = f"{max(left, 0):.0f} s were left, and the cases before took up to {longest:.0f}"
        row = {"not_run": case.name, "reason": why} if why else measure(case, x, w, want)
        row |= {"link": link}
        longest = MPI.COMM_WORLD.bcast(max(longest, time.monotonic() - began))
        worst |= "wrong" in row
        if world.rank == 0:
            print(json.dumps(row), flush=True)
    return worst


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
