"""Checks collectives along an axis of this process's devices, with backends "native" and "xla".

Started by collectives.py. With "native" the engine moves raw and lossless values between the
devices. With "xla" fixed-rate codecs are kernels on XLA's stream, and jax.lax (NCCL between GPUs)
moves the encoded values. Results are compared with NumPy's: bit for bit, or within TOLERANCE. With
one GPU the axis has one device.
"""

from __future__ import annotations

import json
import os
import sys

DEVICES = 4  # emulated devices with platform "cpu", which tests this script itself
platform = sys.argv[1]
if platform == "cpu":
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={DEVICES}"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import jaxccomp as jcc  # noqa: E402

# Backend and codec.
WAYS = (
    ("native", None),
    ("native", "lossless"),
    ("xla", None),
    ("xla", "int8"),
    ("xla", "bf16"),
    ("xla", "fp8_e4m3"),
)
EXACT = (None, "lossless")
DTYPES = ("float32", "bfloat16")
COUNTS = (1003, 300_000)
LARGEST = 16
TOLERANCE = 0.1  # of the largest result
OPERATIONS = {
    "bcast": lambda x, **how: jcc.bcast(x[0], root=0, **how),
    "sum": lambda x, **how: jcc.allreduce(x[0], **how, op="sum"),
    "max": lambda x, **how: jcc.allreduce(x[0], op="max", **how),
    "allgather": lambda x, **how: jcc.allgather(x[0], **how),
    "alltoall": lambda x, **how: jcc.alltoall(x, **how),
    "reduce_scatter": lambda x, **how: jcc.reduce_scatter(x, op="sum", **how),
}


def expected(name: str, of: np.ndarray) -> np.ndarray:
    """NumPy's result on each device; ``of`` has a row of operands for each device."""
    n, first = len(of), of[:, 0]
    return {
        "bcast": lambda: np.stack([first[0]] * n),
        "sum": lambda: np.stack([first.sum(0)] * n),
        "max": lambda: np.stack([first.max(0)] * n),
        "allgather": lambda: np.stack([first] * n),
        "alltoall": lambda: of.swapaxes(0, 1),
        "reduce_scatter": lambda: of.sum(0),
    }[name]()


def run(name: str, mesh: jax.sharding.Mesh, x: jax.Array, **how) -> np.ndarray:
    """The result on each device."""

    def along(x):
        return OPERATIONS[name](x[0], axis_name="d", **how)[None]

    mapped = jax.shard_map(along, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False)
    return np.asarray(jax.jit(mapped)(x), np.float64)


def main() -> int:
    """Runs all cases; returns 1 if a result is wrong."""
    devices = jax.local_devices(backend=platform)
    mesh = jax.sharding.Mesh(np.array(devices), ("d",))
    wrong_at_all = False
    for backend, codec in WAYS:
        for dtype in DTYPES:
            for count in COUNTS:
                drawn = np.random.default_rng(count).integers(
                    -LARGEST, LARGEST + 1, (len(devices), len(devices), count)
                )
                wrong = []
                for name in OPERATIONS:
                    got = run(name, mesh, jnp.asarray(drawn, dtype), backend=backend, codec=codec)
                    want = expected(name, drawn).astype(np.float64)
                    most = 0.0 if codec in EXACT else TOLERANCE * np.abs(want).max()
                    if not np.abs(got - want).max() <= most:  # false for NaN
                        wrong.append(name)
                row = {"devices": len(devices), "backend": backend, "codec": codec or "raw"}
                row |= {"dtype": dtype, "count": count, "compared": len(OPERATIONS)}
                print(json.dumps(row | ({"different": wrong} if wrong else {})), flush=True)
                wrong_at_all |= bool(wrong)
    return int(wrong_at_all)


if __name__ == "__main__":
    sys.exit(main())
