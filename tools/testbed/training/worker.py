"""One rank of a training: reduces gradients with jaxccomp or MPI, and reports step times."""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import os
import statistics
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import NamedSharding, PartitionSpec

from jaxccomp._runtime.environment import launcher
from testbed import workers
from testbed.training import common, data, models
from testbed.training.ways import OF_JAX, ONEBIT_IN_JAX, POWERSGD, Way

# Steps that are traced after the timed ones.
_TRACED = 4


def _main() -> None:
    given = common.arguments(__doc__)
    if given.way.worker == "mpi":
        _mpi(given)
    elif given.way.worker == "alone":
        _alone(given)
    elif given.way.worker == "xla":
        _xla(given)
    elif given.way.broadcasts:
        _broadcast(given)
    else:
        _jaxccomp(given)


def _init(way: Way) -> Any:
    """Initialises jaxccomp over MPI, or over UCX with `jax.distributed`."""
    import jaxccomp as jcc

    if way.transport == "ucx":
        workers.join_distributed()
        jcc.config.set("transport", "ucx")
    return jcc.init()


def _loss_of(given: argparse.Namespace) -> Callable[..., Any]:
    return lambda params, x, y: models.loss(given.task, params, x, y)


def _descend(given: argparse.Namespace, params: Any, momentum: Any, grads: Any) -> tuple[Any, Any]:
    # The gradients that `optim.dgc` returns already include the momentum.
    decay = 0 if given.way.warmup else data.MOMENTUM
    momentum = jax.tree.map(lambda m, g: decay * m + g, momentum, grads)
    rate = data.TASKS[given.task].rate
    return jax.tree.map(lambda p, m: p - rate * m, params, momentum), momentum


def _finish(given: argparse.Namespace, params: Any, found: dict[str, Any]) -> None:
    if given.loss:
        loss = jax.jit(_loss_of(given))
        pieces = zip(
            *(np.array_split(z, 20) for z in data.held_out(given.task, given.seed)), strict=True
        )
        found["loss"] = float(np.mean([loss(params, x, y) for x, y in pieces]))
    workers.say(found)


def _alone(given: argparse.Namespace) -> None:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    params = jax.tree.map(jnp.asarray, data.init(given.task, given.seed))
    state = [params, jax.tree.map(jnp.zeros_like, params)]

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params: Any, momentum: Any, x: Any, y: Any) -> Any:
        grads = jax.grad(_loss_of(given))(params, x, y)
        return _descend(given, params, momentum, grads)

    def run(x: Any, y: Any) -> None:
        state[:] = jax.block_until_ready(step(*state, x, y))

    batches = data.batches(given.task, world.rank, world.size, given.seed)
    found = common.timed(given, run, batches)  # replaces the parameters in `state`
    _finish(given, state[0], found)


def _register_onebit() -> None:
    """Registers a codec of one bit per value, computed in JAX."""
    import jaxccomp as jcc
    from jaxccomp import toolkit

    @jcc.register_codec(ONEBIT_IN_JAX)
    class Onebit:
        """A bit for each value, and the means of the positive and the negative ones."""

        whole = True

        def encode(x: Any, options: Any, key: Any) -> Any:
            x = jnp.ravel(x)
            positive = x >= 0
            count = positive.sum()
            means = [
                jnp.sum(jnp.where(chosen, x, 0)) / jnp.maximum(1, number)
                for chosen, number in ((positive, count), (~positive, x.size - count))
            ]
            return toolkit.pack(positive.astype(jnp.uint8), 1), jnp.stack(means)

        def decode(payload: Any, shape: Any, dtype: Any, options: Any) -> Any:
            bits, means = payload
            positive = toolkit.unpack(bits, 1, math.prod(shape)).reshape(shape) == 1
            return jnp.where(positive, means[0], means[1]).astype(dtype)


