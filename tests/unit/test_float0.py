"""Gradients by integers (dtype float0) in optimiser transformations, and weights of that dtype."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_errors import raises

import jaxccomp as jcc
from jaxccomp import errors, optim, sync
from jaxccomp._native import engine

pytest.importorskip("optax")
pytestmark = pytest.mark.skipif(not engine.available(), reason="needs the native engine")

PARAMS = {"w": jnp.ones((4, 6)), "i": jnp.ones(2, jnp.int32)}
# Constructors of the transformations in `jaxccomp.optim`, by name.
TRANSFORMATIONS = {
    "allreduce_gradients": optim.allreduce_gradients,
    "allreduce_gradients, feedback": lambda: optim.allreduce_gradients(
        codec="int8", error_feedback=True, bucket_bytes=16
    ),
    "allreduce_gradients, policy": lambda: optim.allreduce_gradients(
        error_feedback=True, policy=[optim.Rule("int8", pattern="*w"), optim.Rule("lossless", "*i")]
    ),
    "powersgd": lambda: optim.powersgd(rank=1),
    "adacomp": optim.adacomp,
    "dgc": optim.dgc,
    "ecq": optim.ecq,
    "onebit_adam": lambda: optim.onebit_adam(0.1, 2),
    "diloco": optim.diloco,
    "local_sgd": optim.local_sgd,
    "sparse_loco": optim.sparse_loco,
}
PASS = ("allreduce_gradients", "powersgd")


def gradients(params):
    return jax.grad(lambda p: (p["w"] ** 2).sum(), allow_int=True)(params)


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_transformations_pass_float0_or_refuse_integers(name, jit):
    """Each passes float0 gradients through, or refuses the integer parameter before any step."""
    transformation = TRANSFORMATIONS[name]()
    if not name.startswith(PASS):
        with raises(errors.UnsupportedDTypeError, "gradients", "floating", "int32", "optax.masked"):
            transformation.init(PARAMS)
        return

    def step(params, state):
        return transformation.update(gradients(params), state, params)

    state = transformation.init(PARAMS)
    for _ in range(2):
        updates, state = (jax.jit(step) if jit else step)(PARAMS, state)
    assert (updates["i"].dtype, updates["i"].shape) == (jax.dtypes.float0, (2,))
    assert bool(jnp.isfinite(updates["w"]).all())


def test_float0_cases_cover_every_optim_transformation():
    names = {name for name in optim.__all__ if name[0].islower()}
    others = {"resize_residuals", "stack_residuals", "unstack_residuals", "state_specs"}
    others |= {"gather_state", "state_shapes", "place_state"}
    # train_step differentiates floating parameters only.
    assert names - others - {"train_step"} == {name.split(",")[0] for name in TRANSFORMATIONS}


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_float0_arguments_of_a_program_keep_dtype_and_shape(jit):
    """float0 leaves that are arguments of a jitted program are tracers."""
    grads = gradients(PARAMS)
    reduced = (jax.jit(jcc.allreduce) if jit else jcc.allreduce)(grads)
    assert (reduced["i"].dtype, reduced["i"].shape) == (jax.dtypes.float0, (2,))
    np.testing.assert_array_equal(reduced["w"], grads["w"])


def test_float0_delta_bases_must_match_the_values():
    none = np.zeros(2, jax.dtypes.float0)
    x = {"x": jnp.ones(3), "i": none}
    result = jcc.bcast(x, ref=x, codec="lossless")
    assert result["i"].dtype == jax.dtypes.float0
    with raises(
        errors.InvalidArgumentError, "bcast", "ref['i']", "x['i']", "float0[2]", "float64[2]"
    ):
        jcc.bcast(x, ref={"x": jnp.ones(3), "i": jnp.ones(2)}, codec="lossless")


def test_recv_refuses_the_status_of_a_float0_message():
    with raises(errors.InvalidArgumentError, "recv", "with_status=True", "like="):
        jcc.recv(np.zeros(2, jax.dtypes.float0), 0, with_status=True)


def test_replicate_keeps_float0_leaves():
    tree = {"x": jnp.ones(3), "i": np.zeros(2, jax.dtypes.float0)}
    result = sync.replicate(tree)
    assert (result["i"].dtype, result["i"].shape) == (jax.dtypes.float0, (2,))


def test_publish_refuses_float0_weights():
    from jaxccomp.sync import _layout

    with raises(errors.InvalidArgumentError, "i", "float0"):
        _layout.dtype_of("i", np.zeros(2, jax.dtypes.float0))
