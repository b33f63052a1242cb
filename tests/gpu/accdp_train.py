"""A rank of accdp.py: trains a model of models.py data-parallel, and reports its throughput.

    python -m jaxccomp tune ranks-per-gpu accdp_train.py MODEL --batch {batch} --replicas {replicas}

Every rank keeps its own copy of the parameters and averages gradients with the other ranks
(`jaxccomp.allreduce`). With replicas, a process has several copies under `vmap`, and averages over
these, too. The throughput is the median over windows of steps, without compilation.
"""

from __future__ import annotations

import argparse
import statistics
import time

import jax
import jax.numpy as jnp
import models

import jaxccomp as jcc

BATCHES = 4  # used in turns
RATE, MOMENTUM = 0.001, 0.9


def make_step(model: models.Model, replicas: int):
    """A step of gradient descent with momentum: (params, velocity, inputs, labels) to (params,
    velocity, loss). With replicas all except the loss have a leading replica axis."""

    def step(params, velocity, inputs, labels):
        grads_of = jax.value_and_grad(model.loss)
        if replicas > 1:
            loss, grads = jax.vmap(grads_of)(params, inputs, labels)
            grads = jax.tree.map(lambda g: jnp.broadcast_to(g.mean(0), g.shape), grads)
            loss = loss.mean()
        else:
            loss, grads = grads_of(params, inputs, labels)
        if jcc.world().size > 1:
            # All replicas have the same gradients: reduce one copy.
            if replicas > 1:
                mean = jcc.allreduce(jax.tree.map(lambda g: g[0], grads), "mean")
                grads = jax.tree.map(lambda m, g: jnp.broadcast_to(m, g.shape), mean, grads)
            else:
                grads = jcc.allreduce(grads, "mean")
        velocity = jax.tree.map(lambda v, g: MOMENTUM * v + g, velocity, grads)
        return jax.tree.map(lambda p, v: p - RATE * v, params, velocity), velocity, loss

    return jax.jit(step, donate_argnums=(0, 1))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=models.MODELS)
    parser.add_argument("--batch", type=int, required=True, help="of each replica")
    parser.add_argument("--replicas", type=int, default=1, help="in this process")
    parser.add_argument("--seconds", type=float, default=3.0, help="default: %(default)s")
    asked = parser.parse_args()
    world, model = jcc.init(), models.MODELS[asked.model]
    front = (asked.replicas,) if asked.replicas > 1 else ()
    params = model.make(jax.random.key(0))  # the same on all ranks
    params = jax.tree.map(lambda p: jnp.broadcast_to(p, (*front, *p.shape)), params)
    params = jax.tree.map(jnp.array, params)
    velocity = jax.tree.map(jnp.zeros_like, params)
    count = asked.batch * asked.replicas
    batches = []
    for number in range(BATCHES):
        inputs, labels = model.data(count, seed=number * world.size + world.rank)
        batch = [each.reshape(*front, asked.batch, *each.shape[1:]) for each in (inputs, labels)]
        batches.append(batch if model.from_host else jax.device_put(batch))
    step, done = make_step(model, asked.replicas), 0

    def train(steps: int) -> float:
        """Runs ``steps`` steps; returns their seconds."""
        nonlocal params, velocity, done
        start = time.perf_counter()
        for _ in range(steps):
            inputs, labels = batches[done % BATCHES]
            params, velocity, loss = step(params, velocity, inputs, labels)
            done += 1
        loss = float(loss)  # wait for all steps
        if not loss < 1e4:
            raise SystemExit(f"the loss is {loss}")
        return time.perf_counter() - start

    train(3)
    # All ranks run the same number of steps: a fifth of the time on the slowest rank.
    once = train(5) / 5
    steps = max(int(asked.seconds / 5 / once), 2)
    steps = int(jcc.allreduce(jnp.int32(steps), "min")) if world.size > 1 else steps
    rates = [steps * count / train(steps) for _ in range(5)]
    jcc.launch.report_throughput(statistics.median(rates))


if __name__ == "__main__":
    main()
