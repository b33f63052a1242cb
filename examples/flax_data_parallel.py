"""Trains a Flax network on scikit-learn's handwritten digits, data-parallel over MPI ranks.

    mpiexec -n 4 python examples/flax_data_parallel.py

Every rank holds its share of the data. One jitted function trains an epoch: it takes rank 0's
parameters (``jaxccomp.bcast``), then averages the gradients of each batch over the ranks
(``jaxccomp.allreduce``), a pytree in one exchange each.
"""

import argparse
import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from rich.progress import Progress
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import jaxccomp as jcc
from jaxccomp import stats


class Network(nnx.Module):
    """Two convolutions and a linear layer, for 8 x 8 images of 10 digits."""

    def __init__(self, rngs: nnx.Rngs):
        self.first = nnx.Conv(1, 16, (3, 3), rngs=rngs)
        self.second = nnx.Conv(16, 32, (3, 3), strides=2, rngs=rngs)
        self.head = nnx.Linear(4 * 4 * 32, 10, rngs=rngs)

    def __call__(self, images):
        """Logits of a batch of images."""
        x = nnx.relu(self.first(images))
        x = nnx.relu(self.second(x))
        return self.head(x.reshape(x.shape[0], -1))


def load(rank, ranks, batch):
    """This rank's share of the training set as batches, and the whole test set."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32).reshape(-1, 8, 8, 1)
    split = train_test_split(images, labels.astype(np.int32), test_size=0.2, random_state=0)
    train_x, test_x, train_y, test_y = split
    # As many batches on every rank, since all ranks take part in each exchange.
    count = len(train_x) // (ranks * batch)
    shares = [
        part[rank::ranks][: count * batch].reshape(count, batch, *part.shape[1:])
        for part in (train_x, train_y)
    ]
    return shares, (test_x, test_y)


def main():
    """Trains and prints what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=16, help="images per rank")
    parser.add_argument("--codec", default=None, help='of the gradients, such as "bf16"')
    arguments = parser.parse_args()

    world = jcc.init()
    batches, test = load(world.rank, world.size, arguments.batch)
    # Each rank starts from parameters of its own; bcast makes them equal.
    graph, params = nnx.split(Network(nnx.Rngs(world.rank)))
    optimizer = optax.adam(2e-3)
    opt_state = optimizer.init(params)

    def loss(params, images, labels):
        logits = nnx.merge(graph, params)(images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def train_epoch(params, opt_state, batches):
        params = jcc.bcast(params, root=0)

        def step(state, batch):
            params, opt_state = state
            value, grads = jax.value_and_grad(loss)(params, *batch)
            grads = jcc.allreduce(grads, op="mean", codec=arguments.codec)
            updates, opt_state = optimizer.update(grads, opt_state, params)
            return (optax.apply_updates(params, updates), opt_state), value

        (params, opt_state), values = jax.lax.scan(step, (params, opt_state), batches)
        return params, opt_state, jcc.allreduce(values.mean(), op="mean")

    @jax.jit
    def accuracy(params, images, labels):
        return jnp.mean(nnx.merge(graph, params)(images).argmax(-1) == labels)

    start = time.perf_counter()
    with Progress(disable=world.rank != 0) as progress:
        bar = progress.add_task("training", total=arguments.epochs)
        for _ in range(arguments.epochs):
            params, opt_state, value = train_epoch(params, opt_state, batches)
            progress.update(bar, advance=1, description=f"loss {float(value):.4f}")
    seconds = time.perf_counter() - start

    if world.rank == 0:
        done = stats.get().total
        print(f"ranks              {world.size}")
        print(f"test accuracy      {float(accuracy(params, *test)):.1%}")
        print(f"training time      {seconds:.2f} s (with compilation)")
        print(f"sent by rank 0     {stats.format_bytes(done.sent_bytes)}")
        print(f"in communication   {done.seconds:.2f} s in {done.calls} operations")


if __name__ == "__main__":
    main()
