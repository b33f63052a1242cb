"""Saved compiled and exported programs on 2 ranks: `saved_worker.py save|load FOLDER`."""

import pathlib
import pickle
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import serialize_executable

import jaxccomp as jcc

world = jcc.init()
x = jnp.arange(6.0) + 10 * world.rank
total, last = 2 * np.arange(6.0) + 10, np.arange(6.0) + 10
PROGRAMS = {
    "both": (lambda x: (jcc.allreduce(x), jcc.bcast(x, root=1)), (total, last)),
    "twice": (lambda x: (jcc.allreduce(x), jcc.allreduce(2 * x)), (total, 2 * total)),
    "once": (lambda x: (jcc.allreduce(x + 0),), (total,)),
    "rooted": (lambda x: (jcc.bcast(x, root=1),), (last,)),
}


def check(name, results):
    for result, expected in zip(results, PROGRAMS[name][1], strict=True):
        np.testing.assert_array_equal(result, expected)


def save(folder):
    for name, (program, _) in PROGRAMS.items():
        compiled = jax.jit(program).lower(x).compile()
        check(name, compiled(x))
        saved = pickle.dumps(serialize_executable.serialize(compiled))
        (folder / f"{name}.{world.rank}").write_bytes(saved)


def load(folder):
    # Each rank loads them in a different order: they are independent programs.
    order = sorted(PROGRAMS, reverse=world.rank == 0)
    loaded = {}
    for name in order:
        saved = pickle.loads((folder / f"{name}.{world.rank}").read_bytes())
        loaded[name] = serialize_executable.deserialize_and_load(*saved)
    for name in (*PROGRAMS, *PROGRAMS):
        check(name, loaded[name](x))


if __name__ == "__main__":
    globals()[sys.argv[1]](pathlib.Path(sys.argv[2]))
