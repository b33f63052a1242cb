"""A rank of collectives.py: every collective on the device, bit for bit what it gives on the CPU.

Both are run by the engine, with the same operands; where nothing is lost the CPU's results are
compared with NumPy's, too. nvCOMP's codecs run on GPUs only: `lossless` gives what they should.
"""

from __future__ import annotations

import functools
import json
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np

import jaxccomp as jcc
from jaxccomp import codecs, comm

LOSSY = ("int8:block=256",)
CODECS = (None, "lossless", "int8:block=256", "bf16|lossless")
NVCOMP = ("nvcomp.ans", "nvcomp.lz4", "nvcomp.zstd", "bf16|nvcomp.ans")
DTYPES = ("float32", "bfloat16", "int32")
COUNTS = (1, 1003, 300_000)
world = jcc.init()
N, RANK = world.size, world.rank
ROOT = N - 1
ROWS = [rank + 1 for rank in range(N)]  # of the v-variants
TABLE = [[(i + j) % 3 for j in range(N)] for i in range(N)]


def operations(x, ref, codec, *, is_integer):
    """All collectives in one program, by name; ``x`` has a row for each rank."""
    how = {"codec": codec}
    one = x[0]
    results = {
        "bcast": jcc.bcast(one, root=ROOT, **how),
        "sum": jcc.allreduce(one, **how),
        "max": jcc.allreduce(one, op="max", **how),
        "reduce": jcc.reduce(one, root=ROOT, **how),
        "allgather": jcc.allgather(one, **how),
        "gather": jcc.gather(one, root=ROOT, **how),
        "scatter": jcc.scatter(x, root=ROOT, **how),
        "reduce_scatter": jcc.reduce_scatter(x, **how),
        "alltoall": jcc.alltoall(x, **how),
        "scan": jcc.scan(one, **how),
        "exscan": jcc.exscan(one, **how),
        "sendrecv": jcc.sendrecv(one, dest=(RANK + 1) % N, source=(RANK - 1) % N, **how),
    }
    if not is_integer:
        results["mean"] = jcc.allreduce(one, op="mean", **how)
    if codec is not None:
        results["ref"] = jcc.bcast(one, root=ROOT, ref=ref[0], **how)
        if not is_integer:
            # XLA adds the residual, and flushes subnormals on the CPU alone.
            normal = jnp.where(jnp.abs(one) < 1e-30, 0, one)
            results["feedback"], results["lost"] = jcc.allreduce_with_feedback(
                normal, ref[0], **how
            )
    return results


def in_program_order(x, codec):
    """Those that carry an ordered effect."""
    how = {"codec": codec}
    rows = jnp.broadcast_to(x[0], (sum(ROWS), x.shape[1]))
    return {
        "barrier": jcc.barrier(x[0]),
        "allgatherv": jcc.allgatherv(rows[: ROWS[RANK]], ROWS, **how),
        "gatherv": jcc.gatherv(rows[: ROWS[RANK]], ROWS, root=ROOT, **how),
        "scatterv": jcc.scatterv(rows, ROWS, root=ROOT, **how),
        "alltoallv": jcc.alltoallv(
            jnp.broadcast_to(x[0], (sum(TABLE[RANK]), x.shape[1])), TABLE, **how
        ),
    }


def values(rank, count, dtype, seed=0):
    """A rank's operand: values whose sums are exact in every order."""
    random = np.random.default_rng([rank, count, seed])
    drawn = random.integers(-16, 17, (N, count))
    return drawn.astype(jnp.dtype(dtype))


def rough(rank, count, dtype):
    """Values that lose something in every codec: of many magnitudes, zeros and subnormals too."""
    random = np.random.default_rng([rank, count, 9])
    drawn = random.standard_normal((N, count)) * 10.0 ** random.integers(-40, 5, (N, count))
    return np.where(random.random((N, count)) < 0.1, 0, drawn).astype(jnp.dtype(dtype))


def expected(count, dtype):
    """NumPy's results for ``values``."""
    of = [values(rank, count, dtype) for rank in range(N)]
    ones = np.stack([each[0] for each in of]).astype(np.int64)
    zero = np.zeros(count)
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
    }


def run(function, device, *operands):
    placed = [jax.device_put(each, device) for each in operands]
    results = jax.block_until_ready(function(*placed))
    assert all(device in each.devices() for each in jax.tree.leaves(results))
    jcc.check()
    return {name: np.asarray(each) for name, each in results.items()}


def different(one, other):
    """Names of results that are not the same, bit for bit."""
    return [name for name in one if one[name].tobytes() != other[name].tobytes()]


def programs(codec, dtype):
    return (
        jax.jit(functools.partial(operations, codec=codec, is_integer=dtype == "int32")),
        jax.jit(functools.partial(in_program_order, codec=codec)),
    )


def compare(codec, dtype, count, device, cpu):
    """One line: the case, how many results were compared, and which differ."""
    ref = values(0, count, dtype, seed=1)
    here = programs(codec, dtype)
    there = programs(codec and re.sub(r"nvcomp\.\w+", "lossless", codec), dtype)
    wrong, compared = [], 0
    for kind, operand in (("exact", values), ("rough", rough)):
        x = operand(RANK, count, dtype)
        for which, operands in enumerate(((x, ref), (x,))):
            on_cpu = run(there[which], cpu, *operands)
            on_device = run(here[which], device, *operands)
            wrong += [f"{kind} {name}" for name in different(on_cpu, on_device)]
            compared += len(on_cpu)
            exact = kind == "exact" and "|" not in (codec or "") and codec not in LOSSY
            if exact and len(operands) == 2:
                numpy = expected(count, dtype)
                seen = {name: on_device[name].astype(np.float64) for name in numpy}
                right = {name: numpy[name].astype(np.float64) + 0.0 for name in numpy}
                wrong += [f"numpy {name}" for name in numpy if (seen[name] != right[name]).any()]
    return compared, wrong


def main(platform, way):
    device, cpu = jax.local_devices(backend=platform)[0], jax.local_devices(backend="cpu")[0]
    failed = False
    for codec in CODECS + NVCOMP:
        by_nvcomp = codec in NVCOMP
        if by_nvcomp and (why := codecs.table()[codec.rpartition("|")[2]].missing):
            if RANK == 0:
                print(json.dumps({"codec": codec, "not_run": why}), flush=True)
            continue
        for dtype in DTYPES[:2] if by_nvcomp else DTYPES:
            for count in COUNTS[-1:] if by_nvcomp else COUNTS:
                compared, wrong = compare(codec, dtype, count, device, cpu)
                row = {"ranks": N, "way": way, "codec": codec or "raw", "dtype": dtype}
                row |= {"count": count, "compared": compared}
                if wrong:
                    row |= {"rank": RANK, "different": wrong}
                if wrong or RANK == 0:
                    print(json.dumps(row), flush=True)
                failed |= bool(wrong)
    if way == "ipc":
        # Asked for, so either something was exported, or there is a reason.
        reasons, exported = comm.why_no_ipc(), jcc.stats.get().total.ipc_bytes
        if RANK == 0:
            print(json.dumps({"ranks": N, "ipc_bytes": exported, "why_not": reasons}), flush=True)
        failed |= exported == 0 and not any(reasons)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
