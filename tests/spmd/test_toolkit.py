"""A user's codec along an axis: on the engine and on the traced plane."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import AxisPlace, own_codec
from golden_errors import raises

import jaxccomp as jcc
from jaxccomp import errors
from jaxccomp._codecs import table
from jaxccomp._native import engine

N = 4
WAYS = [{"backend": "xla"}]
if engine.available():
    WAYS.append({"backend": "native"})


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr(table.CODECS, "_entries", {})
    own_codec.register()


def values(*shape, n=N, dtype="float32"):
    rng = np.random.default_rng(3)
    return rng.standard_normal((n, *shape)).astype(dtype)


def steps_of(x):
    """Returns the allowed error: one step of the whole array's largest value."""
    return np.abs(np.float32(x)).max() / 7 + 1e-6


OPERATIONS = {
    "bcast": (lambda v, how: jcc.bcast(v, root=2, **how), lambda x: np.stack([x[2]] * N), 1),
    "allreduce": (
        lambda v, how: jcc.allreduce(v, **how),
        lambda x: np.stack([x.sum(axis=0)] * N),
        N + 2,
    ),
    "mean": (
        lambda v, how: jcc.allreduce(v, op="mean", **how),
        lambda x: np.stack([x.mean(axis=0)] * N),
        2,
    ),
    "allgather": (lambda v, how: jcc.allgather(v, **how), lambda x: np.stack([x] * N), 1),
    "alltoall": (lambda v, how: jcc.alltoall(v, **how), lambda x: x.swapaxes(0, 1), 1),
    "reduce_scatter": (
        lambda v, how: jcc.reduce_scatter(v, **how),
        lambda x: x.sum(axis=0),
        N + 1,
    ),
    "scan": (lambda v, how: jcc.scan(v, **how), lambda x: x.cumsum(axis=0), N),
    "sendrecv": (
        lambda v, how: jcc.sendrecv(v, dest=lambda r: (r + 1) % N, **how),
        lambda x: np.roll(x, 1, axis=0),
        1,
    ),
}


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way["backend"])
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize(
    "codec",
    ["test_scaled", pytest.param("test_scaled:block=128|lossless", marks=pytest.mark.slow)],
)
def test_user_codec_results_are_within_its_steps(name, way, codec):
    operation, expected, steps = OPERATIONS[name]
    place = AxisPlace(N, "check_vma")
    x = values(N, 33, 21)
    got = place.run(lambda v, _: operation(v, place.how | way | {"codec": codec}), x)
    np.testing.assert_allclose(got, expected(x), atol=steps * steps_of(x))


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way["backend"])
def test_user_codec_sends_unsupported_dtypes_uncompressed(way):
    place = AxisPlace(N, "check_vma")
    tree = {"whole": np.arange(N * 5).reshape(N, 5), "half": values(300, dtype="float16")}
    how = place.how | way | {"codec": "test_scaled"}
    got = place.run(lambda v, _: jcc.allreduce(v, **how), tree)
    assert (got["whole"] == tree["whole"].sum(axis=0)).all()
    assert got["half"].dtype == np.float16
    exact = np.float32(tree["half"]).sum(axis=0)
    np.testing.assert_allclose(got["half"][0], exact, atol=(N + 2) * steps_of(tree["half"]))


@pytest.mark.skipif(not engine.available(), reason="needs the native engine")
def test_large_arrays_are_split_and_equal_on_all_ranks():
    place = AxisPlace(N, "check_vma")
    x = values(1_300_001)
    jcc.stats.reset()
    how = place.how | {"backend": "native", "codec": "test_scaled"}
    got = place.run(lambda v, _: jcc.allreduce(v, **how), x)
    np.testing.assert_allclose(got[0], x.sum(axis=0), atol=(N + 2) * steps_of(x))
    assert (got == got[0]).all()
    assert jcc.stats.get().operations["alltoall"].calls == 4 * N  # pieces, ranks


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way["backend"])
def test_error_feedback_with_a_user_codec_delivers_all_values(way):
    """Results sum to the reductions of all gradients minus the last residuals."""
    place = AxisPlace(N, "check_vma")
    how = place.how | way | {"codec": "test_scaled", "op": "sum"}
    steps = values(6, 1000)

    def program(grads, _):
        def step(residual, grad):
            return jcc.allreduce_with_feedback(grad, residual, **how)[::-1]

        residual, reduced = jax.lax.scan(step, jnp.zeros_like(grads[0]), grads)
        return reduced.sum(axis=0), residual

    total, residual = place.run(program, steps)
    exact = steps.sum(axis=(0, 1)) - residual.sum(axis=0)
    np.testing.assert_allclose(total[0], exact, atol=1e-3)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way["backend"])
def test_user_codec_supports_grad_and_vmap(way):
    place = AxisPlace(N, "check_vma")
    how = place.how | way | {"codec": "test_scaled", "cotangent_codec": None}
    x = values(3, 200)

    def program(v, _):
        reduce = jax.vmap(lambda row: jcc.allreduce(row, **how))
        return reduce(v), jax.grad(lambda v: (2 * reduce(v)).sum())(v)

    got, gradient = place.run(program, x)
    np.testing.assert_allclose(got[0], x.sum(axis=0), atol=(N + 2) * steps_of(x))
    np.testing.assert_array_equal(gradient, 2)  # all ranks have the sum; it counts once


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way["backend"])
def test_invalid_user_codecs_raise_while_tracing(way):
    place = AxisPlace(N, "check_vma")

    class Ragged(own_codec.Scaled):
        def encode(x, options, key):
            return x[x > 0]

    jcc.register_codec("test_ragged", block=64, levels=7)(Ragged)
    how = place.how | way
    with raises(errors.CodecError, "'test_ragged'", "encode", "toolkit.filter_top"):
        place.run(lambda v, _: jcc.bcast(v, root=0, codec="test_ragged", **how), values(20))

    class Narrowed(own_codec.Scaled):
        def decode(payload, shape, dtype, options):
            return own_codec.Scaled.decode(payload, shape, dtype, options).astype(jnp.bfloat16)

    jcc.register_codec("test_narrowed", block=64, levels=7)(Narrowed)
    for collective in (jcc.allreduce, jcc.allgather):
        with raises(errors.CodecError, "'test_narrowed'", "decode", "float32", "bfloat16"):
            place.run(lambda v, _, c=collective: c(v, codec="test_narrowed", **how), values(20))
    if way["backend"] == "native":
        how = how | {"algorithm": "ring", "codec": "test_scaled"}
        with raises(errors.InvalidArgumentError, "algorithm='ring'", "'test_scaled'"):
            place.run(lambda v, _: jcc.allreduce(v, **how), values(20))
        how = place.how | way
    with raises(errors.UnknownNameError, "'test_scale'", "'test_scaled'"):
        place.run(lambda v, _: jcc.bcast(v, root=0, codec="test_scale", **how), values(20))
