"""A nonfinite value makes its step nonfinite on all ranks, and enters no state."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract.lossy import lossy_codecs
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxccomp as jcc
from jaxccomp import optim
from jaxccomp._native import engine

optax = pytest.importorskip("optax")
pytestmark = pytest.mark.skipif(not engine.available(), reason="needs the native engine")

N = 3
STEPS = 6
WARMUP = 3
SHAPES = {"kernel": (24, 40), "bias": (7,)}
VALUES = {"inf": np.inf, "-inf": -np.inf, "nan": np.nan}
# The nonfinite step: the first, one of the warm-up, one after it.
CASES = list(itertools.product(VALUES, ["one value", "all values"], ["one", "all"], [0, 1, 4]))


def gradients():
    rng = np.random.default_rng(3)
    return [
        {
            name: (rng.standard_normal((N, *shape)) + rng.standard_normal(shape)).astype("float32")
            for name, shape in SHAPES.items()
        }
        for _ in range(STEPS)
    ]


def bad(step, value, extent, ranks):
    """Returns a step's gradients with nonfinite values, on rank 1 or on all."""
    step = {name: x.copy() for name, x in step.items()}
    rows = slice(1, 2) if ranks == "one" else slice(None)
    if extent == "one value":
        step["kernel"][rows, 5, 3] = value
    else:
        for x in step.values():
            x[rows] = value
    return step


class Scatter:
    """A reduction with feedback, of a row for each rank, as a transformation."""

    def __init__(self, function):
        self._function = function

    def init(self, params):
        return jax.tree.map(jnp.zeros_like, rows_of(params))

    def update(self, updates, state, params=None):
        return self._function(rows_of(updates), state)


def rows_of(tree):
    return jax.tree.map(lambda x: jnp.stack([x * (1 + i) for i in range(N)]), tree)


class Compressed:
    """A program with `jax.lax.psum_scatter`, as a transformation."""

    def __init__(self):
        def program(rows):
            scatter = functools.partial(jax.lax.psum_scatter, axis_name="d")
            return jax.tree.map(scatter, rows)

        rules = [jcc.CollectiveRule("int4", "psum_scatter", min_bytes=0)]
        self._made = jcc.compress_with_feedback(program, rules)

    def init(self, params):
        return self._made.init(rows_of(params))

    def update(self, updates, state, params=None):
        return self._made.apply(state, rows_of(updates))


class Outer:
    """An outer step: a rank's trained parameters are the state's parameters minus a gradient."""

    def __init__(self, outer):
        self._outer = outer

    def init(self, params):
        return self._outer.init(jax.tree.map(jnp.zeros_like, params))

    def update(self, updates, state, params=None):
        return self._outer.step(jax.tree.map(jnp.subtract, state.params, updates), state)


HOW = {"axis_name": "d"}
TRANSFORMATIONS = {
    "topk": lambda: optim.allreduce_gradients(codec="topk:density=0.1", error_feedback=True, **HOW),
    "onebit": lambda: optim.allreduce_gradients(codec="onebit", error_feedback=True, **HOW),
    "xla": lambda: optim.allreduce_gradients(
        "sum", codec="int4", error_feedback=True, backend="xla", **HOW
    ),
    "policy": lambda: optim.allreduce_gradients(
        codec="bf16",
        error_feedback=True,
        bucket_bytes=100,
        policy=[optim.Rule("topk:density=0.1", pattern="kernel", from_step=WARMUP)],
        **HOW,
    ),
    "powersgd": lambda: optim.powersgd(rank=2, **HOW),
    "onebit_adam": lambda: optim.onebit_adam(0.1, warmup_steps=WARMUP, **HOW),
    "dgc": lambda: optim.dgc(density=0.1, warmup_steps=WARMUP, clip_norm=3.0, codec="topk", **HOW),
    "adacomp": lambda: optim.adacomp(bin_size=50, **HOW),
    "ecq": lambda: optim.ecq(codec="int4", **HOW),
    "diloco": lambda: Outer(optim.diloco(codec="int4", error_feedback=True, **HOW)),
    "diloco_raw": lambda: Outer(optim.diloco(**HOW)),
    "local_sgd": lambda: Outer(optim.local_sgd(codec="topk", error_feedback=True, **HOW)),
    "sparse_loco": lambda: Outer(optim.sparse_loco(density=0.1, **HOW)),
    "reduce_scatter": lambda: Scatter(
        functools.partial(
            jcc.reduce_scatter_with_feedback, op="mean", codec="topk:density=0.1", **HOW
        )
    ),
    "psum_scatter": Compressed,
}


def compiled(transformation):
    """Returns compiled ``init`` and ``update`` for the rows of all ranks."""
    mesh = jax.make_mesh((N,), ("d",), (AxisType.Auto,), devices=np.array(jax.devices()[:N]))

    def on_ranks(function):
        def body(*rows):
            results = function(*jax.tree.map(lambda x: x[0], rows))
            return jax.tree.map(lambda x: x[None], results)

        mapped = jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False)
        return jax.jit(mapped)

    return on_ranks(transformation.init), on_ranks(
        lambda updates, state: transformation.update(updates, state)
    )


