"""A member of a group whose outer steps have a late rank: `quorum_worker.py CASE`."""

import hashlib
import json
import os
import signal
import sys
import time

import jax
import numpy as np

import jaxccomp as jcc
from jaxccomp import optim

RANK = int(os.environ["JAXCCOMP_RANK"])
LATE = int(os.environ.get("LATE", "2"))
GRACE_SECONDS = 0.5
CODED = [optim.Rule(codec="int8", from_step=2), optim.Rule(codec="bf16")]


def bits(state):
    """Return a hash of the state that is equal on all participants of a step."""
    leaves = jax.tree.leaves((state.outer.params, state.outer.optimizer))
    return hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in leaves)).hexdigest()


def tell(what, quorum, params, state, begun):
    found = {"processes": quorum.participants, "count": int(state.count), "bits": bits(state)}
    found["w"] = np.asarray(params["w"]).ravel()[:1].tolist()
    found["seconds"] = time.monotonic() - begun
    print(what, json.dumps(found), flush=True)


def late(outer, learn):
    """One rank misses the second step; all ranks take part in the third."""
    world = jcc.init()
    quorum = optim.Quorum(outer, fraction=0.6, grace_seconds=GRACE_SECONDS)
    params = {"w": np.zeros((4, 700), np.float32), "b": np.zeros(3, np.float32)}
    state = quorum.init(params)
    for what in ("first", "second", "third"):
        moved = learn(params, what)
        if what == "second" and world.rank == LATE:
            print("late now", flush=True)
            sys.stdin.readline()
            what = "third"  # noqa: PLW2901 - this rank has missed the second step
        begun = time.monotonic()
        params, state = quorum.step(moved, state, wait_for_all=what != "second")
        tell(what, quorum, params, state, begun)
        if what == "third":
            return {"done": True}


def by_rank(params, what):
    return jax.tree.map(lambda x: np.asarray(x) + np.float32(RANK + 1), params)


def at_random(params, what):
    random = np.random.default_rng((RANK, len(what)))
    return jax.tree.map(lambda x: x + random.normal(size=x.shape).astype("f4"), params)


def exact():
    return late(optim.local_sgd(), by_rank)


def coded():
    return late(optim.diloco(policy=CODED, error_feedback=True), at_random)


def sparse():
    return late(optim.sparse_loco(density=0.1), at_random)


def lost():
    """One rank is killed before the second step; the others shrink and continue."""
    comm = jcc.init()
    quorum = optim.Quorum(optim.diloco(), grace_seconds=0.0)
    params = {"w": np.zeros(700, np.float32)}
    state = quorum.init(params)
    while int(state.count) < 4:
        moved = by_rank(params, "")
        if int(state.count) == 1 and RANK == LATE:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            params, state = quorum.step(moved, state, comm)
        except (jcc.errors.JaxccompError, jax.errors.JaxRuntimeError) as error:
            print("error", str(error).replace("\n", " "), flush=True)
            comm = comm.shrink()
    return {"processes": quorum.participants, "bits": bits(state), "w": float(params["w"][0])}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()), flush=True)
