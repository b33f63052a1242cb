"""A rank of nccl.py: every operation of NCCL's, and random programs that mix backends.

    nccl_rank.py DEVICE STYLE SEED PROGRAMS LAUNCH SECONDS PORT

Rank 0 prints a line of JSON for each part, and any rank one for what is wrong. Programs are
launched 20 at a time before anybody waits. LAUNCH is -1 for all launches; PORT, where the
processes of jax.distributed meet, is 0 in the style `comm`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import metadata

# None of the GPU's memory is taken ahead.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import programs  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402
from mpi4py import MPI  # noqa: E402

import jaxccomp as jcc  # noqa: E402
from jaxccomp._native import (
    cuda,  # noqa: E402
    engine,  # noqa: E402
)

DTYPES = ("float32", "bfloat16", "int32", "uint8")
AXIS = "ranks"
AT_ONCE = 20
MOST_WRONG = 10


def join(style: str, port: int) -> None:
    """Joins MPI's ranks, and those of jax.distributed where XLA is to communicate between them."""
    rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    if style != "comm":
        share_gpu(rank)
        port = MPI.COMM_WORLD.bcast(port)
        jax.distributed.initialize(f"127.0.0.1:{port}", size, rank)
    jcc.init()
    jcc.config.set("timeout_seconds", 60)


def share_gpu(rank: int) -> None:
    """Lets NCCL have several ranks on a GPU, as jaxccomp does: XLA may use it earlier."""
    os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    for package in ("nvidia-nccl-cu13", "nvidia-nccl-cu12"):
        try:
            version = tuple(map(int, metadata.version(package).split(".")[:2]))
        except (metadata.PackageNotFoundError, ValueError):
            continue
        if version < (2, 30):
            os.environ.setdefault("NCCL_HOSTID", f"jaxccomp-{rank}")


def usable(style: str, device: str) -> tuple[list[programs.Way], dict[str, str]]:
    """The ways that all ranks can take, and why others cannot be."""
    reasons: dict[str, str] = {}
    for way in programs.WAYS:
        if why := _why_not(way, style, device):
            reasons[str(way)] = why
    for each in MPI.COMM_WORLD.allgather(reasons):
        reasons = each | reasons
    return [way for way in programs.WAYS if str(way) not in reasons], reasons


def _why_not(way: programs.Way, style: str, device: str) -> str:
    if way.backend == "xla":
        return "XLA's collectives need an axis" if style == "comm" else ""
    if device == "cpu":
        return "NCCL is for GPUs" if way.backend == "nccl" else ""
    if way.backend == "nccl":
        version, why = engine.load().nccl()
        return why if why or not version else ""
    missing = cuda.why_missing()
    if not missing and way.codec and not cuda.runs(way.codec, "float32"):
        missing = f"no kernels of {way.codec}"
    return missing


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


def operation(step: programs.Step, x: jax.Array, style: str) -> jax.Array:
    """One step."""
    how = {"backend": step.way.backend, "codec": step.way.codec}
    if style != "comm":
        how["axis_name"] = AXIS
    return {
        "bcast": lambda: jcc.bcast(x, root=step.root, **how),
        "sum": lambda: jcc.allreduce(x, **how),
        "max": lambda: jcc.allreduce(x, op="max", **how),
        "allgather": lambda: jcc.allgather(x, **how),
        "reduce_scatter": lambda: jcc.reduce_scatter(x, **how),
        "alltoall": lambda: jcc.alltoall(x, **how),
    }[step.op]()


def body(program: programs.Program, size: int, style: str):
    """The program as a function of (rank, launch), as programs.py works it out."""

    def run(rank, launch):
        results = []
        for index, step in enumerate(program):
            shape = (size, step.count) if programs.OPS[step.op] else (step.count,)
            flat = jnp.arange(np.prod(shape), dtype=jnp.int32) * 5 + 3 * rank + index + launch
            operand = (flat % 7 - 2).reshape(shape)
            if step.follows:
                operand += results[-1].reshape(-1)[0].astype(jnp.int32) % 3
            results.append(operation(step, operand.astype(step.dtype), style))
        return results

    return run


