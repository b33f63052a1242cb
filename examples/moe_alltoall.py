"""Trains a mixture of experts in Flax (nnx): tokens travel to their experts, compressed.

    mpiexec -n 4 python examples/moe_alltoall.py
    mpiexec -n 4 python examples/moe_alltoall.py --codec int8 --top 2 --experts 2

The tokens are the 16 patches of 2 x 2 pixels of a handwritten digit. A router picks for each token
the best one or two of all ranks' experts. `jaxccomp.alltoall` sends the token there and its result
back; cotangents travel the same way with the same codec. An expert has a capacity; tokens beyond it
are dropped (the residual connection keeps them). A balance loss keeps the experts about equally
busy (GShard, Lepikhin et al. 2020; Switch Transformer, Fedus et al. 2021).

Each rank has its own experts, whose gradients are not averaged; all other gradients are. The
program trains without compression and with it, and compares the two.
"""

import argparse
import functools
from typing import Any

import digits
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import jaxccomp as jcc


class Expert(nnx.Param[jax.Array]):
    """Parameters of this rank's own experts."""


class MixtureOfExperts(nnx.Module):
    """A mixture of feed-forward layers (experts), some on each rank."""

    def __init__(
        self,
        world: jcc.Communicator,
        options: argparse.Namespace,
        codec: str | None,
        rngs: nnx.Rngs,
    ) -> None:
        self.ranks, self.local = world.size, options.experts
        self.top, self.capacity = options.top, options.capacity
        self.exchange = functools.partial(jcc.alltoall, codec=codec)
        features, width, local = options.features, options.width, options.experts
        self.router = nnx.Linear(features, world.size * local, use_bias=False, rngs=rngs)
        # Experts differ between ranks: do not use `rngs`, which is the same on all ranks.
        normal = nnx.initializers.lecun_normal(batch_axis=0)
        keys = jax.random.split(jax.random.key(1 + world.rank))
        self.up = Expert(normal(keys[0], (local, features, width)))
        self.down = Expert(normal(keys[1], (local, width, features)))

    def __call__(self, tokens: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The experts' results for tokens (count, features), the balance loss, fraction dropped."""
        experts = self.ranks * self.local
        slots = int(self.capacity * self.top * len(tokens) / experts) + 1
        probabilities = jax.nn.softmax(self.router(tokens))
        gates, chosen = jax.lax.top_k(probabilities, self.top)
        # Each choice gets a place in its expert's queue; first choices come before second ones.
        # one_hot returns zeros for places beyond the capacity, which drops the token.
        choices = jax.nn.one_hot(chosen.T.reshape(-1), experts, dtype=jnp.int32)
        places = jnp.sum((jnp.cumsum(choices, axis=0) - 1) * choices, axis=1)
        slot = jax.nn.one_hot(places, slots, dtype=tokens.dtype)
        where = (choices[:, :, None] * slot[:, None, :]).reshape(self.top, -1, experts, slots)

        there = jnp.einsum("knes,nf->esf", where, tokens)
        there = self.exchange(there.reshape(self.ranks, self.local, slots, -1))
        hidden = nnx.relu(jnp.einsum("rlsf,lfw->rlsw", there, self.up[...]))
        back = self.exchange(jnp.einsum("rlsw,lwf->rlsf", hidden, self.down[...]))
        back = back.reshape(experts, slots, -1)
        result = jnp.einsum("knes,nk,esf->nf", where, gates, back)

        share = jax.nn.one_hot(chosen[:, 0], experts).mean(axis=0)
        balance = experts * jnp.sum(share * probabilities.mean(axis=0))
        return result, balance, 1 - where.sum() / (len(tokens) * self.top)


class Network(nnx.Module):
    """Patches, a mixture of experts with a residual connection, and a dense layer."""

    def __init__(
        self,
        world: jcc.Communicator,
        options: argparse.Namespace,
        codec: str | None,
        rngs: nnx.Rngs,
    ) -> None:
        features = options.features
        self.embed = nnx.Linear(4, features, rngs=rngs)
        self.position = nnx.Param(0.02 * jax.random.normal(rngs.params(), (16, features)))
        self.norm = nnx.LayerNorm(features, rngs=rngs)
        self.experts = MixtureOfExperts(world, options, codec, rngs)
        self.head = nnx.Linear(16 * features, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Logits of a batch of images, the balance loss, and the fraction of dropped tokens."""
        patches = images.reshape(-1, 4, 2, 4, 2).swapaxes(2, 3).reshape(-1, 16, 4)
        x = self.embed(patches) + self.position[...]
        tokens = x.reshape(-1, x.shape[-1])
        more, balance, dropped = self.experts(self.norm(tokens))
        return self.head((tokens + more).reshape(len(images), -1)), balance, dropped


def loss_of(
    model: Network, images: jax.Array, labels: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The mean cross entropy of a batch plus the weighted balance loss; and values to print."""
    logits, balance, dropped = model(images)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    return loss + 0.01 * balance, {"loss": loss, "dropped": dropped}


@nnx.jit
def train_epoch(
    model: Network, optimizer: nnx.Optimizer[Network], batches: Any
) -> dict[str, jax.Array]:
    """Trains on all batches; returns means over all ranks."""

    @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=(nnx.Carry, 0))
    def step(state: Any, batch: Any) -> Any:
        model, optimizer = state
        grads, seen = nnx.grad(loss_of, has_aux=True)(model, *batch)
        optimizer.update(model, grads)
        return (model, optimizer), seen

    _, seen = step((model, optimizer), batches)
    return jcc.allreduce(jax.tree.map(jnp.mean, seen), "mean")


@nnx.jit
def accuracy(model: Network, images: jax.Array, labels: jax.Array) -> jax.Array:
    """The accuracy over all ranks' test images."""
    return jcc.allreduce(jnp.mean(model(images)[0].argmax(-1) == labels), "mean")


def train(
    world: jcc.Communicator, data: Any, options: argparse.Namespace, codec: str | None
) -> digits.Results:
    """Yields loss, accuracy and the fraction of dropped tokens after every epoch."""
    batches, test = data
    model = Network(world, options, codec, nnx.Rngs(0))
    kinds = jax.tree.map(
        lambda each: "own" if isinstance(each, Expert) else "shared",
        nnx.state(model, nnx.Param),
        is_leaf=lambda each: isinstance(each, nnx.Variable),
    )
    # The objective is the mean over ranks. The transpose of alltoall has already summed an expert's
    # gradient over all ranks' tokens: only divide it by the number of ranks.
    gradients = optax.partition(
        {
            "shared": jcc.optim.allreduce_gradients(codec=codec),
            "own": optax.scale(1 / world.size),
        },
        kinds,
    )
    optimizer = nnx.Optimizer(model, optax.chain(gradients, optax.adam(2e-3)), wrt=nnx.Param)
    while True:
        seen = train_epoch(model, optimizer, batches)
        yield {
            "loss": seen["loss"],
            "accuracy": accuracy(model, *test),
            "dropped": seen["dropped"],
        }


def load(
    world: jcc.Communicator, options: argparse.Namespace
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """This rank's training batches and test images."""
    return digits.load(world, options.batch)


def parser() -> argparse.ArgumentParser:
    """The program's options."""
    parser = digits.parser(__doc__, codec="bf16|lossless")
    parser.add_argument("--features", type=int, default=32, help="of a token (%(default)s)")
    parser.add_argument("--experts", type=int, default=1, help="per rank (%(default)s)")
    parser.add_argument("--top", type=int, default=1, choices=(1, 2), help="experts per token")
    parser.add_argument("--capacity", type=float, default=1.25, help="over an equal share")
    return parser


def main() -> None:
    """Trains without compression and with it."""
    options = parser().parse_args()
    world = jcc.init()
    data = load(world, options)
    programs = {
        "uncompressed": lambda: train(world, data, options, None),
        options.codec: lambda: train(world, data, options, options.codec),
    }
    digits.compare(world, options.epochs, programs)


if __name__ == "__main__":
    main()
