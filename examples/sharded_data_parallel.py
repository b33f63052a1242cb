r"""Trains a Flax network (nnx), data-parallel by shardings, with XLA's collectives on jaxccomp.

    mpiexec -n 4 python -m jaxccomp run --xla examples/sharded_data_parallel.py
    mpiexec -n 4 python -m jaxccomp run --xla --policy "allreduce float32 int8" \
        examples/sharded_data_parallel.py

The program is plain JAX and Flax: the images are divided over the devices, each device has all
parameters, and XLA adds the allreduce of the gradients. `--policy` compresses it (docs/xla.md).
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import sharding
from flax import nnx
from jax.sharding import PartitionSpec as P

STEPS, BATCH, FEATURES, WIDTH, CLASSES = 20, 128, 64, 256, 10


class Network(nnx.Module):
    """Three dense layers."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(FEATURES, WIDTH, rngs=rngs)
        self.second = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.last = nnx.Linear(WIDTH, CLASSES, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Logits of a batch."""
        return self.last(nnx.relu(self.second(nnx.relu(self.first(images)))))


def loss_of(model: Network, images: jax.Array, labels: jax.Array) -> jax.Array:
    """The mean cross entropy of a batch."""
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(model(images), labels))


@nnx.jit
def train_step(
    model: Network, optimizer: nnx.Optimizer[Network], images: jax.Array, labels: jax.Array
) -> jax.Array:
    """Trains on a batch; returns its loss."""
    loss: jax.Array
    loss, grads = nnx.value_and_grad(loss_of)(model, images, labels)
    optimizer.update(model, grads)
    return loss


def main() -> None:
    """Trains on random images, whose classes a random linear map gives."""
    mesh = sharding.join((-1,), ("data",))
    model = Network(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.05, momentum=0.9), wrt=nnx.Param)
    for node in (model, optimizer):
        nnx.update(node, jax.tree.map(lambda leaf: sharding.put(leaf, mesh, P()), nnx.state(node)))
    random = np.random.default_rng(0)
    images = random.standard_normal((BATCH, FEATURES), np.float32)
    labels = (images @ random.standard_normal((FEATURES, CLASSES), np.float32)).argmax(-1)
    batch = [sharding.put(each, mesh, P("data")) for each in (images, labels)]
    losses = [train_step(model, optimizer, *batch) for _ in range(STEPS)]
    sharding.report(losses, nnx.state(model, nnx.Param))


if __name__ == "__main__":
    main()
