"""The choice of "auto" along axes with a profile; values equal the results without one."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_errors import raises
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxccomp as jcc
from jaxccomp import comm, schedules
from jaxccomp._native import engine

if not engine.available():
    pytest.skip("needs the native engine", allow_module_level=True)

CODER = {
    "encode_bytes_per_second": 4e9,
    "decode_bytes_per_second": 6e9,
    "merge_bytes_per_second": 5e9,
}


@pytest.fixture(params=[1e8, 1e12], ids=["slow", "fast"])
def profile(request, monkeypatch):
    """A profile with this bandwidth of messages within the process, in bytes per second."""
    content = {
        "version": 1,
        "hosts": [{"count": 1, "ranks": 1, "cores": 4}],
        "pairs": {"process": {"bytes_per_second": request.param}},
        "codecs": {"lossless": {"ratio": 1.5, **CODER}, "int8": {"ratio": 3.7, **CODER}},
    }
    cluster = schedules.parse_profile(json.dumps(content).encode(), "here")
    comm.init()
    monkeypatch.setattr(comm._state, "planner", schedules.Planner(cluster, [0]))
    jax.clear_caches()
    yield request.param < 1e9
    jax.clear_caches()


def over(function, axes=("a", "b"), shape=(2, 4)):
    types = (AxisType.Auto,) * len(axes)
    mesh = jax.make_mesh(shape, axes, axis_types=types, devices=jax.devices()[:8])
    spec = P(axes)
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec))


@pytest.mark.parametrize("axis", ["a", "b", ("a", "b")])
def test_auto_selects_lossless_on_slow_axes_and_raw_on_fast_ones(profile, axis):
    x = jnp.asarray(np.random.default_rng(0).integers(-8, 8, (8, 1 << 17)), jnp.float32)
    call = over(lambda v: jcc.allreduce(v, axis_name=axis, codec="auto", backend="native"))
    text = call.lower(x).as_text()
    assert f'codec = "{"lossless" if profile else "raw"}"' in text
    assert np.array_equal(call(x), over(lambda v: lax.psum(v, axis))(x))


def test_auto_int8_applies_to_derivatives(profile):
    """Cotangents use a separate call."""
    x = jnp.ones((8, 1 << 17), jnp.float32)

    def loss(v):
        rows = jcc.lax.all_gather(v, ("a", "b"), codec="auto:int8", backend="native")
        return (rows * rows).sum()[None]

    text = over(jax.grad(lambda v: loss(v)[0])).lower(x).as_text()
    assert text.count(f'codec = "{"int8" if profile else "raw"}"') == 2
    assert 'codec = "auto' not in text


def test_calls_without_a_predicted_cost_keep_their_codec(profile):
    """This covers error feedback, the traced plane, and algorithms named by the program."""
    x = jnp.ones((8, 1 << 17), jnp.float32)
    with_feedback = over(
        lambda v: jcc.allreduce_with_feedback(
            v, jnp.zeros_like(v), "mean", axis_name="b", codec="auto:int8"
        )[0]
    )
    assert 'codec = "int8"' in with_feedback.lower(x).as_text()
    traced = over(lambda v: jcc.allreduce(v, axis_name="b", codec="auto:int8", backend="xla"))
    assert np.allclose(traced(x), 4, rtol=0.05)
    named = over(lambda v: jcc.allreduce(v, axis_name="b", algorithm="ring", codec="lossless"))
    text = named.lower(x).as_text()
    assert 'algorithm = "ring"' in text and 'codec = "lossless"' in text


def test_explain_shows_line_choice_and_cost_of_each_call(profile):
    """Each call with its line, choice, predicted cost, and second best choice."""
    jcc.stats.reset()
    x = jnp.ones((8, 1 << 17), jnp.float32)

    def step(v):
        total = jax.jit(lambda v: jcc.allreduce(v, axis_name="b", codec="auto:int8"))(v)
        rows = jcc.allgather(total, axis_name="a", algorithm="ring", codec="lossless")
        return jcc.lax.psum(rows[0], "a", backend="xla")

    shown = jcc.explain(over(step))(x)
    first, second, third = shown.calls
    assert first.where.startswith("test_plans.py:") and first.where != second.where
    assert (first.collective, first.ranks, first.size_bytes) == ("allreduce", 4, 1 << 19)
    assert first.codec == ("int8" if profile else "raw") and first.backend == "native"
    assert 0 < first.seconds and first.second_best[2] > 0
    # An algorithm that the program names has a predicted cost, and no alternatives.
    assert (second.algorithm, second.codec, second.second_best) == ("ring", "lossless", None)
    assert second.seconds > 0
    assert (third.backend, third.seconds) == ("xla", None)
    lines = str(shown).splitlines()
    assert len(lines) == 4 and "not priced" in lines[3] and "ms" in lines[1]
    # After a run, the measured time on each device is shown.
    assert all(each.measured_seconds is None for each in shown.calls)
    jax.block_until_ready(over(step)(x))
    first, second, third = jcc.explain(over(step))(x).calls
    assert (first.measured_calls, second.measured_calls, third.measured_calls) == (8, 8, 0)
    assert first.measured_seconds > 0 and second.measured_seconds > 0
    assert third.measured_seconds is None


def test_explain_without_a_profile_shows_no_cost():
    x = jnp.ones((8, 64), jnp.float32)
    (call,) = jcc.explain(over(lambda v: jcc.allreduce(v, axis_name="a", codec="auto")))(x).calls
    assert (call.algorithm, call.codec, call.seconds) == ("auto", "raw", None)


# --- pinned ----------------------------------------------------------------------------------


def step(v):
    total = jcc.allreduce(v, axis_name="b", codec="auto:int8", backend="native")
    rows = jcc.allgather(total, axis_name="a", codec="auto")
    back = jcc.reduce_scatter(rows, axis_name="a", codec="auto")
    return jcc.lax.psum(back, ("a", "b"), codec="auto")


def runs(text):
    return re.findall(r'(?:algorithm|codec) = "[^"]*"', text)


def test_saved_plan_applies_without_the_profile(profile, monkeypatch, tmp_path):
    x = jnp.asarray(np.random.default_rng(0).integers(-8, 8, (8, 1 << 15)), jnp.float32)
    plans = jcc.explain(over(step))(x).plans
    assert [call.collective for call in plans.calls] == [
        *("allreduce", "allgather", "reduce_scatter", "allreduce")
    ]
    assert ("int8" if profile else "raw") in {each.codec for each in plans.calls.values()}
    assert all("chunk=" in each.algorithm for each in plans.calls.values())
    plans.save(tmp_path / "plan.json")
    monkeypatch.setattr(comm._state, "planner", None)
    monkeypatch.setattr(comm._state, "plans", jcc.plan.load(tmp_path / "plan.json"))
    call = over(step)
    want = [
        f'{name} = "{getattr(each, name)}"'
        for each in plans.calls.values()
        for name in ("algorithm", "codec")
    ]
    assert runs(call.lower(x).as_text()) == want
    with jcc.config.override(chunk_bytes=1 << 12):
        assert jcc.explain(over(step))(x).plans == plans
    assert np.asarray(call(x)).shape == x.shape


def test_plan_pins_the_algorithm_of_the_static_rule(monkeypatch):
    """Another release may have another rule, and would choose another algorithm."""
    x = jnp.ones((8, 1 << 18), jnp.float32)
    plans = jcc.explain(over(step))(x).plans
    by_size = {call.ranks: each.algorithm for call, each in plans.calls.items()}
    # The ranks of an axis share one process and one host.
    assert by_size[4] == by_size[8] == "two_shot:chunk=524288"
    text = jax.jit(over(step)).lower(x).as_text()
    assert 'algorithm = "auto"' in text
    jax.clear_caches()
    monkeypatch.setattr(comm._state, "plans", plans)
    pinned = jax.jit(over(step)).lower(x).as_text()
    assert 'algorithm = "auto"' not in pinned and 'algorithm = "two_shot:chunk=524288"' in pinned
    jax.clear_caches()


def test_plan_pins_a_call_to_the_xla_backend(monkeypatch):
    x = jnp.arange(32, dtype=jnp.float32).reshape(8, 4)

    def total(v):
        return jcc.allreduce(v, axis_name="b")

    plans = jcc.explain(over(total))(x).plans
    (call,) = plans.calls
    plans.calls[call] = jcc.plan.Plan("xla", "auto", "raw")
    monkeypatch.setattr(comm._state, "plans", plans)
    text = over(total).lower(x).as_text()
    assert "jaxccomp_collective" not in text and "all_reduce" in text
    assert np.array_equal(over(total)(x), over(lambda v: lax.psum(v, "b"))(x))
    jax.clear_caches()


def test_groups_with_different_link_sharing_have_separate_plans(monkeypatch):
    x = jnp.ones((8, 16), jnp.float32)

    def total(groups):
        return over(lambda v: jcc.allreduce(v, axis_name=("a", "b"), axis_index_groups=groups))

    plans = jcc.explain(total([[0, 1, 2, 3], [4, 5, 6, 7]]))(x).plans
    (call,) = plans.calls
    assert call.members == "processes 0*4 | 0*4"
    monkeypatch.setattr(comm._state, "plans", plans)
    total([[0, 2, 4, 6], [1, 3, 5, 7]]).lower(x)  # the same, because all ranks are in one process
    with raises(jcc.errors.InvalidArgumentError, "0*2 | 0*2"):
        total([[0, 1], [2, 3], [4, 5], [6, 7]]).lower(x)
    jax.clear_caches()


def test_calls_with_residuals_have_plans(monkeypatch):
    x = jnp.ones((8, 1 << 12), jnp.float32)

    def total(v):
        first, residual = jcc.allreduce_with_feedback(
            v, jnp.zeros_like(v), "mean", axis_name="b", codec="int8"
        )
        return jcc.allgather(first + residual, axis_name="a")[0]

    free = np.asarray(over(total)(x))
    plans = jcc.explain(over(total))(x).plans
    assert [call.details for call in plans.calls] == ["feedback carries", ""]
    monkeypatch.setattr(comm._state, "plans", plans)
    assert np.asarray(over(lambda v: total(v))(x)).tobytes() == free.tobytes()
    jax.clear_caches()