def _jaxccomp(given: argparse.Namespace) -> None:
    import jaxccomp as jcc

    way = given.way
    world = _init(way)
    if way.codec == ONEBIT_IN_JAX:
        _register_onebit()
    average = _average(way)
    params = jax.tree.map(jnp.asarray, data.init(given.task, given.seed))
    momentum = jax.tree.map(jnp.zeros_like, params)
    kept = jax.tree.map(jnp.zeros_like, params) if way.per_tensor else average.init(params)

    @functools.partial(jax.jit, donate_argnums=(0, 1, 2))
    def step(params: Any, momentum: Any, kept: Any, x: Any, y: Any) -> Any:
        loss, grads = jax.value_and_grad(_loss_of(given))(params, x, y)
        if way.per_tensor:
            grads, kept = _per_tensor(way, grads, kept)
        else:
            grads, kept = average.update(grads, kept)
        return *_descend(given, params, momentum, grads), kept, loss

    state = [params, momentum, kept]

    def run(x: Any, y: Any) -> None:
        state[:] = jax.block_until_ready(step(*state, x, y)[:3])

    batches = data.batches(given.task, world.rank, world.size, given.seed)
    found = common.timed(given, run, batches)
    if not given.loss:
        x, y = next(batches)
        with jcc.trace.record() as timeline:
            run(x, y)
        found |= {"coding": timeline.busy(workers.CODING), "traced": 1}
    _finish(given, state[0], found)


def _average(way: Way) -> Any:
    """The optax transformation that reduces gradients."""
    import jaxccomp as jcc

    if way.warmup:
        codec, _, density = way.codec.partition(":density=")
        return jcc.optim.dgc(data.MOMENTUM, float(density), way.warmup, codec=codec)
    if way.codec == POWERSGD:
        return jcc.optim.powersgd(rank=1)
    return jcc.optim.allreduce_gradients(
        op="mean",
        codec=way.codec,
        algorithm=way.algorithm,
        error_feedback=way.feedback,
        bucket_bytes=way.bucket_bytes or None,
        policy=[jcc.optim.Rule(way.large, min_bytes=1 << 20)] if way.large else (),
    )


def _per_tensor(way: Way, grads: Any, residual: Any) -> tuple[Any, Any]:
    """Reduces one tensor after the other, each as a whole, after the backward pass."""
    import jaxccomp as jcc

    leaves, treedef = jax.tree.flatten(jax.lax.optimization_barrier(grads))
    residuals = treedef.flatten_up_to(residual)
    algorithm = way.algorithm
    if algorithm == "auto" and way.codec != ONEBIT_IN_JAX:  # which encodes whole tensors anyway
        algorithm = f"one_shot:chunk={1 << 30}"
    for i, leaf in enumerate(leaves):
        how = {"op": "mean", "codec": way.codec, "algorithm": algorithm}
        if way.feedback:
            leaves[i], residuals[i] = jcc.allreduce_with_feedback(leaf, residuals[i], **how)
        else:
            leaves[i] = jcc.allreduce(leaf, **how)
        if i + 1 < len(leaves):
            leaves[i], leaves[i + 1] = jax.lax.optimization_barrier((leaves[i], leaves[i + 1]))
    return jax.tree.unflatten(treedef, leaves), jax.tree.unflatten(treedef, residuals)


def _broadcast(given: argparse.Namespace) -> None:
    """Rank 0 keeps exact parameters; all ranks compute with the broadcast ones."""
    import jaxccomp as jcc

    world = jcc.init()
    way = given.way
    exact = jax.tree.map(jnp.asarray, data.init(given.task, given.seed))
    momentum = jax.tree.map(jnp.zeros_like, exact)

    @functools.partial(jax.jit, donate_argnums=(0, 1, 2))
    def step(exact: Any, momentum: Any, params: Any, x: Any, y: Any) -> Any:
        grads = jax.grad(_loss_of(given))(params, x, y)
        grads = jcc.reduce(grads, "mean", root=0)
        exact, momentum = _descend(given, exact, momentum, grads)
        return exact, momentum, jcc.bcast(exact, codec=way.codec, algorithm=way.algorithm)

    state = [exact, momentum, jax.tree.map(jnp.copy, exact)]

    def run(x: Any, y: Any) -> None:
        state[:] = jax.block_until_ready(step(*state, x, y))

    batches = data.batches(given.task, world.rank, world.size, given.seed)
    found = common.timed(given, run, batches)
    same = jcc.allgather(
        jnp.stack([leaf.view(jnp.uint32).sum() for leaf in jax.tree.leaves(state[2])])
    )
    # Algorithms that re-encode at each hop may give ranks different values.
    _finish(given, state[2], found | {"identical": bool(jnp.all(same == same[0]))})


