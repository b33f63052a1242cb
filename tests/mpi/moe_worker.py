"""Compares the example's mixture of experts with a single program with all experts.

`mpiexec -n 2 python moe_worker.py EXAMPLES`; every rank prints "equal" or fails.
"""

import argparse
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import jaxccomp as jcc


def close(one, two):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-5), one, two)


def main(examples):
    sys.path.insert(0, examples)
    import digits
    import moe_alltoall as moe

    world = jcc.init()
    options = argparse.Namespace(features=8, width=12, experts=2, top=2, capacity=0.9)
    model = moe.Network(world, options, None, nnx.Rngs(0))

    # The same with all experts on this rank: no token is sent.
    alone = types.SimpleNamespace(size=1, rank=0)
    options.experts *= world.size
    whole = moe.Network(alone, options, None, nnx.Rngs(0))
    experts = jcc.allgather(nnx.state(model, moe.Expert))
    nnx.update(whole, jax.tree.map(jnp.concatenate, experts))
    whole.experts.exchange = lambda x: x

    (images, labels), _ = digits.load(world, 16)
    derive = nnx.jit(nnx.grad(moe.loss_of, has_aux=True))
    grads, seen = derive(model, images[0], labels[0])
    expected, expected_seen = derive(whole, images[0], labels[0])
    assert seen["dropped"] > 0  # the capacity is exceeded
    close(seen, expected_seen)

    own, shared = nnx.split_state(grads, moe.Expert, nnx.Param)
    all_experts, expected_shared = nnx.split_state(expected, moe.Expert, nnx.Param)
    total = jcc.allreduce(all_experts)
    mine = slice(world.rank * 2, world.rank * 2 + 2)
    close(nnx.as_pure(own), jax.tree.map(lambda each: each[mine], nnx.as_pure(total)))
    close(nnx.as_pure(shared), nnx.as_pure(expected_shared))
    print("equal", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
