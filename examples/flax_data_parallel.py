r"""Trains a Flax network (nnx) on handwritten digits, data-parallel, with compressed gradients.

    mpiexec -n 4 python examples/flax_data_parallel.py
    mpiexec -n 4 python examples/flax_data_parallel.py --codec topk:density=0.01 --width 4096
    python -m jaxccomp tune ranks-per-gpu \
        examples/flax_data_parallel.py --throughput --batch '{batch}'

Every rank holds its share of the images, and starts from rank 0's parameters (`jaxccomp.bcast`).
`jaxccomp.optim.allreduce_gradients`, first in the optax chain, averages the gradients of each batch
over the ranks. Error feedback adds the codec's error to the gradients of the next batch. The
program trains twice, without compression and with it, and compares the two.
"""

from typing import Any

import digits
import jax
import jax.numpy as jnp
import optax
from flax import nnx

import jaxccomp as jcc


class Network(nnx.Module):
    """Two convolutions and two dense layers, for 8 x 8 images of 10 digits."""

    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.first = nnx.Conv(1, 16, (3, 3), rngs=rngs)
        self.second = nnx.Conv(16, 32, (3, 3), strides=2, rngs=rngs)
        self.hidden = nnx.Linear(4 * 4 * 32, width, rngs=rngs)
        self.head = nnx.Linear(width, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Logits of a batch of images."""
        x = nnx.relu(self.first(images))
        x = nnx.relu(self.second(x)).reshape(len(images), -1)
        return self.head(nnx.relu(self.hidden(x)))


def loss_of(model: Network, images: jax.Array, labels: jax.Array) -> jax.Array:
    """The mean cross entropy of a batch."""
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(model(images), labels))


@nnx.jit
def train_epoch(model: Network, optimizer: nnx.Optimizer[Network], batches: Any) -> jax.Array:
    """Trains on all batches; returns the mean loss over all ranks."""

    @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=(nnx.Carry, 0))
    def step(state: Any, batch: Any) -> Any:
        model, optimizer = state
        loss, grads = nnx.value_and_grad(loss_of)(model, *batch)
        optimizer.update(model, grads)  # averages the gradients over the ranks
        return (model, optimizer), loss

    _, losses = step((model, optimizer), batches)
    return jcc.allreduce(jnp.mean(losses), "mean")


@nnx.jit
def accuracy(model: Network, images: jax.Array, labels: jax.Array) -> jax.Array:
    """The accuracy over all ranks' test images."""
    return jcc.allreduce(jnp.mean(model(images).argmax(-1) == labels), "mean")


def train(world: jcc.Communicator, data: Any, width: int, how: dict[str, Any]) -> digits.Results:
    """Yields loss and accuracy after every epoch."""
    batches, test = data
    model = Network(width, nnx.Rngs(world.rank))  # each rank has different values ...
    params = nnx.state(model, nnx.Param)
    nnx.update(model, jcc.bcast(params, root=0, codec="lossless"))  # ... until it gets rank 0's
    average = jcc.optim.allreduce_gradients(**how)
    optimizer = nnx.Optimizer(model, optax.chain(average, optax.adam(2e-3)), wrt=nnx.Param)
    while True:
        loss = train_epoch(model, optimizer, batches)
        yield {"loss": loss, "accuracy": accuracy(model, *test)}


if __name__ == "__main__":
    digits.data_parallel(__doc__, train)