def _mpi(given: argparse.Namespace) -> None:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    params = jax.tree.map(jnp.asarray, data.init(given.task, given.seed))
    momentum = jax.tree.map(jnp.zeros_like, params)
    flat, unravel = ravel_pytree(params)
    gradients, received = (np.zeros(flat.size, np.float32) for _ in range(2))

    @jax.jit
    def backward(params: Any, x: Any, y: Any) -> Any:
        return jax.grad(_loss_of(given))(params, x, y)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def apply(params: Any, momentum: Any, total: Any) -> Any:
        return _descend(given, params, momentum, unravel(total / world.size))

    state = [params, momentum]

    def run(x: Any, y: Any) -> None:
        # Concatenate in NumPy: XLA would fuse the concatenation with the matrix products, and
        # compute these element by element.
        leaves = jax.tree.leaves(backward(state[0], x, y))
        np.concatenate([np.ravel(leaf) for leaf in leaves], out=gradients)
        workers.barrier(world)
        world.Allreduce(gradients, received)
        state[:] = jax.block_until_ready(apply(*state, received))

    batches = data.batches(given.task, world.rank, world.size, given.seed)
    found = common.timed(given, run, batches)  # replaces the parameters in `state`
    _finish(given, state[0], found)


def _xla(given: argparse.Namespace) -> None:
    """Data parallel by shardings: XLA's partitioner adds the sums of gradients."""
    way = given.way
    if way.codec not in OF_JAX:
        import jaxccomp  # noqa: F401  (connects libjaxccomp_xla with the engine)
    # Without mpi4py: in JAX's MPI mode XLA initialises MPI, which allows this only once.
    by = launcher()
    rank, size = (0, 1) if by is None else (by.rank, by.size)
    address = f"{os.environ['MASTER_ADDR']}:{os.environ.get('MASTER_PORT', '29500')}"
    jax.distributed.initialize(address, size, rank)
    mesh = jax.make_mesh((size,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    everywhere = NamedSharding(mesh, PartitionSpec())
    divided = NamedSharding(mesh, PartitionSpec("data"))

    # JAX's MPI mode makes communicators only on the main thread, where XLA runs small programs.
    sums = jax.jit(jnp.sum, out_shardings=everywhere)
    sums(
        jax.make_array_from_process_local_data(divided, np.ones(1, np.float32))
    ).block_until_ready()

    def place(tree: Any) -> Any:
        return jax.tree.map(
            lambda x: jax.make_array_from_process_local_data(everywhere, np.asarray(x)), tree
        )

    params = place(data.init(given.task, given.seed))
    state = [params, place(jax.tree.map(np.zeros_like, data.init(given.task, given.seed)))]

    @functools.partial(jax.jit, donate_argnums=(0, 1), out_shardings=everywhere)
    def step(params: Any, momentum: Any, x: Any, y: Any) -> Any:
        grads = jax.grad(_loss_of(given))(params, x, y)
        return _descend(given, params, momentum, grads)

    def run(x: Any, y: Any) -> None:
        x, y = (jax.make_array_from_process_local_data(divided, np.asarray(z)) for z in (x, y))
        state[:] = jax.block_until_ready(step(*state, x, y))

    batches = data.batches(given.task, rank, size, given.seed)
    found = common.timed(given, run, batches)
    params = jax.tree.map(lambda x: np.array(x.addressable_data(0)), state[0])
    # Equal on all ranks and, for exact codecs, for all libraries that add in the same order.
    found["checksum"] = zlib.crc32(b"".join(x.tobytes() for x in jax.tree.leaves(params)))
    if way.codec not in OF_JAX and not given.loss:
        found |= _traced(run, batches)  # replaces the parameters in `state`
    _finish(given, params, found)
    if way.codec == "mpi":
        os._exit(0)  # JAX's MPI client aborts at the interpreter's exit


def _traced(run: Callable[[Any, Any], None], batches: Any) -> dict[str, Any]:
    """Medians of a few more steps: seconds outside of XLA's sums, and coding within them."""
    import jaxccomp as jcc

    outside, coding = [], []
    for x, y in itertools.islice(batches, _TRACED):
        with jcc.trace.record(xla=True) as timeline:
            run(x, y)
        sums = [task for task in timeline.tasks if task.collective.startswith("all-reduce")]
        outside.append(timeline.seconds - sum(task.end - task.begin for task in sums))
        coding.append(timeline.busy(workers.CODING))
    median = statistics.median
    return {"outside": median(outside), "coding": median(coding), "traced": _TRACED}


if __name__ == "__main__":
    _main()
