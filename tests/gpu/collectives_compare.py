"""A rank of collectives.py: compares every collective on the device with NumPy and with the CPU.

Raw and with lossless codecs, results must have NumPy's bits for values whose sums are exact in any
order. For values of all magnitudes, moved values must have the bits of the CPU's raw result; so
must raw reductions, since the CPU's engine computes them for GPUs, too. With lossy codecs, results
must be within TOLERANCE of NumPy's.
"""

from __future__ import annotations

import functools
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np

import jaxccomp as jcc
from jaxccomp import codecs

CODECS = (None, "lossless", "int8:block=256", "int8|lossless", "bf16|lossless")
NVCOMP = ("nvcomp.ans", "nvcomp.lz4", "nvcomp.zstd", "bf16|nvcomp.ans")
DTYPES = ("float32", "bfloat16", "int32")
WITH_INTEGERS = (None, "lossless")
TOLERANCE = 0.1  # of the largest result
REDUCTIONS = ("sum", "max", "mean", "reduce", "reduce_scatter", "scan", "exscan", "feedback")
world = jcc.init()
ORDERED = world.ordered()
N, RANK = world.size, world.rank
ROOT = N - 1
ROWS = [rank + 1 for rank in range(N)]  # counts of the v-variants
TABLE = [[(i + j) % 3 for j in range(N)] for i in range(N)]


def operations(x, codec, *, is_integer):
    """All unordered collectives in one program, by name; ``x`` has a row for each rank."""
    how = {"codec": codec}
    one = x[0]
    results = {
        "bcast": jcc.bcast(one, root=ROOT, **how),
        "sum": jcc.allreduce(one, op="sum", **how),
        "max": jcc.allreduce(one, op="max", **how),
        "reduce": jcc.reduce(one, root=ROOT, op="sum", **how),
        "allgather": jcc.allgather(one, **how),
        "gather": jcc.gather(one, root=ROOT, **how),
        "scatter": jcc.scatter(x, root=ROOT, **how),
        "reduce_scatter": jcc.reduce_scatter(x, op="sum", **how),
        "alltoall": jcc.alltoall(x, **how),
        "scan": jcc.scan(one, op="sum", **how),
        "exscan": jcc.exscan(one, op="sum", **how),
    }
    if not is_integer:
        results["mean"] = jcc.allreduce(one, op="mean", **how)
        zeros = jnp.zeros_like(one)
        results["feedback"], _ = jcc.allreduce_with_feedback(one, zeros, op="sum", **how)
    return results


def in_program_order(x, codec):
    """The operations with an ordered effect, by name."""
    how = {"codec": codec}
    neighbours = {"dest": (RANK + 1) % N, "source": (RANK - 1) % N, "comm": ORDERED}
    rows = jnp.broadcast_to(x[0], (sum(ROWS), x.shape[1]))
    return {
        "barrier": jcc.barrier(x[0]),
        "sendrecv": jcc.sendrecv(x[0], **neighbours, **how),
        "allgatherv": jcc.allgatherv(rows[: ROWS[RANK]], ROWS, **how),
        "gatherv": jcc.gatherv(rows[: ROWS[RANK]], ROWS, root=ROOT, **how),
        "scatterv": jcc.scatterv(rows, ROWS, root=ROOT, **how),
        "alltoallv": jcc.alltoallv(
            jnp.broadcast_to(x[0], (sum(TABLE[RANK]), x.shape[1])), TABLE, **how
        ),
    }


def values(rank, count, dtype):
    """A rank's operand: values whose sums are exact in every order."""
    random = np.random.default_rng([rank, count, 0])
    drawn = random.integers(-16, 17, (N, count))
    return drawn.astype(jnp.dtype(dtype))


def rough(rank, count, dtype):
    """Values of many magnitudes, including zeros and subnormals."""
    random = np.random.default_rng([rank, count, 9])
    drawn = random.standard_normal((N, count)) * 10.0 ** random.integers(-40, 5, (N, count))
    return np.where(random.random((N, count)) < 0.1, 0, drawn).astype(jnp.dtype(dtype))


