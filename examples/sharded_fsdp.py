"""Trains with parameters divided over the devices (FSDP), with XLA's collectives on jaxccomp.

    mpiexec -n 4 python -m jaxccomp run --xla examples/sharded_fsdp.py
    mpiexec -n 4 python -m jaxccomp run --xla --policy "* lossless" examples/sharded_fsdp.py

The program is plain JAX: each device has a part of every parameter, of its momentum and of the
batch. XLA gathers the parameters of a layer before they are used, and sums the gradients. The
policy of the second command compresses both without loss (docs/xla.md).
"""

import jax
import jax.numpy as jnp
import numpy as np
import sharding
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

STEPS, BATCH, FEATURES, LAYERS = 20, 64, 256, 3
RATE, MOMENTUM = 0.005, 0.9

Parameters = list[jax.Array]


def main() -> None:
    """Trains a network to give the signs of its inputs' neighbours."""
    mesh = sharding.join((-1,), ("data",))

    def loss_of(weights: Parameters, x: jax.Array, target: jax.Array) -> jax.Array:
        for weight in weights:
            whole = jax.lax.with_sharding_constraint(weight, NamedSharding(mesh, P()))
            x = jnp.tanh(x @ whole)
        return jnp.mean(jnp.sum((x - target) ** 2, axis=-1))

    @jax.jit
    def train_step(
        weights: Parameters, momenta: Parameters, x: jax.Array, target: jax.Array
    ) -> tuple[Parameters, Parameters, jax.Array]:
        loss, grads = jax.value_and_grad(loss_of)(weights, x, target)
        momenta = [MOMENTUM * m + g for m, g in zip(momenta, grads, strict=True)]
        return [w - RATE * m for w, m in zip(weights, momenta, strict=True)], momenta, loss

    random = np.random.default_rng(0)
    shape = (LAYERS, FEATURES, FEATURES)
    start = random.standard_normal(shape, np.float32) / np.float32(np.sqrt(FEATURES))
    weights = [sharding.put(each, mesh, P("data")) for each in start]
    momenta = [sharding.put(np.zeros_like(each), mesh, P("data")) for each in start]
    x = random.standard_normal((BATCH, FEATURES), np.float32)
    batch = [sharding.put(each, mesh, P("data")) for each in (x, np.sign(np.roll(x, 1, -1)))]
    losses = []
    for _ in range(STEPS):
        weights, momenta, loss = train_step(weights, momenta, *batch)
        losses.append(loss)
    sharding.report(losses, weights)


if __name__ == "__main__":
    main()
