r"""Trains a transformer on Python's standard library, data-parallel, in one call per step.

    mpiexec -n 4 python examples/byte_transformer.py
    mpiexec -n 4 python examples/byte_transformer.py --codec topk:density=0.01 --features 256

`jaxccomp.optim.train_step` makes a training step from a loss and an optax optimizer. The step
averages gradients over the ranks in buckets, last layers first, so that communication overlaps with
the rest of the backward pass. Error feedback adds the codec's error to the next gradients. The
program trains without compression and with it, and compares the two.
"""

import argparse
import pathlib
import sysconfig
from typing import Any

import digits
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxccomp as jcc


class Block(nn.Module):
    """A transformer layer: causal attention and two dense layers."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps x of shape (batch, length, features) to the same shape."""
        mask = nn.make_causal_mask(x[..., 0])
        x = x + nn.SelfAttention(num_heads=4)(nn.LayerNorm()(x), mask)
        wide = nn.gelu(nn.Dense(4 * x.shape[-1])(nn.LayerNorm()(x)))
        return x + nn.Dense(x.shape[-1])(wide)


class Transformer(nn.Module):
    """Predicts the next byte."""

    features: int
    depth: int

    @nn.compact
    def __call__(self, text: jax.Array) -> jax.Array:
        """Logits of the byte after each byte of text, which has shape (batch, length)."""
        places = self.param("places", nn.initializers.normal(0.02), (text.shape[1], self.features))
        x = nn.Embed(256, self.features)(text) + places
        for _ in range(self.depth):
            x = Block()(x)
        return nn.Dense(256)(nn.LayerNorm()(x))


def library() -> np.ndarray:
    """The bytes of Python's standard library, in the order of file names."""
    files = sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return np.frombuffer(b"\n".join(file.read_bytes() for file in files[:100]), np.uint8)


def windows(text: np.ndarray, begins: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Pieces of the text, and for each of their bytes the next one."""
    pieces = text[begins[:, None] + np.arange(length + 1)].astype(np.int32)
    return pieces[:, :-1], pieces[:, 1:]


def train(
    world: jcc.Communicator, options: argparse.Namespace, how: dict[str, Any]
) -> digits.Results:
    """Yields after every epoch the training loss and the accuracy on held-out text."""
    text = library()
    training, test = text[: -len(text) // 10], text[-len(text) // 10 :]
    random = np.random.default_rng(world.rank)
    model = Transformer(options.features, options.depth)

    def loss_of(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        losses = optax.softmax_cross_entropy_with_integer_labels(model.apply(params, x), y)
        return jnp.mean(losses)

    @jax.jit
    def accuracy(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        logits = jnp.asarray(model.apply(params, x))
        return jcc.allreduce(jnp.mean(logits.argmax(-1) == y), "mean")

    def batch(part: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        begins = random.integers(0, len(part) - options.length - 1, count)
        return windows(part, begins, options.length)

    init, step = jcc.optim.train_step(loss_of, optax.adam(1e-3), **how)
    others = batch(test, 32)
    # All ranks start with rank 0's parameters.
    params, state = init(model.init(jax.random.key(world.rank), others[0][:1]))
    while True:
        losses = []
        for _ in range(options.steps):
            params, state, loss = step(params, state, *batch(training, options.batch))
            losses.append(loss)
        yield {"loss": jnp.stack(losses).mean(), "accuracy": accuracy(params, *others)}


def main() -> None:
    """Trains without compression and with it."""
    parser = digits.parser(__doc__, codec="int8")
    parser.add_argument("--steps", type=int, default=50, help="of an epoch (%(default)s)")
    parser.add_argument("--features", type=int, default=64, help="of a byte (%(default)s)")
    parser.add_argument("--depth", type=int, default=2, help="blocks (%(default)s)")
    parser.add_argument("--length", type=int, default=64, help="bytes of a piece (%(default)s)")
    parser.add_argument("--bucket", type=int, default=256, help="KiB (%(default)s)")
    options = parser.parse_args()
    world = jcc.init()
    bucket = options.bucket << 10
    lossy = {"codec": options.codec, "error_feedback": True, "bucket_bytes": bucket}
    programs = {
        "uncompressed": lambda: train(world, options, {"bucket_bytes": bucket}),
        options.codec: lambda: train(world, options, lossy),
    }
    digits.compare(world, options.epochs, programs)


if __name__ == "__main__":
    main()
