"""Programs of jax.lax whose collectives `compress` replaces, at any depth."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract.selection import ALL
from golden_errors import raises
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxccomp as jcc
from jaxccomp import CollectiveRule, errors
from jaxccomp._native import engine

pytestmark = pytest.mark.skipif(not engine.available(), reason="needs the native engine")

N = 4
OF_JAX = ("psum[", "psum_invariant[", "all_gather[", "all_gather_invariant[", "reduce_scatter[")
OF_JAX += ("all_to_all[", "ragged_all_to_all[", "ppermute[")


def mesh_of(*sizes, names="dm"):
    devices = np.array(jax.devices()[: int(np.prod(sizes))])
    axes = tuple(names[: len(sizes)])
    return jax.make_mesh(sizes, axes, (AxisType.Auto,) * len(sizes), devices=devices)


def varying(x, check_vma):
    if not check_vma or "d" in jax.typeof(x).mat.varying:
        return x
    return lax.pcast(x, "d", to="varying")


def mapped(function, check_vma=True):
    """Runs ``function`` on each device's row; returns results as rows."""

    def body(*rows):
        results = function(*(row[0] for row in rows))
        return jax.tree.map(lambda x: varying(x, check_vma)[None], results)

    return functools.partial(
        jax.shard_map, mesh=mesh_of(N), in_specs=P("d"), out_specs=P("d"), check_vma=check_vma
    )(body)


def rows(*shape, seed=0, dtype="float32"):
    return np.random.default_rng(seed).normal(size=(N, *shape)).astype(dtype)


def equal(got, expected):
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def ours(function, *args):
    """Returns the codecs of our operations in a program, in program order."""
    program = str(jax.make_jaxpr(function)(*args))
    return [part.split("'")[1] for part in program.split(" codec=")[1:]]


# --- every collective, in every higher-order function ---


@jax.custom_vjp
def summed_behind(x):
    """The identity forward, a sum backward."""
    return x


summed_behind.defvjp(lambda x: (x, None), lambda _, g: (lax.psum(g, "d"),))


@jax.custom_jvp
def sine_of_mean(x):
    return jnp.sin(lax.pmean(x, "d"))


sine_of_mean.defjvp(
    lambda p, t: (sine_of_mean(*p), lax.pmean(t[0], "d") * jnp.cos(lax.pmean(p[0], "d")))
)


def _ragged(x, check_vma):
    me = lax.axis_index("d")
    sizes = varying(jnp.full(N, 2, jnp.int32), check_vma)
    begins = varying(jnp.arange(N, dtype=jnp.int32) * 2, check_vma)
    there = jnp.full(N, 2, jnp.int32) * me
    table = x[: 2 * N * 64].reshape(2 * N, 64)
    return lax.ragged_all_to_all(
        table, jnp.zeros_like(table), begins, sizes, there, sizes, axis_name="d"
    )


def _while(x, check_vma):
    def grow(c):
        return c + varying(lax.psum(jnp.abs(c), "d"), check_vma)

    return lax.while_loop(lambda c: lax.psum(c.sum(), "d") < 30000, grow, x)


def _scan(x, check_vma):
    def body(c, _):
        return c * varying(lax.psum(c, "d"), check_vma) * 0.1, lax.pmean(c, "d")

    return lax.scan(body, x, length=3)


def _checkpoint_of_grad(x, check_vma):
    del check_vma
    again = jax.checkpoint(lambda z: jnp.sin(lax.psum(jnp.sin(z), "d")))
    return jax.grad(lambda z: again(z).sum())(x)


