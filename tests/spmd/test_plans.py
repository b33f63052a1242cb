"""What "auto" becomes along axes, where a profile is known; values are those without one."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
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
    """Messages within this process take that many bytes per second."""
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
def test_exact_where_links_are_slow_and_raw_where_not(profile, axis):
    x = jnp.asarray(np.random.default_rng(0).integers(-8, 8, (8, 1 << 17)), jnp.float32)
    call = over(lambda v: jcc.allreduce(v, axis_name=axis, codec="auto", backend="native"))
    text = call.lower(x).as_text()
    assert f'codec = "{"lossless" if profile else "raw"}"' in text
    assert np.array_equal(call(x), over(lambda v: lax.psum(v, axis))(x))


def test_a_lossy_codec_in_derivatives_too(profile):
    """The cotangents' call is one of its own."""
    x = jnp.ones((8, 1 << 17), jnp.float32)

    def loss(v):
        rows = jcc.lax.all_gather(v, ("a", "b"), codec="auto:int8", backend="native")
        return (rows * rows).sum()[None]

    text = over(jax.grad(lambda v: loss(v)[0])).lower(x).as_text()
    assert text.count(f'codec = "{"int8" if profile else "raw"}"') == 2
    assert 'codec = "auto' not in text


def test_what_prices_do_not_know_keeps_its_codec(profile):
    """Error feedback, the traced plane, and algorithms that the program names."""
    x = jnp.ones((8, 1 << 17), jnp.float32)
    with_feedback = over(
        lambda v: jcc.allreduce_with_feedback(
            v, jnp.zeros_like(v), axis_name="b", codec="auto:int8"
        )[0]
    )
    assert 'codec = "int8"' in with_feedback.lower(x).as_text()
    traced = over(lambda v: jcc.allreduce(v, axis_name="b", codec="auto:int8", backend="xla"))
    assert np.allclose(traced(x), 4, rtol=0.05)
    named = over(lambda v: jcc.allreduce(v, axis_name="b", algorithm="ring", codec="lossless"))
    text = named.lower(x).as_text()
    assert 'algorithm = "ring"' in text and 'codec = "lossless"' in text


def test_what_a_program_does_is_explained(profile):
    """Each call with its line, what runs, what it takes, and what would come next."""
    x = jnp.ones((8, 1 << 17), jnp.float32)

    def step(v):
        total = jax.jit(lambda v: jcc.allreduce(v, axis_name="b", codec="auto:int8"))(v)
        rows = jcc.allgather(total, axis_name="a", algorithm="ring", codec="lossless")
        return jcc.lax.psum(rows[0], "a", backend="xla")

    shown = jcc.explain(over(step))(x)
    first, second, third = shown.calls
    assert first.where.startswith("test_plans.py:") and first.where != second.where
    assert (first.collective, first.ranks, first.size_bytes) == ("allreduce", 4, 1 << 19)
    assert first.codec == ("int8" if profile else "raw") and first.mover == "native"
    assert 0 < first.seconds and first.second_best[2] > 0
    # What the program names is priced, too, and nothing beside it.
    assert (second.algorithm, second.codec, second.second_best) == ("ring", "lossless", None)
    assert second.seconds > 0
    assert (third.mover, third.seconds) == ("xla", None)
    lines = str(shown).splitlines()
    assert len(lines) == 4 and "not priced" in lines[3] and "ms" in lines[1]


def test_without_a_profile_nothing_is_priced():
    x = jnp.ones((8, 64), jnp.float32)
    (call,) = jcc.explain(over(lambda v: jcc.allreduce(v, axis_name="a", codec="auto")))(x).calls
    assert (call.algorithm, call.codec, call.seconds) == ("auto", "raw", None)
