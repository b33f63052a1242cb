r"""Trains a transformer over slow links with DiLoCo, local SGD or SparseLoCo.

    mpiexec -n 4 python examples/diloco.py
    mpiexec -n 4 python examples/diloco.py --form streaming --every 30 --codec int4
    python examples/diloco.py --coordinator host:1234 --processes 4 --process 0    # and 1, 2, 3

Each rank trains on its own; every ``--every`` steps all ranks exchange their changes of the
parameters. The program prints the loss and the bytes sent for each outer step, and at the end the
bytes that averaging raw gradients in every step would send. The last command needs no MPI: values
then travel over UCX (docs/jax_distributed.md).
"""

import argparse
from collections.abc import Iterator
from typing import Any

import byte_transformer
import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxccomp as jcc


def outer_steps(options: argparse.Namespace) -> jcc.optim.Outer:
    """The outer optimizer that ``--form`` names."""
    if options.form == "sparse_loco":
        return jcc.optim.sparse_loco(density=options.density)
    make = jcc.optim.local_sgd if options.form == "local_sgd" else jcc.optim.diloco
    return make(codec=options.codec, error_feedback=True)


def train(world: jcc.Communicator, options: argparse.Namespace) -> Iterator[tuple[jax.Array, Any]]:
    """Yields the loss and the parameters after every outer step."""
    text = byte_transformer.library()
    random = np.random.default_rng(world.rank)
    model = byte_transformer.Transformer(options.features, options.depth)
    optimizer = optax.adamw(2e-3)

    @jax.jit
    def inner_step(
        params: Any, state: Any, x: jax.Array, y: jax.Array
    ) -> tuple[Any, Any, jax.Array]:
        def loss_of(params: Any) -> jax.Array:
            logits = model.apply(params, x)
            return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, y))

        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    def batch() -> tuple[np.ndarray, np.ndarray]:
        begins = random.integers(0, len(text) - options.length - 1, options.batch)
        return byte_transformer.windows(text, begins, options.length)

    params = model.init(jax.random.key(world.rank), batch()[0][:1])
    # All ranks start with rank 0's parameters. Do not count this broadcast.
    params = jax.block_until_ready(jcc.bcast(params, root=0, codec="lossless"))
    jcc.stats.reset()
    inner, outer = optimizer.init(params), outer_steps(options)
    streaming = None
    if options.form == "streaming":
        streaming = jcc.optim.Streaming(outer, options.every, fragments=3, delay=options.delay)
    step = jax.jit(outer.step)
    state: Any = (streaming or outer).init(params)
    for number in range(options.outer_steps):
        losses = []
        for _ in range(options.every):
            params, inner, loss = inner_step(params, inner, *batch())
            losses.append(loss)
            if streaming:
                params, state = streaming.step(params, state)
        if not streaming:
            params, state = step(params, state)
        elif number == options.outer_steps - 1:
            params, state = streaming.finish(params, state)
        yield jnp.stack(losses).mean(), params


def main() -> None:
    """Trains, and prints a line for each outer step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    forms = ["diloco", "local_sgd", "sparse_loco", "streaming"]
    parser.add_argument("--form", choices=forms, default="diloco", help="(%(default)s)")
    parser.add_argument("--codec", default="int8", help="but of sparse_loco (%(default)s)")
    parser.add_argument("--density", type=float, default=1 / 64, help="of sparse_loco")
    parser.add_argument("--every", type=int, default=30, help="inner steps (%(default)s)")
    parser.add_argument("--delay", type=int, default=5, help="of streaming (%(default)s)")
    parser.add_argument("--outer-steps", type=int, default=10, help="default: %(default)s")
    parser.add_argument("--batch", type=int, default=16, help="pieces per rank (%(default)s)")
    parser.add_argument("--features", type=int, default=64, help="of a byte (%(default)s)")
    parser.add_argument("--depth", type=int, default=2, help="blocks (%(default)s)")
    parser.add_argument("--length", type=int, default=64, help="bytes of a piece (%(default)s)")
    parser.add_argument("--coordinator", help="host:port of process 0, without MPI")
    parser.add_argument("--processes", type=int, help="how many, with --coordinator")
    parser.add_argument("--process", type=int, help="which one this is, with --coordinator")
    options = parser.parse_args()
    if options.coordinator:
        jax.distributed.initialize(options.coordinator, options.processes, options.process)
    world = jcc.init()
    before = 0
    for number, (loss, params) in enumerate(train(world, options), 1):
        jax.block_until_ready(params)  # wait until everything has been sent
        sent = jcc.stats.get().total.sent_bytes - before
        mean = float(jcc.allreduce(loss, "mean"))
        before = jcc.stats.get().total.sent_bytes
        if world.rank == 0:
            print(f"outer step {number}: loss {mean:.3f}, sent {sent} bytes", flush=True)
    rows = jcc.allgather(jnp.concatenate([x.ravel() for x in jax.tree.leaves(params)]))
    print(f"rank {world.rank}: the same on all ranks: {bool((rows == rows[:1]).all())}")
    if world.rank == 0:
        # Bytes that a ring allreduce sends for float32 gradients.
        dense = options.every * 2 * 4 * rows.shape[1] * (world.size - 1) / world.size
        print(f"every step uncompressed, {options.every} steps: {dense:.0f} bytes")


if __name__ == "__main__":
    main()