def compiled(program: programs.Program, rank: int, size: int, style: str):
    """A function of the launch that gives this rank's results, and does not wait for them."""
    run = body(program, size, style)
    if style == "comm":
        jitted = jax.jit(run)
        return lambda launch: jitted(jnp.int32(rank), jnp.int32(launch))
    mesh = Mesh(np.array(jax.devices()), (AXIS,))
    spec, same = PartitionSpec(AXIS), PartitionSpec()

    def each(rank, launch):
        return [result[None] for result in run(rank[0], launch)]

    jitted = jax.jit(
        jax.shard_map(each, mesh=mesh, in_specs=(spec, same), out_specs=spec, check_vma=False)
    )
    mine = jax.device_put(jnp.int32([rank]), jax.local_devices()[0])
    ranks = jax.make_array_from_single_device_arrays((size,), NamedSharding(mesh, spec), [mine])

    def call(launch):
        results = jitted(ranks, np.int32(launch))
        return [result.addressable_shards[0].data[0] for result in results]

    return call


def check_programs(
    style: str, ways: list[programs.Way], seed: int, numbers: range, seconds: float
) -> tuple[list[dict], dict]:
    """Launches programs, and compares what comes of them: what is wrong, and what was done."""
    rank, size, start = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, time.monotonic()
    known: dict[int, tuple] = {}
    wrong: list[dict] = []
    steps, done, longest = 0, 0, 0.0
    for first in range(0, len(numbers), AT_ONCE):
        # Rank 0's clock is everybody's: all run the same. As long again may the next ones take.
        began = time.monotonic()
        if MPI.COMM_WORLD.bcast(began - start + longest > seconds):
            break
        waiting = []
        for launch in numbers[first : first + AT_ONCE]:
            number = programs.launched(seed, launch)
            if number not in known:
                program = programs.make(seed, number, size, ways)
                known[number] = program, compiled(program, rank, size, style)
            waiting.append((launch, number, known[number][1](launch)))
        for launch, number, results in waiting:
            program = known[number][0]
            wants = programs.expected(program, size, launch)[rank]
            for index, (step, got, want) in enumerate(zip(program, results, wants, strict=True)):
                steps += 1
                if what := programs.wrong(step, np.asarray(got), want, size):
                    place = {"seed": seed, "launch": launch, "program": number, "step": index}
                    shown = programs.described(program)
                    wrong.append(place | {"rank": rank, "what": what, "steps": shown})
            done += 1
        jcc.check()
        longest = max(longest, time.monotonic() - began)
    return wrong, {"programs": done, "distinct": len(known), "steps": steps}


def main(
    device: str, style: str, seed: str, count: str, launch: str, seconds: str, port: str
) -> int:
    """Runs both parts; returns the exit status."""
    start = time.monotonic()
    join(style, int(port))
    rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    ways, reasons = usable(style, device)
    common = {"ranks": size, "style": style, "device": jax.devices()[0].device_kind}
    if device != "cpu":
        common["nccl"] = engine.load().nccl()[0]

    def tell(row: dict, wrong: bool) -> None:
        if rank == 0 or wrong:
            print(json.dumps(row | common), flush=True)

    worst = 0
    if style == "comm" and int(launch) < 0 and any(way.backend == "nccl" for way in ways):
        bad = check_values(rank, size)
        worst |= bool(bad)
        tell({"part": "values", "wrong": bad[:MOST_WRONG]}, bool(bad))
    for name, why in reasons.items():
        tell({"not_run": name, "reason": why}, False)
    if not ways:
        return worst
    numbers = range(int(count)) if int(launch) < 0 else range(int(launch), int(launch) + 1)
    left = float(seconds) - (time.monotonic() - start)
    bad, found = check_programs(style, ways, int(seed), numbers, left)
    worst |= bool(bad)
    row = {"part": "programs", "seed": int(seed), "ways": list(map(str, ways)), **found}
    row |= {"seconds": round(time.monotonic() - start, 1), "wrong": bad[:MOST_WRONG]}
    tell(row, bool(bad))
    if found["programs"] < len(numbers):
        missing = f"launches {numbers[found['programs']]} to {numbers[-1]}"
        tell({"not_run": missing, "reason": f"the {seconds} s were over"}, False)
    return worst


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