def expected(count, dtype):
    """NumPy's results for ``values``."""
    of = [values(rank, count, dtype) for rank in range(N)]
    ones = np.stack([each[0] for each in of]).astype(np.int64)
    zero = np.zeros(count)
    mean = ones.sum(0) / N
    return {
        "bcast": of[ROOT][0],
        "sum": ones.sum(0),
        "max": ones.max(0),
        "reduce": ones.sum(0) if RANK == ROOT else zero,
        "allgather": ones,
        "gather": ones if RANK == ROOT else np.zeros((N, count)),
        "scatter": of[ROOT][RANK],
        "reduce_scatter": sum(each[RANK].astype(np.int64) for each in of),
        "alltoall": np.stack([each[RANK] for each in of]),
        "scan": ones[: RANK + 1].sum(0),
        "exscan": ones[:RANK].sum(0),
        "sendrecv": ones[RANK - 1],
        "mean": mean.astype(jnp.dtype(dtype)) if dtype != "int32" else mean,
        "feedback": ones.sum(0),
        "barrier": of[RANK][0],
        "allgatherv": np.concatenate([np.stack([ones[r]] * ROWS[r]) for r in range(N)]),
        "gatherv": np.concatenate([np.stack([ones[r]] * ROWS[r]) for r in range(N)])
        * (RANK == ROOT),
        "scatterv": np.stack([ones[ROOT]] * ROWS[RANK]),
        "alltoallv": np.stack([ones[r] for r in range(N) for _ in range(TABLE[r][RANK])])
        if any(TABLE[r][RANK] for r in range(N))
        else np.zeros((0, count)),
    }


def run(function, device, operand):
    results = jax.block_until_ready(function(jax.device_put(operand, device)))
    assert all(device in each.devices() for each in jax.tree.leaves(results))
    return {name: np.asarray(each) for name, each in results.items()}


def programs(codec, dtype):
    return (
        jax.jit(functools.partial(operations, codec=codec, is_integer=dtype == "int32")),
        jax.jit(functools.partial(in_program_order, codec=codec)),
    )


def compare(codec, dtype, count, device, cpu):
    """The number of compared results, and the names of results that differ."""
    exact = codecs.is_lossless(codec)
    here, wrong, compared = programs(codec, dtype), [], 0
    x = values(RANK, count, dtype)
    numpy = expected(count, dtype)
    for program in here:
        for name, got in run(program, device, x).items():
            want = np.asarray(numpy[name], np.float64)
            most = 0.0 if exact else TOLERANCE * np.abs(want).max(initial=0.0)
            off = np.abs(got.astype(np.float64) - want).max(initial=0.0)
            compared += 1
            if got.shape != want.shape or not off <= most:  # false for NaN
                wrong.append(f"numpy {name}")
    if exact:
        x, there = rough(RANK, count, dtype), programs(None, dtype)
        for program, same in zip(here, there, strict=True):
            on_cpu, on_device = run(same, cpu, x), run(program, device, x)
            names = [name for name in on_cpu if codec is None or name not in REDUCTIONS]
            compared += len(names)
            wrong += [
                f"rough {name}"
                for name in names
                if on_cpu[name].tobytes() != on_device[name].tobytes()
            ]
    return compared, wrong


def main(platform, counts):
    device, cpu = jax.local_devices(backend=platform)[0], jax.local_devices(backend="cpu")[0]
    failed = False
    for codec in CODECS + NVCOMP:
        by_nvcomp = codec in NVCOMP
        if by_nvcomp and (why := codecs.table()[codec.rpartition("|")[2]].missing):
            if RANK == 0:
                print(json.dumps({"codec": codec, "not_run": why}), flush=True)
            continue
        for dtype in DTYPES if codec in WITH_INTEGERS else DTYPES[:2]:
            for count in map(int, counts.split(",")):
                compared, wrong = compare(codec, dtype, count, device, cpu)
                row = {"ranks": N, "codec": codec or "raw", "dtype": dtype}
                row |= {"count": count, "compared": compared}
                if wrong:
                    row |= {"rank": RANK, "different": wrong}
                if wrong or RANK == 0:
                    print(json.dumps(row), flush=True)
                failed |= bool(wrong)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