PROGRAMS = {
    "psum of a tree": lambda x, _: lax.psum({"a": x, "b": [x + 1, x[:3]]}, "d"),
    "pmean": lambda x, _: lax.pmean(x, "d"),
    "groups": lambda x, _: lax.psum(x, "d", axis_index_groups=[[0, 2], [1, 3]]),
    "all_gather": lambda x, _: lax.all_gather(x, "d"),
    "tiled all_gather": lambda x, _: lax.all_gather(x.reshape(-1, 64), "d", axis=1, tiled=True),
    "psum_scatter": lambda x, _: lax.psum_scatter(x.reshape(N, -1), "d"),
    "tiled psum_scatter": lambda x, _: lax.psum_scatter(x, "d", tiled=True),
    "all_to_all": lambda x, _: lax.all_to_all(x.reshape(N, 2, -1), "d", 0, 0),
    "all_to_all to the back": lambda x, _: lax.all_to_all(x.reshape(N, 2, -1), "d", 0, 2),
    "all_to_all to the front": lambda x, _: lax.all_to_all(x.reshape(2, N, -1), "d", 1, 0),
    "tiled all_to_all": lambda x, _: lax.all_to_all(x.reshape(8, -1), "d", 0, 1, tiled=True),
    "ppermute": lambda x, _: lax.ppermute(x, "d", [(0, 1), (1, 2), (3, 0)]),
    "jit": lambda x, _: jax.jit(lambda z: lax.psum(z, "d"))(x),
    "vmap": lambda x, _: jax.vmap(lambda z: lax.psum(z, "d"))(x.reshape(4, -1)),
    "scan": _scan,
    "while": _while,
    "cond": lambda x, _: lax.cond(
        lax.psum(x[0], "d") > 0, lambda z: lax.psum(z, "d"), lambda z: lax.psum(z + 1, "d"), x
    ),
    "checkpoint": lambda x, _: jax.checkpoint(lambda z: jnp.sin(lax.psum(z, "d")))(x),
    "checkpoint of a gradient": _checkpoint_of_grad,
    "custom_jvp": lambda x, _: sine_of_mean(x),
    "gradient of custom_jvp": lambda x, _: jax.grad(lambda z: sine_of_mean(z).sum())(x),
    "custom_vjp": lambda x, _: summed_behind(x),
    "gradient of custom_vjp": lambda x, _: jax.grad(lambda z: jnp.sum(summed_behind(z) ** 2))(x),
    "gradient": lambda x, _: jax.grad(lambda z: jnp.sum(jnp.cos(lax.psum(z, "d"))))(x),
}

REFUSED_BY_TYPES = ("groups", "gradient of custom_vjp")


