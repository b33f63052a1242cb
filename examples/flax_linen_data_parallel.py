"""Trains a Flax network (linen) on handwritten digits, data-parallel, with compressed gradients.

    mpiexec -n 4 python examples/flax_linen_data_parallel.py
    mpiexec -n 4 python examples/flax_linen_data_parallel.py --codec onebit --width 4096

Like flax_data_parallel.py, for programs with linen modules and a `TrainState`: `jaxccomp.bcast`
copies rank 0's parameters to all ranks, and `jaxccomp.optim.allreduce_gradients`, first in the
optax chain, averages gradients. The program trains without compression and with it, and compares
the two.
"""

import functools
from typing import Any

import digits
import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.training.train_state import TrainState

import jaxccomp as jcc


class Network(nn.Module):
    """Two convolutions and two dense layers, for 8 x 8 images of 10 digits."""

    width: int

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Logits of a batch of images."""
        x = nn.relu(nn.Conv(16, (3, 3))(images))
        x = nn.relu(nn.Conv(32, (3, 3), strides=2)(x)).reshape(len(images), -1)
        return nn.Dense(10)(nn.relu(nn.Dense(self.width)(x)))


@functools.partial(jax.jit, donate_argnums=0)
def train_epoch(state: TrainState, batches: Any) -> tuple[TrainState, jax.Array]:
    """Trains on all batches; returns the mean loss over all ranks."""

    def step(state: TrainState, batch: Any) -> tuple[TrainState, jax.Array]:
        images, labels = batch

        def loss_of(params: Any) -> jax.Array:
            logits = state.apply_fn(params, images)
            return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels))

        loss, grads = jax.value_and_grad(loss_of)(state.params)
        return state.apply_gradients(grads=grads), loss  # averages the gradients over the ranks

    state, losses = jax.lax.scan(step, state, batches)
    return state, jcc.allreduce(losses.mean(), "mean")


@jax.jit
def accuracy(state: TrainState, images: jax.Array, labels: jax.Array) -> jax.Array:
    """The accuracy over all ranks' test images."""
    logits = state.apply_fn(state.params, images)
    return jcc.allreduce(jnp.mean(logits.argmax(-1) == labels), "mean")


def train(world: jcc.Communicator, data: Any, width: int, how: dict[str, Any]) -> digits.Results:
    """Yields loss and accuracy after every epoch."""
    batches, test = data
    network = Network(width)
    # Each rank initialises different values, then gets rank 0's.
    params = network.init(jax.random.key(world.rank), test[0][:1])
    params = jcc.bcast(params, root=0, codec="lossless")
    average = jcc.optim.allreduce_gradients(**how)
    state = TrainState.create(
        apply_fn=network.apply, params=params, tx=optax.chain(average, optax.adam(2e-3))
    )
    while True:
        state, loss = train_epoch(state, batches)
        yield {"loss": loss, "accuracy": accuracy(state, *test)}


if __name__ == "__main__":
    digits.data_parallel(__doc__, train)
