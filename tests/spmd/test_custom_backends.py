"""User-registered backends along an axis of devices."""

import doctest

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import AxisPlace, plugin
from golden_errors import raises
from jax import lax

import jaxccomp as jcc
from jaxccomp import errors

N = 4
HOW = {"backend": "plugin_gathering"}
place = AxisPlace(N, "no_check_vma")


@pytest.fixture(autouse=True)
def nothing_is_registered(monkeypatch):
    plugin.install(monkeypatch)


def run(function, x):
    return place.run(lambda v, _: function(v, **(place.how | HOW)), x)


X = np.random.default_rng(0).integers(-9, 9, (N, 6, 5)).astype(np.float32)


@pytest.mark.parametrize("mode", ["check_vma", "pmap"])
def test_custom_backend_works_in_shard_map_and_pmap(mode):
    own = AxisPlace(N, mode)
    got = own.run(lambda v, _: jcc.allreduce(v, **(own.how | HOW)), X)
    np.testing.assert_array_equal(got, np.stack([X.sum(axis=0)] * N))


def test_custom_backend_runs_the_operations_that_it_defines():
    np.testing.assert_array_equal(run(jcc.allgather, X), np.stack([X] * N))
    np.testing.assert_array_equal(run(jcc.allreduce, X), np.stack([X.sum(axis=0)] * N))
    mean = run(lambda v, **how: jcc.allreduce(v, op="mean", **how), {"a": X, "b": X[:, 0]})
    np.testing.assert_array_equal(mean["b"], np.stack([X[:, 0].mean(axis=0)] * N))
    root = run(lambda v, **how: jcc.bcast(v, root=2, **how), X)
    np.testing.assert_array_equal(root, np.stack([X[2]] * N))
    same = run(lambda v, **how: jcc.lax.psum(v, how["axis_name"], **HOW), X)
    np.testing.assert_array_equal(same, np.stack([X.sum(axis=0)] * N))


def test_backend_option_accepts_the_names_of_the_argument():
    def explained():
        program = place.compiled(lambda v, _: jcc.allreduce(v, **place.how))
        return jcc.explain(program)(place.spread(X))

    with jcc.config.override(backend="plugin_gathering"):
        calls = explained().calls
    assert [call.backend for call in calls] == ["plugin_gathering"]
    unknown = raises(errors.UnknownNameError, "'nobody'", "JAXCCOMP_BACKEND")
    with jcc.config.override(backend="nobody"), unknown:
        explained()


def test_codecs_use_raw_operations_of_a_custom_backend():
    total = run(lambda v, **how: jcc.allreduce(v, codec="int8", **how), X)
    np.testing.assert_allclose(total, np.stack([X.sum(axis=0)] * N), atol=1)
    np.testing.assert_array_equal(total, np.stack([total[0]] * N))
    total, lost = run(
        lambda v, **how: jcc.allreduce_with_feedback(
            v, jnp.zeros_like(v), op="sum", codec="int8", **how
        ),
        X,
    )
    np.testing.assert_allclose(total[0] + lost.sum(axis=0), X.sum(axis=0), atol=1e-4)
    twos = np.full_like(X, 2)
    seen = place.run(
        lambda v, _: jcc.bcast(v[0], root=1, ref=v[1], codec="bf16", **(place.how | HOW)), (X, twos)
    )
    np.testing.assert_array_equal(seen, np.stack([X[1]] * N))


def test_custom_backend_supports_grad_and_vmap():
    def loss(v, **how):
        return jax.grad(lambda w: jcc.bcast(w, root=1, **how).sum())(v)

    expected = np.zeros_like(X)
    expected[1] = N
    np.testing.assert_array_equal(run(loss, X), expected)
    batched = run(lambda v, **how: jax.vmap(lambda row: jcc.allreduce(row, **how))(v), X)
    np.testing.assert_array_equal(batched, np.stack([X.sum(axis=0)] * N))


def test_operations_missing_in_a_custom_backend_raise_while_tracing():
    has = "'bcast', 'allreduce', 'reduce', 'allgather', 'alltoall'"
    with raises(errors.BackendError, "'plugin_gathering'", "scan", has):
        run(jcc.scan, X)
    with raises(errors.BackendError, "'plugin_gathering'", "reduce_scatter", has):
        run(jcc.reduce_scatter, X[:, :N])
    with raises(errors.BackendError, "barrier", "backend='plugin_gathering'", 'backend="auto"'):
        run(lambda v, **how: jcc.barrier(**how) or v, X)
    with raises(errors.BackendError, "allreduce", "backend='plugin_gathering'", "axis_name="):
        jcc.allreduce(X, **HOW)
    with raises(errors.UnknownNameError, "'plugin_gatherin'", "'plugin_gathering'"):
        jcc.allreduce(X, backend="plugin_gatherin")
    with raises(
        errors.UnknownNameError, "allreduce", "'ring'", "'auto'", "backend='plugin_gathering'"
    ):
        run(lambda v, **how: jcc.allreduce(v, algorithm="ring", **how), X)


def test_results_of_wrong_shape_or_dtype_raise_backend_error():
    @jcc.register_backend("crooked")
    class Crooked:
        def allreduce(x, call):
            return lax.all_gather(x, call.axis_names)

        def allgather(x, call):
            return jnp.ones(call.result_shape, jnp.int8)

    how = place.how | {"backend": "crooked"}
    facts = ("'crooked'", "allreduce", "float32[6, 5]", "Crooked", "(4, 6, 5)")
    with raises(errors.BackendError, facts):
        place.run(lambda v, _: jcc.allreduce(v, **how), X)
    with raises(errors.BackendError, "'crooked'", "allgather", "[4, 6, 5]", "Crooked", "int8"):
        place.run(lambda v, _: jcc.allgather(v, **how), X)


def test_custom_backend_runs_on_communicators():
    @jcc.register_backend("alone")
    class Alone:
        communicators = True

        def allreduce(x, call):
            assert call.comm.size == call.size == 1 and call.axis_names == ()
            return x + 1

    np.testing.assert_array_equal(jcc.allreduce(X, backend="alone"), X + 1)


def test_docstring_example_of_register_backend_runs():
    (found,) = doctest.DocTestFinder().find(jcc.register_backend, globs={"jaxccomp": jcc})
    assert doctest.DocTestRunner().run(found).failed == 0


def test_register_refuses_invalid_backends():
    with raises(errors.NameTakenError, "backend 'xla'", "this package", "Mine"):
        jcc.register_backend("xla")(type("Mine", (), {"allreduce": lambda x, call: x}))
    with raises(errors.BackendError, "backend 'empty'", "contract.plugin", "'bcast'"):
        jcc.register_backend("empty")(plugin)
    program = place.compiled(lambda v, _: jcc.allreduce(v, **(place.how | HOW)))
    explained = jcc.explain(program)(place.spread(X))
    assert [call.backend for call in explained.calls] == ["plugin_gathering"]
    assert "plugin_gathering" in str(explained)
