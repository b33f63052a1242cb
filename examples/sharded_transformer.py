r"""Trains a tensor-parallel transformer block on a 2 x 2 mesh, with XLA's collectives on jaxccomp.

    mpiexec -n 4 python -m jaxccomp run --xla examples/sharded_transformer.py
    mpiexec -n 4 python -m jaxccomp run --xla --policy "allreduce float32 >=24KiB int8" \
        examples/sharded_transformer.py

The program is plain JAX: the batch is divided over the axis "data", heads and hidden units over
the axis "model". XLA adds sums of activations over "model" and of gradients over "data". The
minimum size in the policy leaves the activations, of 16 KiB each, as they are (docs/xla.md).
"""

import jax
import jax.numpy as jnp
import numpy as np
import sharding
from jax.sharding import PartitionSpec as P

STEPS, BATCH, LENGTH, FEATURES, HEADS, HIDDEN = 20, 8, 16, 64, 4, 256
RATE, MOMENTUM = 0.02, 0.9

# Shape and division of the parameters.
BLOCK: dict[str, tuple[tuple[int, ...], P]] = {
    "qkv": ((FEATURES, 3, HEADS, FEATURES // HEADS), P(None, None, "model", None)),
    "out": ((HEADS, FEATURES // HEADS, FEATURES), P("model", None, None)),
    "up": ((FEATURES, HIDDEN), P(None, "model")),
    "down": ((HIDDEN, FEATURES), P("model", None)),
}

Parameters = dict[str, jax.Array]


def normalized(x: jax.Array) -> jax.Array:
    """Features with a root mean square of 1."""
    return x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)


def block(weights: Parameters, x: jax.Array) -> jax.Array:
    """Causal self-attention, then two dense layers."""
    query, key, value = jnp.einsum("btf,fnhk->nbthk", normalized(x), weights["qkv"])
    scores = jnp.einsum("bthk,bshk->bhts", query, key) / np.sqrt(FEATURES // HEADS)
    causal = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    attention = jax.nn.softmax(jnp.where(causal, scores, -1e9))
    mixed = jnp.einsum("bhts,bshk->bthk", attention, value)
    x = x + jnp.einsum("bthk,hkf->btf", mixed, weights["out"])
    return x + jax.nn.gelu(normalized(x) @ weights["up"]) @ weights["down"]


def loss_of(weights: Parameters, x: jax.Array, target: jax.Array) -> jax.Array:
    """The squared error of a row, on average."""
    return jnp.mean(jnp.sum((block(weights, x) - target) ** 2, axis=-1))


@jax.jit
def train_step(
    weights: Parameters, momenta: Parameters, x: jax.Array, target: jax.Array
) -> tuple[Parameters, Parameters, jax.Array]:
    """Trains on a batch; returns parameters, momenta and loss."""
    loss, grads = jax.value_and_grad(loss_of)(weights, x, target)
    momenta = {name: MOMENTUM * momenta[name] + grads[name] for name in grads}
    return {name: weights[name] - RATE * momenta[name] for name in grads}, momenta, loss


def main() -> None:
    """Trains the block to give the previous row of each sequence."""
    mesh = sharding.join((2, 2), ("data", "model"))
    random = np.random.default_rng(0)
    weights, momenta = {}, {}
    for name, (shape, spec) in BLOCK.items():
        scale = np.float32(0.5 / np.sqrt(FEATURES))
        start = scale * random.standard_normal(shape, np.float32)
        weights[name] = sharding.put(start, mesh, spec)
        momenta[name] = sharding.put(np.zeros_like(start), mesh, spec)
    x = random.standard_normal((BATCH, LENGTH, FEATURES), np.float32)
    batch = [sharding.put(each, mesh, P("data")) for each in (x, np.roll(x, 1, axis=1))]
    losses = []
    for _ in range(STEPS):
        weights, momenta, loss = train_step(weights, momenta, *batch)
        losses.append(loss)
    sharding.report(losses, weights)


if __name__ == "__main__":
    main()
