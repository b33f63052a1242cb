"""Data-parallel training with JAX's own collectives: NCCL between GPUs, Gloo between CPUs.

    mpiexec -n 4 python examples/jax_collectives.py

`jax.distributed` finds the processes with mpi4py, and gives each process of a host one of its GPUs.
A mesh then spans all processes. With `backend="xla"` XLA moves the values, since it owns NCCL's
communicators. The program trains with raw gradients, then with int8.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxccomp as jcc

jax.distributed.initialize(cluster_detection_method="mpi4py")
jcc.init()
mesh = jax.make_mesh((jax.device_count(),), ("data",))
SAMPLES, FEATURES = 64, 256  # per device


def train(codec: str) -> tuple[float, float]:
    """The loss before and after some steps of gradient descent."""

    def step(w: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        loss, grad = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
        how: dict[str, Any] = {"axis_name": "data", "backend": "xla", "op": "mean"}
        return w - 0.01 * jcc.allreduce(grad, codec=codec, **how), jcc.allreduce(loss, **how)

    specs: dict[str, Any] = {"in_specs": (P(), P("data"), P("data")), "out_specs": (P(), P())}
    jitted = jax.jit(jax.shard_map(step, mesh=mesh, **specs, check_vma=False))
    random = np.random.default_rng(jax.process_index())
    x = random.standard_normal((SAMPLES * jax.local_device_count(), FEATURES), np.float32)
    y = x.sum(axis=1)
    batch = [
        jax.make_array_from_process_local_data(NamedSharding(mesh, P("data")), each)
        for each in (x, y)
    ]
    w, losses = jnp.zeros(FEATURES), []
    for _ in range(50):
        w, loss = jitted(w, *batch)
        losses.append(float(loss))
    return losses[0], losses[-1]


for codec in ("raw", "int8"):
    before, after = train(codec)
    if jax.process_index() == 0:
        devices = jax.device_count()
        print(f"{devices} devices, {codec}: loss {before:.1f} -> {after:.1f}", flush=True)
