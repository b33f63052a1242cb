r"""Trains a recommendation model (DLRM): embeddings travel by alltoallv, gradients by allreduce.

    mpiexec -n 4 python examples/dlrm.py
    mpiexec -n 4 python examples/dlrm.py --codec int8 --tables 13

The model predicts clicks from a few numbers and many categories; each category has a table of
vectors (DLRM: Naumov et al. 2019, arXiv 1906.00091). The tables together are too large for one
process: each table belongs to one rank, which looks up the vectors for the examples of all ranks.
`jaxccomp.alltoallv` sends the vectors to the examples' ranks; the numbers of tables may differ
between ranks. The cotangents return the same way with the same codec. The dense layers are
replicated, and their gradients averaged.

The program trains without compression and with it, and compares the two.
"""

import argparse
from typing import Any

import digits
import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxccomp as jcc

NUMBERS = 8  # per example


def clicks(count: int, tables: int, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers, categories and clicks of ``count`` examples, the same on all ranks.

    Frequencies of categories follow Zipf's law; each category makes a click more or less likely.
    """
    random = np.random.default_rng(0)
    numbers = random.standard_normal((count, NUMBERS)).astype(np.float32)
    categories = np.minimum(random.zipf(1.3, (count, tables)) - 1, rows - 1).astype(np.int32)
    liked = random.standard_normal((tables, rows)) * np.sqrt(8 / tables)
    score = liked[np.arange(tables), categories].sum(1) + numbers @ random.standard_normal(NUMBERS)
    return numbers, categories, (score > 0).astype(np.float32)


def dense(key: jax.Array, *sizes: int) -> list[tuple[jax.Array, jax.Array]]:
    """Parameters of a perceptron with these layer sizes."""
    keys = jax.random.split(key, len(sizes))
    normal = jax.nn.initializers.he_normal()
    pairs = zip(keys, sizes[:-1], sizes[1:], strict=False)
    return [(normal(k, (a, b)), jnp.zeros(b)) for k, a, b in pairs]


def perceptron(layers: list[tuple[jax.Array, jax.Array]], x: jax.Array) -> jax.Array:
    """The output of a perceptron, without a nonlinearity at the end."""
    for kernel, bias in layers[:-1]:
        x = jax.nn.relu(x @ kernel + bias)
    kernel, bias = layers[-1]
    return x @ kernel + bias


def tables_of(rank: int, ranks: int, options: argparse.Namespace) -> np.ndarray:
    """The numbers of a rank's tables."""
    return np.arange(rank, options.tables, ranks)


def init(world: jcc.Communicator, options: argparse.Namespace) -> dict[str, Any]:
    """Parameters: "shared" ones, the same on all ranks, and this rank's "own" tables."""
    keys = jax.random.split(jax.random.key(0), 3)
    width, features, tables = options.width, options.features, options.tables
    pairs = (tables + 1) * tables // 2
    shared = {
        "bottom": dense(keys[0], NUMBERS, width, features),
        "top": dense(keys[1], features + pairs, width, 1),
    }
    own = [jax.random.fold_in(keys[2], t) for t in tables_of(world.rank, world.size, options)]
    rows = jnp.stack([0.1 * jax.random.normal(key, (options.rows, features)) for key in own])
    return {"shared": shared, "own": rows}


def logits_of(
    params: Any,
    numbers: jax.Array,
    categories: jax.Array,
    world: jcc.Communicator,
    options: argparse.Namespace,
    codec: str | None,
) -> jax.Array:
    """Logits of this rank's examples.

    Args:
      params: result of `init`.
      numbers: this rank's numbers, (batch, NUMBERS).
      categories: categories of all ranks' examples, (ranks * batch, tables of this rank), rank 0's
        first.
      world: all ranks.
      options: the program's options.
      codec: the codec of the exchange.
    """
    batch, features = len(numbers), options.features
    held = [len(tables_of(rank, world.size, options)) for rank in range(world.size)]
    found = params["own"][jnp.arange(held[world.rank]), categories]
    counts = [[batch * tables] * world.size for tables in held]
    arrived = jcc.alltoallv(found.reshape(-1, features), counts, codec=codec)
    blocks = jnp.split(arrived, np.cumsum(batch * np.array(held))[:-1])
    parts = [block.reshape(batch, -1, features) for block in blocks]

    bottom = perceptron(params["shared"]["bottom"], numbers)
    vectors = jnp.concatenate([bottom[:, None], *parts], axis=1)
    products = jnp.einsum("bif,bjf->bij", vectors, vectors)
    first, second = np.triu_indices(vectors.shape[1], 1)
    top = jnp.concatenate([bottom, products[:, first, second]], axis=1)
    return perceptron(params["shared"]["top"], top)[:, 0]


def train(
    world: jcc.Communicator, data: Any, options: argparse.Namespace, codec: str | None
) -> digits.Results:
    """Yields loss and accuracy after every epoch."""
    batches, test = data

    def loss_of(
        params: Any, numbers: jax.Array, categories: jax.Array, clicked: jax.Array
    ) -> jax.Array:
        logits = logits_of(params, numbers, categories, world, options, codec)
        return jnp.mean(optax.sigmoid_binary_cross_entropy(logits, clicked))

    # The objective is the mean over ranks. The transpose of alltoallv has already summed a table's
    # gradient over all ranks' examples: only divide it by the number of ranks.
    gradients = optax.partition(
        {
            "shared": jcc.optim.allreduce_gradients(codec=codec),
            "own": optax.scale(1 / world.size),
        },
        {"shared": "shared", "own": "own"},
    )
    optimizer = optax.chain(gradients, optax.adam(2e-3))

    @jax.jit
    def train_epoch(params: Any, state: Any) -> tuple[Any, Any, jax.Array]:
        def step(carry: Any, batch: Any) -> tuple[Any, jax.Array]:
            params, state = carry
            loss, grads = jax.value_and_grad(loss_of)(params, *batch)
            updates, state = optimizer.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), loss

        (params, state), losses = jax.lax.scan(step, (params, state), batches)
        return params, state, jcc.allreduce(losses.mean(), "mean")

    @jax.jit
    def accuracy(params: Any) -> jax.Array:
        numbers, categories, clicked = test
        logits = logits_of(params, numbers, categories, world, options, codec)
        return jcc.allreduce(jnp.mean((logits > 0) == clicked), "mean")

    params = init(world, options)
    state = optimizer.init(params)
    while True:
        params, state, loss = train_epoch(params, state)
        yield {"loss": loss, "accuracy": accuracy(params)}


