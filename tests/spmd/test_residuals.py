"""With error feedback the delivered values and the residuals add up to the input."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract.lossy import lossy_codecs
from golden_errors import raises
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxccomp as jcc
from jaxccomp import optim
from jaxccomp._native import engine

pytestmark = pytest.mark.skipif(not engine.available(), reason="needs the native engine")

N = 3
STEPS = 5
SHAPE = (N, 300)  # also rows for reduce_scatter
FLOATS = ("bfloat16", "float16", "float32", "float64")
OF_XLA = ("bf16", "int4", "onebit", "topk")


CODECS = lossy_codecs()


def on_ranks(function, *operands):
    mesh = jax.make_mesh((N,), ("d",), (AxisType.Auto,), devices=np.array(jax.devices()[:N]))

    def body(*rows):
        results = function(*(row[0] for row in rows))
        return jax.tree.map(lambda x: x[None], results)

    return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=P("d")))(*operands)


def gradients(dtype):
    """Returns gradients by rank and step: a few large values, and a small constant part."""
    rng = np.random.default_rng(5)
    large = rng.standard_normal((N, STEPS, *SHAPE)) * (rng.random((N, STEPS, *SHAPE)) < 0.05)
    return np.asarray(jnp.asarray(large + 2.0**-11, dtype))


def missing(grads, delivered, residual, op, scatters):
    """Returns the largest difference, relative to the largest value."""
    merge = {"sum": np.sum, "mean": np.mean}[op]
    expected = merge(grads.astype("float64").sum(axis=1) - residual.astype("float64"), axis=0)
    total = delivered.astype("float64").sum(axis=1)
    for rank in range(N):
        wanted = expected[rank] if scatters else expected
        assert np.isfinite(total[rank]).all()
        yield np.abs(total[rank] - wanted).max() / np.abs(grads.astype("float64")).max()


def steps(operation, grads, start_dtype):
    def program(grads):
        start = jax.lax.pcast(jnp.zeros(SHAPE, start_dtype), "d", to="varying")
        residual, delivered = jax.lax.scan(lambda r, g: operation(g, r)[::-1], start, grads)
        return delivered, residual

    return jax.tree.map(np.asarray, on_ranks(program, grads))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("codec", CODECS)
def test_delivered_values_and_residual_sum_to_the_total(codec, dtype):
    grads = gradients(dtype)
    ways = [("allreduce", "mean", "auto", {}), ("reduce_scatter", "sum", "auto", {})]
    ways += [("allreduce", "sum", "one_shot", {}), ("reduce_scatter", "mean", "ring", {})]
    if codec in OF_XLA:
        ways += [("allreduce", "mean", "auto", {"backend": "xla"})]
        ways += [("reduce_scatter", "sum", "auto", {"backend": "xla"})]
    for collective, op, algorithm, how in ways:
        operation = functools.partial(
            getattr(jcc, f"{collective}_with_feedback"),
            op=op,
            codec=codec,
            algorithm=algorithm,
            axis_name="d",
            **how,
        )
        try:
            delivered, residual = steps(operation, grads, "float32")
        except jcc.errors.EngineUnavailableError:
            pytest.skip(f"needs the library of {codec}")
        place = collective, op, algorithm, how
        assert delivered.dtype == grads.dtype and residual.dtype == np.float32, place
        scatters = collective == "reduce_scatter"
        unit = float(np.finfo(np.float32).eps)
        worst = max(missing(grads, delivered, residual, op, scatters))
        assert worst < 50 * unit, (place, worst)


TRANSFORMATIONS = {
    "allreduce_gradients": functools.partial(
        optim.allreduce_gradients, codec="topk:density=0.05", error_feedback=True
    ),
    "powersgd": functools.partial(optim.powersgd, min_ratio=0.0),
    "dgc": functools.partial(optim.dgc, momentum=0.0, density=0.05),
    "ecq": functools.partial(optim.ecq, strength=1.0, decay=1.0, codec="int2"),
    "adacomp": optim.adacomp,
    "onebit_adam": functools.partial(optim.onebit_adam, 0.1, warmup_steps=2),
}


@pytest.mark.parametrize("params", FLOATS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_states_keep_their_dtypes_for_any_gradient_dtype(name, dtype, params):
    """Mixed dtypes of gradients and parameters, through `jax.lax.scan`; nothing is lost."""
    pytest.importorskip("optax")
    grads = gradients(dtype)
    optimizer = TRANSFORMATIONS[name](axis_name="d")

    def program(grads):
        start = optimizer.init(jnp.zeros(SHAPE, params))

        def step(state, g):
            updates, state = optimizer.update(g, state)
            return state, updates

        state, delivered = jax.lax.scan(step, start, grads)
        return delivered, state

    mesh = jax.make_mesh((N,), ("d",), (AxisType.Auto,), devices=np.array(jax.devices()[:N]))

    def body(rows):
        results = program(rows[0])
        return jax.tree.map(lambda x: x[None], results)

    mapped = jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False)
    delivered, state = jax.jit(mapped)(grads)
    assert delivered.dtype == grads.dtype
    for x in jax.tree.leaves(state):
        assert x.dtype in (jnp.int32, jnp.float32, jnp.float64)
    if name in ("onebit_adam", "adacomp"):  # no sums of gradients; sums of half types
        return
    kept = jax.tree.leaves(state)[-1]
    worst = max(missing(grads, np.asarray(delivered), np.asarray(kept), "mean", False))
    assert worst < 50 * float(np.finfo(np.float32).eps), worst


def test_residual_dtype_option_keeps_the_dtype_of_leaves():
    """The option saves memory, at the cost of rounding sums to that dtype."""
    pytest.importorskip("optax")
    params = {"w": jnp.zeros(8, "bfloat16"), "x": jnp.zeros(8, "float32")}
    makers = [*TRANSFORMATIONS.values(), optim.sparse_loco]
    for make in makers:
        for option, expected in (("float32", "float32"), (None, "bfloat16")):
            made = make(axis_name="d", residual_dtype=option)
            tree = jax.tree.map(lambda x: x.reshape(2, 4), params)
            state = jax.eval_shape(made.init, tree)
            state = getattr(state, "exchange", state)
            kept = [x.dtype for x in jax.tree.leaves(state[-1])]
            assert kept == [expected, "float32"], (make, option)
    with raises(jcc.errors.InvalidArgumentError, "residual_dtype", '"float32"', "float16"):
        optim.powersgd(residual_dtype="float16")
