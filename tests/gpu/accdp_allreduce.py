"""A rank of accdp.py: times allreduces of ranks that share a GPU, by codec and algorithm.

    python accdp_allreduce.py --mib 4,64 [--seconds S]

Rank 0 prints a JSON object per size, codec and algorithm: the seconds of the slowest rank, the
bytes sent by rank 0, and the largest error of the sum.
"""

from __future__ import annotations

import argparse
import json
import time

import jax
import jax.numpy as jnp
import timing

import jaxccomp as jcc

# Codec and algorithm. On GPUs reductions with a codec are composed, and have no algorithm.
WAYS = (
    (None, "two_shot"),
    (None, "ring"),
    (None, "auto"),
    ("lossless", "auto"),
    ("int8", "auto"),
)
MIB = 1 << 20


def noise(rank: int, count: int) -> jax.Array:
    """A rank's values: normal, so that codecs need as much time and space as for gradients."""
    return jax.random.normal(jax.random.key(rank), (count,))


def measure(algorithm: str, codec: str | None, x: jax.Array, wanted: jax.Array) -> dict:
    """Checks and times one case; returns its line."""
    call = jax.jit(lambda x: jcc.allreduce(x, codec=codec, algorithm=algorithm))
    worst = float(jnp.max(jnp.abs(call(x) - wanted)))
    jcc.stats.reset()
    took = timing.timed(call, x, warmups=1)
    counted = jcc.stats.get().total
    calls = timing.ROUNDS + 1  # including the warm-up
    return {
        "algorithm": algorithm,
        "codec": codec or "none",
        "mib": round(x.nbytes / MIB, 2),
        "ranks": jcc.world().size,
        "seconds": round(took.seconds, 6),
        "gb_per_second": round(x.nbytes / took.seconds / 1e9, 3),
        "sent_by_rank_0": counted.sent_bytes // calls,
        "worst_error": worst,
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", default="4,64", help="of each rank (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=30.0, help="when to begin no more")
    asked = parser.parse_args()
    world, start = jcc.init(), time.perf_counter()
    for mib in map(float, asked.mib.split(",")):
        count = int(mib * MIB) // 4
        x = noise(world.rank, count)
        wanted = sum(noise(rank, count) for rank in range(world.size))
        for codec, algorithm in WAYS:
            late = jnp.int32(time.perf_counter() - start > asked.seconds)
            if int(jcc.allreduce(late, "max")):  # the same on all ranks
                row = {"not_run": f"{algorithm} {codec or 'none'} {mib:g} MiB"}
                row["reason"] = f"{asked.seconds:.0f} s were over"
            else:
                row = measure(algorithm, codec, x, wanted)
            if world.rank == 0:
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