def load(world: jcc.Communicator, options: argparse.Namespace) -> tuple[Any, Any]:
    """This rank's training batches and test batch."""
    tests = 500
    steps = 4000 // (options.batch * world.size)
    count = (steps * options.batch + tests) * world.size
    numbers, categories, clicked = clicks(count, options.tables, options.rows)
    categories = categories[:, tables_of(world.rank, world.size, options)]
    split = steps * options.batch * world.size

    def shares(begin: int, end: int, batch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        mine = slice(world.rank * batch, (world.rank + 1) * batch)
        by_step = [
            x[begin:end].reshape(-1, world.size * batch, *x.shape[1:])
            for x in (numbers, categories, clicked)
        ]
        return by_step[0][:, mine], by_step[1], by_step[2][:, mine]

    return shares(0, split, options.batch), [x[0] for x in shares(split, count, tests)]


def parser() -> argparse.ArgumentParser:
    """The program's options."""
    parser = digits.parser(__doc__, codec="bf16")
    parser.add_argument("--tables", type=int, default=6, help="of all ranks (%(default)s)")
    parser.add_argument("--rows", type=int, default=1000, help="of a table (%(default)s)")
    parser.add_argument("--features", type=int, default=16, help="of a row (%(default)s)")
    return parser


def main() -> None:
    """Trains without compression and with it."""
    options = parser().parse_args()
    world = jcc.init()
    if options.tables < world.size:
        parser().error(f"--tables must be at least the {world.size} ranks")
    data = load(world, options)
    programs = {
        "uncompressed": lambda: train(world, data, options, None),
        options.codec: lambda: train(world, data, options, options.codec),
    }
    digits.compare(world, options.epochs, programs)


if __name__ == "__main__":
    main()