def run(made, steps):
    """Returns the results and the states of all steps."""
    init, update = made
    state = init(steps[0])
    results, states = [], [state]
    for step in steps:
        result, state = update(step, state)
        results.append(result)
        states.append(state)
    return jax.tree.map(np.asarray, (results, states))


def assert_same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_nonfinite_step_is_nan_on_all_ranks_and_leaves_states_finite(name):
    made = compiled(TRANSFORMATIONS[name]())
    good = gradients()
    without = {number: run(made, good[:number] + good[number + 1 :]) for number in (0, 1, 4)}
    for value, extent, ranks, number in CASES:
        steps = [*good]
        steps[number] = bad(good[number], VALUES[value], extent, ranks)
        results, states = run(made, steps)
        place = value, extent, ranks, number
        for x in jax.tree.leaves(results[number]):
            assert np.isnan(x).all(), place
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(states)), place
        del results[number], states[number]
        assert_same((results, states), without[number])


@pytest.mark.parametrize("collective", ["allreduce", "reduce_scatter"])
@pytest.mark.parametrize("codec", lossy_codecs())
def test_every_codec_reports_a_nonfinite_step(codec, collective):
    function = getattr(jcc, f"{collective}_with_feedback")
    made = compiled(Scatter(functools.partial(function, codec=codec, **HOW)))
    good = gradients()
    for value in VALUES.values():
        try:
            results, states = run(made, [good[0], bad(good[1], value, "one value", "one")])
        except jcc.errors.EngineUnavailableError:
            pytest.skip(f"needs the library of {codec}")
        assert all(np.isfinite(x).all() for x in jax.tree.leaves((results[0], states)))
        assert all(np.isnan(x).all() for x in jax.tree.leaves(results[1])), value
        assert_same(states[1], states[2])


def test_apply_if_finite_skips_a_nonfinite_step_on_all_ranks():
    """As in docs/training.md: it wraps the transformations after the exchange."""
    optimizer = optax.chain(
        optim.powersgd(rank=2, **HOW), optax.apply_if_finite(optax.sgd(1.0, momentum=0.9), 3)
    )
    init, update = compiled(optimizer)
    good = gradients()
    steps = [good[0], bad(good[1], np.inf, "one value", "one"), *good[2:]]
    results, _ = run((init, update), steps)
    assert not any(x.any() for x in jax.tree.leaves(results[1]))
    others, _ = run((init, update), good[:1] + good[2:])
    assert_same(results[:1] + results[2:], others)


@pytest.mark.parametrize("maker", ["diloco", "local_sgd", "sparse_loco"])
def test_outer_step_excludes_nonfinite_workers_on_request(maker):
    make = functools.partial(getattr(optim, maker), exclude_nonfinite=True, **HOW)
    if maker == "sparse_loco":
        make = functools.partial(make, density=1.0, quantize=False)
    good = gradients()
    made = compiled(Outer(make()))
    for value in VALUES.values():
        for extent in ("one value", "all values"):
            results, states = run(made, [bad(good[0], value, extent, "one"), *good[1:]])
            for x in jax.tree.leaves((results, states)):
                assert np.isfinite(x).all()
            for x in jax.tree.leaves(results):
                np.testing.assert_array_equal(x, np.stack([x[0]] * N))
            scale = {"diloco": 0.7 * 1.9}.get(maker, 1.0)  # Nesterov's first step
            for name, x in results[0].items():
                step = good[0][name][[0, 2]].mean(axis=0)
                np.testing.assert_allclose(x[0], -scale * step, atol=1e-5)
    bad_everywhere = bad(good[0], np.nan, "one value", "all")
    results, states = run(made, [bad_everywhere, *good[1:]])
    assert all(np.isnan(x).all() for x in jax.tree.leaves(results[0]))
    assert_same(states[0], states[1])


@pytest.mark.parametrize("exclude", [False, True])
def test_streaming_outer_steps_recover_from_nonfinite_values(exclude):
    mesh = jax.make_mesh((N,), ("d",), (AxisType.Auto,), devices=np.array(jax.devices()[:N]))
    outer = optim.diloco(
        codec="int4", error_feedback=True, mesh=mesh, exclude_nonfinite=exclude, **HOW
    )
    streaming = optim.Streaming(outer, every=2, fragments=2, delay=1, mixing=0.0)
    start = {name: np.ones(shape, "float32") for name, shape in SHAPES.items()}
    for value in VALUES.values():
        params = jax.tree.map(lambda x: jnp.stack([jnp.asarray(x)] * N), start)
        state = streaming.init(jax.tree.map(jnp.asarray, start))
        shown = []
        for number, step in enumerate(gradients()):
            if number == 1:
                step = bad(step, value, "one value", "one")
            params = jax.tree.map(jnp.subtract, params, step)
            params, state = streaming.step(params, state)
            finite = np.isfinite(params["kernel"]).all(axis=(1, 2))
            shown.append(finite.tolist())
            assert all(np.isfinite(x).all() for x in jax.tree.leaves(state))
            if not finite.any():  # the remedy in the class's docstring
                params, state = streaming.finish(params, state)
        assert shown.count([False] * N) == (0 if exclude else 1), shown
        assert shown[-1] == [True] * N
