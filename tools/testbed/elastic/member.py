"""A member of the elastic group: repeats local steps and a mean over members; survives faults.

Each member has a part of the data of a convex problem. A member prints a line for each outer step,
and for each failure that it notices.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxccomp as jcc
from jaxccomp import sync
from testbed import workers

FEATURES, ROWS = 64, 256


@functools.partial(jax.jit, static_argnames="comm")
def averaged(params: Any, comm: jcc.Communicator) -> Any:
    """The mean over the members, bit-identical on all."""
    return jcc.allreduce(params, op="mean", comm=comm, codec="lossless")


@jax.jit
def moved(params: Any, x: jax.Array, y: jax.Array) -> Any:
    """One step of gradient descent on this member's data; the loss does not use "ballast"."""
    gradient = jax.grad(lambda p: jnp.mean((x @ p["w"] + p["b"] - y) ** 2))(params)
    return jax.tree.map(lambda p, g: p - 0.02 * g, params, gradient)


def data(part: int) -> tuple[jax.Array, jax.Array]:
    """A part of the data of a problem with one solution, with noise."""
    truth = np.random.default_rng(0).normal(size=FEATURES)
    random = np.random.default_rng(1 + part)
    x = random.normal(size=(ROWS, FEATURES))
    y = x @ truth + 1 + 0.1 * random.normal(size=ROWS)
    return jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)


def loss(params: Any, parts: int) -> float:
    """The loss over all data."""
    errors = [x @ params["w"] + params["b"] - y for x, y in map(data, range(parts))]
    return float(np.mean(np.concatenate([np.asarray(e) for e in errors]) ** 2))


def hash_of(params: Any) -> str:
    """A hash of all bits."""
    digest = hashlib.blake2b(digest_size=8)
    for leaf in jax.tree.leaves(params):
        digest.update(np.asarray(leaf).tobytes())
    return digest.hexdigest()


def newest(state: Any, comm: jcc.Communicator) -> Any:
    """Replicate the state of the member with the most steps to all members."""
    steps = np.asarray(jcc.allgather(np.int32(state["step"]), comm=comm.ordered()))
    return sync.replicate(state, root=int(steps.argmax()), comm=comm)


def regrouped(comm: jcc.Communicator) -> jcc.Communicator:
    """The communicator of the surviving members; exits if this process is not among them."""
    while True:
        try:
            left = comm.shrink()
            workers.say({"t": time.time(), "shrunk": list(left.processes)})
            return left
        except jcc.errors.CutOffError as error:
            workers.say({"t": time.time(), "cut_off": str(error)[:200]})
            raise SystemExit(3) from None
        except jcc.errors.InitializationError as error:
            workers.say({"t": time.time(), "failed": str(error)[:300]})


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--part", type=int, required=True, help="of the data")
    parser.add_argument("--parts", type=int, required=True)
    parser.add_argument("--until", type=float, required=True, help="Unix time of the end")
    parser.add_argument("--inner", type=int, default=10, help="steps between two means")
    parser.add_argument("--pause", type=float, default=0.1, help="seconds to sleep before a mean")
    parser.add_argument("--values", type=int, default=1 << 18, help="float32 values of ballast")
    given = parser.parse_args()
    x, y = data(given.part)
    params = {"w": jnp.zeros(FEATURES), "b": jnp.zeros(()), "ballast": jnp.zeros(given.values)}
    state: Any = {"params": params, "step": jnp.int32(0)}
    jax.block_until_ready(moved(params, x, y))  # compile before joining
    comm = jcc.init()
    workers.say({"t": time.time(), "joined": list(comm.processes)})
    same = False  # whether all members are known to have the same state
    ends = False
    while not ends:
        try:
            if not same:
                state, same = newest(state, comm), True
            grown = comm.admit()
            if grown is not comm:
                comm, same = grown, False
                continue
            local = state["params"]
            for _ in range(given.inner):
                local = moved(local, x, y)
            time.sleep(given.pause)
            late = np.float32(time.time() > given.until)
            params, any_late = averaged((local, late), comm=comm)
            ends = bool(any_late > 0)
            state = {"params": jax.block_until_ready(params), "step": state["step"] + 1}
            done = {"step": int(state["step"]), "hash": hash_of(params)}
            workers.say({"t": time.time(), "members": list(comm.processes), **done})
        except jcc.errors.CutOffError as error:
            workers.say({"t": time.time(), "cut_off": str(error)[:200]})
            raise SystemExit(3) from None
        except Exception as error:  # noqa: BLE001 - a failure of another member
            workers.say({"t": time.time(), "failed": str(error)[:300]})
            same = False
            comm = regrouped(comm)
    workers.say({"t": time.time(), "loss": loss(state["params"], given.parts)})


if __name__ == "__main__":
    main()
