"""Reinforcement learning: actors play with the latest weights, trainers learn from their games.

    mpiexec -n 4 python examples/weight_sync.py
    mpiexec -n 4 python examples/weight_sync.py --trainers 2 --learning-rate 1e-4

The first ranks train a policy by REINFORCE (Williams 1992), the others are actors. The two groups
run different programs, and communicate in two ways. Actors send batches with `jaxccomp.send`, in
program order. Trainers publish bfloat16 weights with `jaxccomp.sync`, in the background of both
programs. An actor never waits for weights after the first: between batches it takes the latest.

The game: a state is 32 numbers; a hidden rule maps it to the right one of 8 actions.
"""

import argparse
import itertools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxccomp as jcc
from jaxccomp import sync

STATES, ACTIONS = 32, 8


def init_policy(width: int) -> dict[str, Any]:
    """Weights of a network with two hidden layers."""
    normal = jax.nn.initializers.lecun_normal()
    sizes = [STATES, width, width, ACTIONS]
    keys = jax.random.split(jax.random.key(0), len(sizes))
    return {
        f"layer{i}": {"kernel": normal(keys[i], (n, m)), "bias": jnp.zeros(m)}
        for i, (n, m) in enumerate(itertools.pairwise(sizes))
    }


def logits_of(params: Any, states: jax.Array) -> jax.Array:
    """Logits of each action, for states (batch, STATES)."""
    for i in range(len(params)):
        layer = params[f"layer{i}"]
        states = states @ layer["kernel"] + layer["bias"]
        states = jax.nn.tanh(states) if i + 1 < len(params) else states
    return states.astype(jnp.float32)


@jax.jit
def play(params: Any, key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """A batch of states, the actions that the policy draws for them, and their rewards."""
    state_key, action_key = jax.random.split(key)
    states = jax.random.normal(state_key, (256, STATES))
    actions = jax.random.categorical(action_key, logits_of(params, states))
    rule = jax.random.normal(jax.random.key(7), (STATES, ACTIONS))
    rewards = (actions == jnp.argmax(states @ rule, axis=1)).astype(jnp.float32)
    return states, actions, rewards


def policy_loss(params: Any, seen: Any) -> jax.Array:
    """The loss of REINFORCE: rewards above their mean make an action likelier."""
    states, actions, rewards = seen
    chosen = jax.nn.log_softmax(logits_of(params, states))
    chosen = jnp.take_along_axis(chosen, actions[:, None], axis=1)[:, 0]
    return -jnp.mean((rewards - rewards.mean()) * chosen)


def train(world: jcc.Communicator, group: jcc.Communicator, options: argparse.Namespace) -> None:
    """Learns from the batches of this trainer's actors, and publishes the weights."""
    ordered = world.duplicate("batches").ordered()
    params = init_policy(options.width)
    optimizer = optax.adam(options.learning_rate)
    state = optimizer.init(params)

    @jax.jit
    def update(params: Any, state: Any, seen: Any) -> tuple[Any, Any]:
        seen = jax.tree.map(lambda *batches: jnp.concatenate(batches), *seen)
        grads = jcc.allreduce(jax.grad(policy_loss)(params, seen), op="mean", comm=group)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state

    actors = actors_of(world, group.rank, options)
    like = (jax.eval_shape(play, params, jax.random.key(0)), jnp.int32(0))
    like = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
    rewards, behind = [], []
    with sync.Publisher(params, dtype=jnp.bfloat16) as publisher:
        for version in range(1, options.steps + 1):
            publisher.publish(params)
            came = [jcc.recv(like, source, comm=ordered) for source in actors]
            seen, played = zip(*came, strict=True)
            params, state = update(params, state, seen)
            rewards.append(float(np.mean([batch[2] for batch in seen])))
            behind += [version - int(each) for each in played]
        publisher.flush()
        sent = jcc.stats.get().operations["bcast"].sent_bytes
    if group.rank == 0:
        full = options.steps * sum(2 * leaf.size for leaf in jax.tree.leaves(params))
        tenth = max(1, options.steps // 10)
        print(
            f"reward {np.mean(rewards[:tenth]):.3f} at first, {np.mean(rewards[-tenth:]):.3f} in "
            f"the end; {options.steps} versions of {full / options.steps / 2**20:.3f} MiB, "
            f"sent {sent / 2**20:.2f} MiB, ratio {full / max(sent, 1):.1f}; "
            f"weights played with are {np.mean(behind):.2f} versions old",
            flush=True,
        )


def actors_of(world: jcc.Communicator, trainer: int, options: argparse.Namespace) -> range:
    """The ranks that send to this trainer."""
    return range(options.trainers + trainer, world.size, options.trainers)


def act(world: jcc.Communicator, options: argparse.Namespace) -> None:
    """Plays with the latest weights, batch after batch."""
    ordered = world.duplicate("batches").ordered()
    trainer = (world.rank - options.trainers) % options.trainers
    shapes = jax.eval_shape(lambda: init_policy(options.width))
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16), shapes)
    with sync.Receiver(like) as receiver:
        ages = []
        receiver.wait()  # wait for the first version
        for step in range(options.steps):
            weights = receiver.latest()
            ages.append(time.time() - weights.published_at)
            seen = play(weights.params, jax.random.fold_in(jax.random.key(world.rank), step))
            jcc.send((seen, jnp.int32(weights.version)), dest=trainer, comm=ordered)
    print(f"rank {world.rank}: weights are {1e3 * np.median(ages):.1f} ms old", flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trainers", type=int, default=1, help="ranks that train")
    parser.add_argument("--steps", type=int, default=400, help="updates, and batches of each actor")
    parser.add_argument("--width", type=int, default=256, help="of the hidden layers")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    options = parser.parse_args()
    world = jcc.init()
    if not 1 <= options.trainers <= world.size // 2:
        parser.error(f"of {world.size} ranks 1 to {world.size // 2} can train")
    trains = world.rank < options.trainers
    group = world.split(int(trains))
    assert group is not None  # every rank is in one of the groups
    if trains:
        train(world, group, options)
    else:
        act(world, options)


if __name__ == "__main__":
    main()