@pytest.mark.parametrize("check_vma", [True, False], ids=["check_vma", "no_check_vma"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_compressed_programs_return_equal_bits_without_jax_collectives(name, check_vma):
    function = PROGRAMS[name]
    x = rows(1024)

    def program(row):
        return function(row, check_vma)

    plain = mapped(program, check_vma)
    if check_vma and name in REFUSED_BY_TYPES:
        with pytest.raises((NotImplementedError, TypeError, ValueError)):
            jax.jit(plain)(x)
        return
    expected = jax.jit(plain)(x)
    policy = [CollectiveRule("lossless", min_bytes=0)]
    # compress is applied around and inside shard_map, once each: one with check_vma, the other
    # without, alternating between programs.
    everything = ALL or name in REFUSED_BY_TYPES
    around_shard_map = check_vma == (list(PROGRAMS).index(name) % 2 == 0)
    if everything or around_shard_map:
        equal(jax.jit(jcc.compress(plain, policy))(x), expected)
    if everything or not around_shard_map:
        equal(jcc.compress(jax.jit(plain), policy)(x), expected)
        inside = mapped(jcc.compress(program, policy), check_vma)
        equal(jax.jit(inside)(x), expected)
    if name != "custom_vjp":  # its forward pass has no collective
        left = str(jax.make_jaxpr(jcc.compress(plain, policy))(x))
        assert not any(f" {each}" in left for each in OF_JAX), left
        assert "lossless" in left


@pytest.mark.parametrize("check_vma", [True, False], ids=["check_vma", "no_check_vma"])
def test_compressed_ragged_all_to_all_returns_the_right_blocks(check_vma):
    """XLA does not support it on CPUs."""
    x = rows(1024)
    program = mapped(jcc.compress(lambda row: _ragged(row, check_vma), "lossless"), check_vma)
    tables = x[:, : 2 * N * 64].reshape(N, N, 2, 64)
    equal(jax.jit(program)(x), tables.swapaxes(0, 1).reshape(N, 2 * N, 64))


def test_compressed_programs_have_equal_gradients():
    x = rows(512)

    def program(row):
        return lax.psum(summed_behind(jnp.sin(row)), "d")

    def gradient(function):
        return mapped(jax.grad(lambda row: jnp.sum(function(row) ** 2)), check_vma=False)

    compressed = jcc.compress(program, "lossless")
    equal(jax.jit(gradient(compressed))(x), jax.jit(gradient(program))(x))
    assert ours(gradient(compressed), x).count("lossless") >= 3  # forward, gradient, custom rule


# --- whole programs ---


def test_compressed_flax_step_returns_equal_gradients():
    nn = pytest.importorskip("flax.linen")

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(8)(nn.relu(nn.LayerNorm()(nn.Dense(128)(x))))

    model = Model()
    x, y = rows(16, 32), rows(16, 8, seed=1)
    params = model.init(jax.random.key(0), x[0])

    def step(params, x, y):
        def loss(params):
            return lax.pmean(jnp.mean((model.apply(params, x[0]) - y[0]) ** 2), "d")

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    plain = jax.shard_map(
        step, mesh=mesh_of(N), in_specs=(P(), P("d"), P("d")), out_specs=(P(), P())
    )
    compressed = jax.jit(jcc.compress(plain, "lossless"))
    equal(compressed(params, x, y), jax.jit(plain)(params, x, y))
    assert "lossless" in ours(compressed, params, x, y)


def test_compressed_optax_loop_under_scan_returns_equal_parameters():
    optax = pytest.importorskip("optax")
    optimizer = optax.adamw(1e-2)
    x, y = rows(16, 600), rows(16, seed=1)

    def train(x, y):
        def step(carry, _):
            w, state = carry
            grads = jax.grad(lambda w: lax.pmean(jnp.mean((x[0] @ w - y[0]) ** 2), "d"))(w)
            updates, state = optimizer.update(grads, state, w)
            return (optax.apply_updates(w, updates), state), None

        w = jnp.zeros(600, "float32")
        return lax.scan(step, (w, optimizer.init(w)), length=5)[0]

    plain = jax.shard_map(train, mesh=mesh_of(N), in_specs=P("d"), out_specs=P())
    equal(jax.jit(jcc.compress(plain, "lossless"))(x, y), jax.jit(plain)(x, y))


def test_compressed_ring_attention_returns_equal_values():
    def attention(q, k, v):
        """Ring attention: keys and values circulate among devices (Liu et al. 2023)."""
        ring = [(i, (i + 1) % N) for i in range(N)]

        def turn(carry, _):
            k, v, top, total, out = carry
            scores = q @ k.T / q.shape[-1] ** 0.5
            new = jnp.maximum(top, scores.max(-1))
            weights = jnp.exp(scores - new[:, None])
            scale = jnp.exp(top - new)
            total = total * scale + weights.sum(-1)
            out = out * scale[:, None] + weights @ v
            k, v = lax.ppermute((k, v), "d", ring)
            return (k, v, new, total, out), None

        start = varying(jnp.full(q.shape[0], -jnp.inf, "float32"), True)
        init = (k, v, start, jnp.zeros_like(start), jnp.zeros_like(q))
        (_, _, _, total, out), _ = lax.scan(turn, init, length=N)
        return out / total[:, None]

    operands = [rows(64, 32, seed=seed) for seed in range(3)]
    plain = mapped(attention)
    compressed = jcc.compress(plain, "lossless")
    equal(jax.jit(compressed)(*operands), jax.jit(plain)(*operands))
    assert ours(compressed, *operands) == ["lossless"]  # keys and values in one exchange

    def loss(function):
        return jax.grad(lambda *qkv: jnp.sum(function(*qkv) ** 2), argnums=(0, 1, 2))

    equal(jax.jit(loss(compressed))(*operands), jax.jit(loss(plain))(*operands))


# --- choice of codec ---


def two_of_each(x):
    with jax.named_scope("encoder"):
        a = lax.psum(x, "d")
        b = lax.all_gather(x, "d").sum(0)
    with jax.named_scope("decoder"):
        c = lax.psum(x * 2, "d")
    return a + c, b, lax.psum(jnp.sum(x), "d"), lax.psum(x.astype(jnp.int32), "d")


@pytest.mark.parametrize(
    ("policy", "codecs"),
    [
        ("int8", ["int8", "int8", "int8"]),
        ([CollectiveRule("int8", "psum")], ["int8", "int8"]),
        ([CollectiveRule("int8", "psum", min_bytes=0)], ["int8", "int8", "int8"]),
        ([CollectiveRule("int8", "all_*")], ["int8"]),
        ([CollectiveRule("int8", scope="*encoder*")], ["int8", "int8"]),
        (
            [CollectiveRule("int4", scope="*decoder*"), CollectiveRule("bf16", axis_name="d")],
            ["bf16", "bf16", "int4"],
        ),
        ([CollectiveRule("lossless", dtype="int*")], ["lossless"]),
        ([CollectiveRule("lossless", dtype="*", min_bytes=0)], ["lossless"] * 5),
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_rules_select_the_codec_of_each_collective(policy, codecs, inside):
    program = mapped(jcc.compress(two_of_each, policy) if inside else two_of_each)
    if not inside:
        program = jcc.compress(program, policy)
    assert sorted(ours(program, rows(1024))) == sorted(codecs)


def test_policy_none_replaces_collectives_without_compression():
    program = mapped(lambda x: lax.psum(x, "d"))
    text = str(jax.make_jaxpr(jcc.compress(program, None))(rows(1024)))
    assert not any(f" {each}" in text for each in OF_JAX)
    equal(jax.jit(jcc.compress(program, None))(rows(1024)), jax.jit(program)(rows(1024)))


def test_leaves_of_one_call_are_sent_together():
    program = mapped(jcc.compress(lambda x: lax.psum((x, x + 1, x[:600]), "d"), "int8"))
    assert ours(program, rows(1024)) == ["int8"]


def test_dependent_collectives_are_not_merged():
    program = mapped(
        jcc.compress(lambda x: lax.pmean(lax.pmean(varying(x, False), "d"), "d"), "lossless"),
        check_vma=False,
    )
    equal(jax.jit(program)(rows(512)), jax.jit(mapped(lambda x: lax.pmean(x, "d")))(rows(512)))


@pytest.mark.parametrize(
    ("function", "policy", "kind", "facts"),
    [
        (
            lambda x: x * 2,
            "int8",
            errors.InvalidArgumentError,
            ("no collective", "jaxccomp.data_parallel"),
        ),
        (
            lambda x: lax.psum(x, "d"),
            [CollectiveRule("int8", "all_gather")],
            errors.InvalidArgumentError,
            ("'all_gather'", "psum over d of float32[1024] at test_compress.py:"),
        ),
        (
            lambda x: lax.psum(x.astype(jnp.int32), "d"),
            [CollectiveRule("int8", dtype="int32")],
            errors.UnsupportedDTypeError,
            ("psum over d of int32[1024] at test_compress.py:", "'int8'", "lossy"),
        ),
    ],
)
def test_policies_that_compress_nothing_raise_errors_that_name_the_collectives(
    function, policy, kind, facts
):
    for program in (mapped(jcc.compress(function, policy)), jcc.compress(mapped(function), policy)):
        with raises(kind, facts):
            jax.jit(program)(rows(1024))


def test_invalid_policies_raise_before_tracing():
    with raises(errors.UnknownNameError, "'psun'", "'psum'"):
        CollectiveRule("int8", "psun")
    with raises(errors.UnknownNameError, "'int7'", "'int8'"):
        jcc.compress(lambda x: x, "int7")
    with raises(errors.InvalidArgumentError, "CollectiveRule", "min_bytes", "0", "-1"):
        CollectiveRule("int8", min_bytes=-1)
    with raises(errors.InvalidArgumentError, "policy", "jaxccomp.CollectiveRule", "'int8'"):
        jcc.compress(lambda x: x, ["int8"])


def test_compressed_jit_traces_once_and_keeps_donation():
    traces = []

    @functools.partial(jax.jit, donate_argnums=0)
    def step(x):
        traces.append(1)
        return mapped(lambda row: row + varying(lax.psum(row, "d"), True))(x)

    compressed = jcc.compress(step, "lossless")
    sharding = NamedSharding(mesh_of(N), P("d"))
    for _ in range(3):
        x = jax.device_put(rows(1024), sharding)
        compressed(x)
        assert x.is_deleted()
    assert len(traces) == 1


def test_compress_accepts_static_arguments():
    @functools.partial(jax.jit, static_argnums=1)
    def function(x, name, scale=1.0):
        assert name == "sum"
        return mapped(lambda row: lax.psum(row, "d") * scale)(x)

    x = rows(512)
    equal(jcc.compress(function, "lossless")(x, "sum", scale=2.0), function(x, "sum", scale=2.0))


def test_each_mesh_has_its_own_program_without_leaked_tracers():
    with jax.checking_leaks():
        compressed = jcc.compress(mapped(lambda x: lax.psum({"a": x, "b": 3}, "d")), "lossless")
        compressed(rows(512))

    def function(x):
        return jax.shard_map(lambda x: lax.pmean(x, "d"), in_specs=P("d"), out_specs=P())(x)

    compressed = jcc.compress(function, "lossless")
    for size in (2, 4):
        with jax.set_mesh(mesh_of(size)):
            x = np.arange(4 * 2048, dtype=np.float32).reshape(4, 2048)
            got = compressed(x)
        equal(got, x.reshape(size, -1, 2048).mean(0))


# --- error feedback ---


def averaged(state, gradients):
    """Subtracts the mean of gradients from a state, step by step."""

    def step(w, g):
        return w - lax.pmean(g, "d"), None

    return lax.scan(step, state, gradients)[0]


@pytest.mark.parametrize("check_vma", [True, False], ids=["check_vma", "no_check_vma"])
def test_compress_with_feedback_equals_allreduce_with_feedback(check_vma):
    gradients = rows(6, 2000)

    def by_hand(gradients):
        def step(carry, g):
            w, residual = carry
            mean, residual = jcc.allreduce_with_feedback(
                g, residual, op="sum", codec="onebit", axis_name="d"
            )
            return (w - mean / N, residual), None

        start = (jnp.zeros(2000, "float32"), varying(jnp.zeros(2000, "float32"), check_vma))
        return lax.scan(step, start, gradients)[0]

    def in_the_map(gradients):
        step = jcc.compress_with_feedback(averaged, "onebit")
        state = step.init(jnp.zeros(2000, "float32"), gradients)
        w, state = step.apply(state, jnp.zeros(2000, "float32"), gradients)
        return w, state.residuals[0]

    w, residual = jax.jit(mapped(by_hand, check_vma))(gradients)
    equal(jax.jit(mapped(in_the_map, check_vma))(gradients), (w, residual))

    around = jcc.compress_with_feedback(
        mapped(lambda g: averaged(jnp.zeros(2000, "float32"), g), check_vma), "onebit"
    )
    state = around.init(jax.ShapeDtypeStruct(gradients.shape, gradients.dtype))
    assert [x.shape for x in state.residuals] == [(N, 2000)]
    got, state = jax.jit(around.apply)(state, gradients)
    equal((got, state.residuals[0]), (w, residual))


def test_compress_with_feedback_delivers_all_values_in_a_python_loop():
    gradients = rows(5, 3000)
    program = mapped(lambda g: lax.psum({"a": g, "b": g[:1000] * 2, "count": g[0]}, "d"))
    step = jcc.compress_with_feedback(program, "topk:density=0.05")
    apply = jax.jit(step.apply)
    state = step.init(gradients[:, 0])
    total = jnp.zeros((N, 3000))
    for number in range(5):
        result, state = apply(state, gradients[:, number])
        total += result["a"]
    assert [x.shape for x in state.residuals] == [(N, 3000), (N, 1000)]  # the count is exact
    expected = (gradients.sum(1) - np.asarray(state.residuals[0])).sum(0)
    np.testing.assert_allclose(total, np.broadcast_to(expected, (N, 3000)), rtol=1e-4, atol=1e-4)
    assert np.abs(state.residuals[0]).max() > 1e-2


def test_compress_with_feedback_works_in_cond_and_while_loop():
    x = rows(3000)

    def program(x):
        def turn(carry):
            i, total = carry
            more = lax.cond(i % 2 == 0, lambda: lax.psum(x, "d"), lambda: lax.psum(x * 3, "d"))
            return i + 1, total + more

        return lax.while_loop(lambda c: c[0] < 6, turn, (0, jnp.zeros(3000, "float32")))[1]

    step = jcc.compress_with_feedback(mapped(program), "int4")
    total, state = jax.jit(step.apply)(step.init(x), x)
    assert [r.shape for r in state.residuals] == [(N, 3000)] * 2
    lost = sum(np.asarray(r) for r in state.residuals)
    np.testing.assert_allclose(
        total, np.broadcast_to((12 * x - lost).sum(0), (N, 3000)), rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize(("dimension", "tiled"), [(0, False), (0, True), (1, True), (1, False)])
def test_compress_with_feedback_delivers_all_values_of_psum_scatter(dimension, tiled):
    """Residuals have the operands' shape for any scattered dimension."""
    shape = [300, 80]
    shape[dimension] = 2 * N if tiled else N
    x = rows(3, *shape)

    def program(x):
        pair = {"a": x, "b": 2 * x}
        return lax.psum_scatter(pair, "d", scatter_dimension=dimension, tiled=tiled)

    step = jcc.compress_with_feedback(mapped(program), "int4")
    apply = jax.jit(step.apply)
    state = step.init(x[:, 0])
    assert [r.shape for r in state.residuals] == [(N, *shape)] * 2
    total = 0
    for number in range(3):
        result, state = apply(state, x[:, number])
        total += np.asarray(result["b"])
    missing = (2 * x.sum(1) - np.asarray(state.residuals[1])).sum(0)
    parts = np.split(missing, N, axis=dimension)
    expected = np.stack([part if tiled else part.squeeze(dimension) for part in parts])
    np.testing.assert_allclose(total, expected, rtol=1e-4, atol=1e-4)
    assert np.abs(state.residuals[1]).max() > 1e-2


def test_collectives_over_two_axes_have_separate_residuals():
    x = np.random.default_rng(0).normal(size=(2, 4, 1000)).astype(np.float32)
    mesh = mesh_of(2, 4)

    def body(x):
        x = x[0, 0]
        over_d = lax.psum(x, "d")
        return over_d[None], lax.psum(over_d, "m")

    program = jax.shard_map(body, mesh=mesh, in_specs=P("d", "m"), out_specs=(P("m"), P()))
    step = jcc.compress_with_feedback(program, "int4")
    state = step.init(x)
    assert [r.shape for r in state.residuals] == [(8, 1000), (4, 1000)]
    (over_d, total), state = jax.jit(step.apply)(state, x)
    lost = np.asarray(state.residuals[0]).reshape(2, 4, 1000)
    np.testing.assert_allclose(over_d, (x - lost).sum(0), atol=1e-4)
    np.testing.assert_allclose(total, (over_d - state.residuals[1]).sum(0), atol=1e-4)


def _in_condition(x):
    return lax.while_loop(lambda c: lax.psum(c, "d")[0] < 0, lambda c: c + 1, x)


def _in_a_branch(x):
    return lax.cond(x[0] > 0, lambda: lax.psum(x, "d"), lambda: lax.psum(x + 1, "d"))


@pytest.mark.parametrize(
    ("function", "facts"),
    [
        (_in_condition, "while_loop"),
        (_in_a_branch, ("branch", "jax.lax.pmax")),
        (lambda x: jax.checkpoint(lambda z: lax.psum(z, "d"))(x), ("derivatives", "jax.grad")),
        (lambda x: sine_of_mean(x), ("custom_jvp_call", "derivatives", "jax.grad")),
    ],
    ids=["while", "cond", "checkpoint", "custom_jvp"],
)
def test_collectives_without_a_place_for_residuals_are_refused(function, facts):
    step = jcc.compress_with_feedback(mapped(function), [CollectiveRule("int4", "psum")])
    call = "psum over d of float32[1024] at test_compress.py:"
    # JAX names the primitive of jax.checkpoint differently in each version.
    with raises(errors.InvalidArgumentError, "compress_with_feedback", call, facts, golden=False):
        step.init(rows(1024))


def test_apply_refuses_the_state_of_another_program():
    step = jcc.compress_with_feedback(mapped(lambda x: lax.psum(x, "d")), "int4")
    state = step.init(rows(1024))
    with raises(
        errors.InvalidArgumentError, "'float32[4,512]'", "'float32[4,1024]'", "init(*args)"
    ):
        step.apply(state, rows(512))


# --- one axis made explicit ---


def test_step_without_explicit_collectives_is_refused():
    mesh = mesh_of(N)
    x = jax.device_put(rows(1024), NamedSharding(mesh, P("d")))
    step = jcc.compress(jax.jit(lambda x: x.sum(0)), "int8")
    with raises(errors.InvalidArgumentError, "no collective", "jaxccomp.data_parallel"):
        step(x)


@pytest.mark.parametrize("codec", ["lossless", "int8"])
def test_data_parallel_leaves_other_axes_to_xla(codec):
    mesh = mesh_of(2, 4)
    x = np.random.default_rng(0).normal(size=(32, 64)).astype(np.float32)
    y = np.random.default_rng(1).normal(size=(32, 256)).astype(np.float32)
    w = np.random.default_rng(2).normal(size=(64, 256)).astype(np.float32) * 0.1

    def step(w, batch):
        x, y = batch

        def loss(w):
            return lax.pmean(jnp.mean((jnp.tanh(x @ w) - y) ** 2), "d")

        value, grad = jax.value_and_grad(loss)(w)
        return w - 0.5 * grad, value

    plain = jcc.data_parallel(step, "d", mesh=mesh)
    compressed = jax.jit(jcc.compress(plain, codec))
    placed = jax.device_put(w, NamedSharding(mesh, P(None, "m")))
    got, value = compressed(placed, (x, y))
    expected, loss = jax.jit(plain)(placed, (x, y))
    np.testing.assert_allclose(value, loss, rtol=1e-6)
    if codec == "lossless":
        equal(got, expected)
    else:
        np.testing.assert_allclose(got, expected, atol=1e-3)
        assert not np.array_equal(got, expected)
    whole = jax.value_and_grad(lambda w: jnp.mean((jnp.tanh(x @ w) - y) ** 2))(w)[1]
    np.testing.assert_allclose(expected, w - 0.5 * whole, atol=1e-5)


def test_data_parallel_refuses_unknown_axes_and_batch_argnums():
    with raises(errors.UnknownNameError, "data_parallel", "'data'", "'d', 'm'", "mesh="):
        jcc.data_parallel(lambda x: x, "data", mesh=mesh_of(2, 4))
    spread = jcc.data_parallel(lambda x: x, "d", mesh=mesh_of(2, 4), batch_argnums=(0, 1))
    with raises(errors.InvalidArgumentError, "batch_argnums=(0, 1)", "1 arguments"):
        spread(rows(4))
