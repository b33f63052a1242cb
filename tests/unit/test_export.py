"""`jax.export` of programs with collectives (docs/sharp_bits.md)."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
from golden_errors import raises

import jaxccomp as jcc


def step(x):
    return jcc.allreduce(x, op="mean", comm=jcc.world()) + 1


def test_export_refuses_collectives_with_a_reason():
    with raises(ValueError, "jaxccomp_collective", golden=False):
        jax.export.export(jax.jit(step))(jnp.ones(3))


def test_export_with_disabled_check_round_trips():
    check = jax.export.DisabledSafetyCheck.custom_call("jaxccomp_collective")
    exported = jax.export.export(jax.jit(step), disabled_checks=[check])(jnp.ones(3))
    loaded = exported
    if importlib.util.find_spec("flatbuffers"):  # JAX does not require it
        loaded = jax.export.deserialize(exported.serialize())
    np.testing.assert_array_equal(loaded.call(jnp.ones(3)), 2)
    both = jax.jit(lambda x: loaded.call(loaded.call(x)))
    np.testing.assert_array_equal(both(jnp.ones(3)), 3)
