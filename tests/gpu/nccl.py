"""NCCL beside the engine on this machine's GPU: values, and random programs of both backends.

    mpiexec -n 2 python tests/gpu/nccl.py [PROGRAMS]

Every rank uses the first GPU that it sees. Rank 0 prints a line of JSON for each part, which says
where it was not run. Exits with 1 where a value is wrong, and with 77 where there is no GPU or no
NCCL.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time

NO_DEVICE = 77
RANKS = int(os.environ.get("PMI_SIZE") or os.environ.get("OMPI_COMM_WORLD_SIZE") or 1)
# A part of the GPU's memory for each rank, and none taken ahead.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", str(round(0.8 / RANKS, 3)))

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import jaxccomp as jcc  # noqa: E402
from jaxccomp import _cuda, _engine  # noqa: E402

DTYPES = ("float32", "bfloat16", "int32", "uint8")
CODECS = (None, "int8", "lossless")


def missing() -> str:
    """Why nothing can be run here; empty when all can."""
    if jax.default_backend() != "gpu":
        return f"JAX's platform is {jax.default_backend()}"
    version, why = _engine.load().nccl()
    return (why if not version else "") or why


def numbers(rank: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Small whole numbers, whose sums and products are exact."""
    flat = (np.arange(np.prod(shape, dtype=int)) * 5 + 3 * rank) % 3
    return np.asarray(flat.reshape(shape), jnp.dtype(dtype))


def cases(rank: int, size: int) -> dict:
    """name: (function, shape, what comes of all ranks' operands)."""
    row, block = (1003,), (size, 501)

    def reduced(op):
        return lambda all_: op(np.stack(all_).astype(np.float64), axis=0)

    return {
        "bcast": (lambda x: jcc.bcast(x, root=size - 1, backend="nccl"), row, lambda a: a[-1]),
        "sum": (lambda x: jcc.allreduce(x, backend="nccl"), row, reduced(np.sum)),
        "prod": (lambda x: jcc.allreduce(x, op="prod", backend="nccl"), row, reduced(np.prod)),
        "min": (lambda x: jcc.allreduce(x, op="min", backend="nccl"), row, reduced(np.min)),
        "max": (lambda x: jcc.allreduce(x, op="max", backend="nccl"), row, reduced(np.max)),
        "reduce": (
            lambda x: jcc.reduce(x, root=0, backend="nccl"),
            row,
            lambda a: reduced(np.sum)(a) * (rank == 0),
        ),
        "allgather": (lambda x: jcc.allgather(x, backend="nccl"), row, np.stack),
        "gather": (
            lambda x: jcc.gather(x, root=0, backend="nccl"),
            row,
            lambda a: np.stack(a) * np.asarray(rank == 0, a[0].dtype),
        ),
        "scatter": (lambda x: jcc.scatter(x, root=0, backend="nccl"), block, lambda a: a[0][rank]),
        "reduce_scatter": (
            lambda x: jcc.reduce_scatter(x, backend="nccl"),
            block,
            lambda a: reduced(np.sum)(a)[rank],
        ),
        "alltoall": (
            lambda x: jcc.alltoall(x, backend="nccl"),
            block,
            lambda a: np.stack([each[rank] for each in a]),
        ),
        "sendrecv": (
            lambda x: jcc.sendrecv(
                x, dest=lambda r: (r + 1) % size, source=lambda r: (r - 1) % size, backend="nccl"
            ),
            row,
            lambda a: a[(rank - 1) % size],
        ),
    }


def check_values(rank: int, size: int) -> list[str]:
    wrong = []
    for name, (function, shape, expected) in cases(rank, size).items():
        for dtype in DTYPES:
            operands = [numbers(r, shape, dtype) for r in range(size)]
            got = np.asarray(jax.jit(function)(operands[rank]))
            if not np.array_equal(got, np.asarray(expected(operands), jnp.dtype(dtype))):
                wrong.append(f"{name} {dtype}")
    return wrong


def check_mixtures(rank: int, size: int, programs: int, codecs: tuple) -> list[str]:
    """Random programs of both backends, launched over and over, 20 before anybody waits."""
    choose = random.Random(7)  # alike on all ranks
    wrong, known, waiting = [], [], []
    for number in range(programs):
        if not known or choose.random() < 0.05:
            steps = [
                (choose.random() < 0.5, choose.choice(codecs), choose.choice((1, 700, 90_000)))
                for _ in range(choose.randint(1, 8))
            ]
            known.append((steps, jax.jit(lambda x, steps=steps: mixture(x, steps))))
        steps, function = choose.choice(known)
        waiting.append((number, steps, function(jnp.float32(rank + number % 5))))
        if len(waiting) < 20 and number + 1 < programs:
            continue
        for which, made_of, results in waiting:
            total = sum(r + which % 5 for r in range(size))
            for i, ((_, codec, _), result) in enumerate(zip(made_of, results, strict=True)):
                near = 0.05 * max(1, total + i * size) if codec == "int8" else 0
                if not np.all(np.abs(np.asarray(result) - (total + i * size)) <= near):
                    wrong.append(f"program {which}, step {i}")
        waiting.clear()
    jcc.check()
    return wrong


def mixture(x: jax.Array, steps: list) -> list[jax.Array]:
    how = [{"backend": "nccl"} if nccl else {"codec": codec} for nccl, codec, _ in steps]
    return [
        jcc.allreduce(jnp.full((count,), x + i), **each)
        for i, ((_, _, count), each) in enumerate(zip(steps, how, strict=True))
    ]


def main(programs: int = 1000) -> int:
    """Runs all parts; returns the exit status."""
    world = jcc.init()
    why = missing()
    if why:
        print(why, file=sys.stderr)
        return NO_DEVICE
    jcc.config.set("timeout_seconds", 60)
    version, _ = _engine.load().nccl()
    worst = 0
    no_engine = _cuda.why_missing()
    codecs = tuple(c for c in CODECS if not no_engine and (c is None or _cuda.runs(c, "float32")))
    parts = {"values": lambda: check_values(world.rank, world.size)}
    if codecs:
        parts["mixtures"] = lambda: check_mixtures(world.rank, world.size, programs, codecs)
    for name, part in parts.items():
        start = time.monotonic()
        wrong = part()
        worst |= bool(wrong)
        line = {
            "part": name,
            "ranks": world.size,
            "device": jax.devices()[0].device_kind,
            "nccl": version,
            "seconds": round(time.monotonic() - start, 1),
            "wrong": wrong[:10],
        }
        if world.rank == 0 or wrong:
            print(json.dumps(line), flush=True)
    if not codecs and world.rank == 0:
        print(json.dumps({"part": "mixtures", "ranks": world.size, "not_run": no_engine}))
    return worst


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
