"""A rank of collectives.py: seconds of bcast and allreduce, overlap with computation, dispatch.

Seconds are medians over rounds, each from a barrier to the end of the slowest rank. `both` runs the
collective and independent matrix products in one program; `overlap` is the fraction of the shorter
one that the longer one hid. `dispatch_us` is how long the call blocked the host's thread.
`sent_mib` counts the data that this rank sends per call.
"""

from __future__ import annotations

import json
import sys

import jax
import numpy as np
from timing import ROUNDS, overlap, products, timed

import jaxccomp as jcc

CODECS = (None, "lossless", "int8:block=256", "bf16|lossless")
world = jcc.init()
COLLECTIVES = {
    "bcast": lambda x, codec: jcc.bcast(x, codec=codec),
    "allreduce": lambda x, codec: jcc.allreduce(x, codec=codec),
}


def measure(name, codec, x, w):
    """Times one case; returns its line."""
    collective = COLLECTIVES[name]
    jcc.stats.reset()
    alone, held = timed(jax.jit(lambda x: collective(x, codec)), x)
    sent_bytes = jcc.stats.get().total.sent_bytes / (ROUNDS + 2)  # including two warm-ups
    computed, _ = timed(jax.jit(products), w)
    mib = x.nbytes >> 20
    both, _ = timed(jax.jit(lambda x, w: (collective(x, codec), products(w))), x, w)
    return {
        "ranks": world.size,
        "op": name,
        "codec": codec or "raw",
        "mib": mib,
        "seconds": round(alone, 6),
        "gib_per_s": round(mib / 1024 / alone, 3),
        "dispatch_us": round(held * 1e6, 1),
        "sent_mib": round(sent_bytes / 2**20, 3),
        "computed_seconds": round(computed, 6),
        "both_seconds": round(both, 6),
        "overlap": overlap(alone, computed, both),
    }


def main(platform, sizes):
    device = jax.local_devices(backend=platform)[0]
    random = np.random.default_rng(world.rank)
    side = 256 if platform == "cpu" else 4096
    w = jax.device_put(random.standard_normal((side, side), np.float32) / side, device)
    for mib in map(int, sizes.split(",")):
        # Like trained weights.
        x = jax.device_put(random.standard_normal(mib << 18, np.float32) * np.float32(0.02), device)
        for name in COLLECTIVES:
            for codec in CODECS:
                row = measure(name, codec, x, w)
                if world.rank == 0:
                    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
