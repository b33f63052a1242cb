"""jaxccomp.bcast of the difference to a reference, along named axes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxccomp as jcc
from jaxccomp._native import engine

N = 8
ROOT = 5
BACKENDS = ["xla"] + (["native"] if engine.available() else [])
# Of a difference of 1e-3; what bf16 makes of values around 1 is far more.
TOLERANCE = {"lossless": 0.0, "delta": 0.0, "auto": 0.0, "bf16": 1e-3 * 2**-8 * 4}

needs_engine = pytest.mark.skipif(not engine.available(), reason="needs the engine")


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((N,), ("d",), axis_types=(AxisType.Auto,))


def on(mesh, program, in_specs, out_specs=None, check_vma=True, **options):
    mapped = jax.shard_map(
        program, mesh=mesh, in_specs=in_specs, out_specs=out_specs or P(), check_vma=check_vma
    )
    return jax.jit(mapped, **options)


def pair(shape=(33, 5), ranks=N):
    """All ranks' values, and the reference that they are near."""
    rng = np.random.default_rng(3)
    ref = rng.standard_normal(shape).astype(np.float32)
    return ref + (1e-3 * rng.uniform(-1, 1, (ranks, *shape))).astype(np.float32), ref


def check(result, expected, codec):
    np.testing.assert_allclose(result, expected, rtol=0, atol=TOLERANCE[codec])


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("codec", TOLERANCE)
@pytest.mark.parametrize("backend", BACKENDS)
def test_trees(mesh, backend, codec, check_vma):
    """Leaves of several types, of which a codec may know some only; empty ones; PRNG keys."""
    x, ref = pair()
    more = {
        "bfloat16": ref.astype(jnp.bfloat16),
        "int8": np.arange(7, dtype=np.int8),
        "bool": np.array([True, False, True]),
        "complex64": (ref[0] + 1j * ref[1]).astype(np.complex64),
        "int4": jnp.arange(5, dtype=jnp.int4),
        "empty": np.zeros((0, 3), np.float32),
        "key": jax.random.key(1),
        "none": None,
    }
    changed = dict(more, key=jax.random.key(2), bool=~more["bool"], int8=more["int8"] + 1)

    def program(x, more, changed, ref):
        tree = jcc.bcast(
            {"x": x[0], "more": changed},
            ROOT,
            ref={"x": ref, "more": more},
            axis_name="d",
            codec=codec,
            backend=backend,
        )
        return tree["x"], tree["more"]

    x_got, more_got = on(mesh, program, (P("d"), P(), P(), P()), check_vma=check_vma)(
        x, more, changed, ref
    )
    check(x_got, x[ROOT], codec)
    for name in ("bfloat16", "int8", "bool", "int4", "empty"):
        np.testing.assert_array_equal(more_got[name], changed[name])
    np.testing.assert_allclose(more_got["complex64"], changed["complex64"], rtol=1e-6)
    assert more_got["key"] == changed["key"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_carried_by_scan_and_donated(mesh, backend):
    """The parameters of each step are the reference of the next."""
    x, ref = pair()
    updates = np.stack([x, x * 1.01, x * 0.99])

    def program(updates, params):
        def step(params, update):
            params = jcc.bcast(
                update[0], ROOT, ref=params, axis_name="d", codec="lossless", backend=backend
            )
            return params, params.sum()

        return jax.lax.scan(step, params, updates)[0]

    run = on(mesh, program, (P(None, "d"), P()), donate_argnums=1)
    np.testing.assert_array_equal(run(updates, jnp.array(ref)), updates[-1, ROOT])


@pytest.mark.parametrize("which", ["x", "ref", "both", "the same"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_results_in_the_memory_of_operands(mesh, backend, which):
    """And what is not donated keeps its values."""
    how = {"axis_name": "d", "codec": "lossless", "backend": backend}
    x, ref = pair()
    donated = {"x": 0, "ref": 1, "both": (0, 1), "the same": 0}[which]
    if which == "the same":
        x = np.stack([ref] * N)

    def program(x, ref):
        return jcc.bcast(x, ROOT, ref=x if which == "the same" else ref, **how)

    spread = jax.NamedSharding(mesh, P("d"))
    # Each rank's own copies, so that there is memory of the result's shape to take over.
    rows = [jax.device_put(jnp.array(v.reshape(-1, 5)), spread) for v in (x, np.stack([ref] * N))]
    result = on(mesh, program, (P("d"), P("d")), donate_argnums=donated)(*rows)
    np.testing.assert_array_equal(result, x[ROOT])
    for row, values in zip(rows, (x, np.stack([ref] * N)), strict=True):
        if not row.is_deleted():
            np.testing.assert_array_equal(row, values.reshape(-1, 5))


@pytest.mark.parametrize("codec", ["lossless", "bf16"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_derivatives_go_to_the_values_alone(mesh, backend, codec):
    x, ref = pair((4,))
    how = {"axis_name": "d", "codec": codec, "backend": backend}

    def derivatives(x, ref, w):
        f = lambda x, ref: jcc.bcast(x, ROOT, ref=ref, **how)  # noqa: E731
        # Both depend on the input, so that both have tangents.
        tangent = jax.jvp(f, (x[0], ref), (2 * x[0], ref))[1]
        by_x, by_ref = jax.grad(lambda x, r: (f(x, r) * w[0]).sum(), (0, 1))(x[0], ref)
        transposed = jax.linear_transpose(lambda x: f(x, ref), x[0])(w[0])[0]
        return tangent[None], by_x[None], by_ref[None], transposed[None]

    w = np.arange(N * 4, dtype=np.float32).reshape(N, 4)
    results = on(mesh, derivatives, (P("d"), P(), P("d")), P("d"), check_vma=False)(x, ref, w)
    tangent, by_x, by_ref, transposed = map(np.asarray, results)
    close = {"rtol": 2**-7 if codec == "bf16" else 0}
    np.testing.assert_allclose(tangent, np.stack([2 * x[ROOT]] * N), **close)
    expected = np.zeros_like(w)
    expected[ROOT] = w.sum(0)
    np.testing.assert_allclose(by_x, expected, **close)
    np.testing.assert_allclose(transposed, expected, **close)
    np.testing.assert_array_equal(by_ref, 0 * w)


@pytest.mark.parametrize("codec", TOLERANCE)
@pytest.mark.parametrize("dims", [(0, 0), (1, 0), (None, 0), (1, None), (None, None)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_vmap(mesh, backend, dims, codec):
    """A batch of values, of references, or of both, of values that are all near each other."""
    x, ref = pair((4,))
    refs, _ = pair((4,), ranks=3)
    near = np.linspace(0, 1e-3, 3, dtype=np.float32)
    values = x if dims[0] is None else np.stack([x + d for d in near], 1 + dims[0])

    def program(x, ref):
        f = lambda x, ref, _: jcc.bcast(  # noqa: E731
            x, ROOT, ref=ref, axis_name="d", codec=codec, backend=backend
        )
        return jax.vmap(f, (*dims, 0))(x[0], ref, jnp.zeros(3))

    got = on(mesh, program, (P("d"), P()))(values, ref if dims[1] is None else refs)
    root = values[ROOT]
    expected = np.stack([root] * 3) if dims[0] is None else np.moveaxis(root, dims[0], 0)
    check(got, expected, codec)


@pytest.mark.parametrize("codec", TOLERANCE)
def test_along_an_axis_of_vmap(codec):
    x, ref = pair()
    f = lambda x, ref: jcc.bcast(x, ROOT, ref=ref, axis_name="v", codec=codec)  # noqa: E731
    got = jax.vmap(f, (0, None), axis_name="v")(x, ref)
    np.testing.assert_array_equal(got, np.stack([x[ROOT]] * N))
    groups = [[6, 7, 4, 5], [0, 1, 2, 3]]
    g = lambda x, ref: jcc.bcast(  # noqa: E731
        x, 1, ref=ref, axis_name="v", codec=codec, axis_index_groups=groups
    )
    got = jax.vmap(g, (0, None), axis_name="v")(x, ref)
    np.testing.assert_array_equal(got, x[[1] * 4 + [7] * 4])


@pytest.mark.parametrize("codec", TOLERANCE)
@pytest.mark.parametrize("axes", [("v", "d"), ("d", "v")])
@pytest.mark.parametrize("root", range(6))
def test_axes_of_vmap_and_shard_map_together(axes, root, codec):
    """The difference travels between the devices that have the root's row."""
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))
    x, ref = pair(ranks=6)

    def program(x, ref):
        f = lambda x: jcc.bcast(x, root, ref=ref, axis_name=axes, codec=codec)  # noqa: E731
        return jax.vmap(f, axis_name="v")(x[:, 0])[:, None]

    sizes = {"v": 3, "d": 2}
    rows = x.reshape(*(sizes[axis] for axis in axes), *ref.shape)
    if axes[0] == "d":
        rows = rows.swapaxes(0, 1)
    got = on(mesh, program, (P(None, "d"), P()), P(None, "d"), check_vma=False)(rows, ref)
    check(got, np.broadcast_to(x[root], (3, 2, *ref.shape)), codec)


@pytest.mark.parametrize("backend", BACKENDS)
def test_pbroadcast(mesh, backend):
    x, ref = pair()
    how = {"ref": ref, "codec": "bf16", "backend": backend}
    program = lambda x, how: jcc.lax.pbroadcast(x, "d", ROOT, **how)  # noqa: E731
    got = on(mesh, lambda x: program(x[0], how)[None], P("d"), P("d"))(x)
    check(got, np.stack([x[ROOT]] * N), "bf16")
    with pytest.raises(jcc.errors.InvalidArgumentError, match="source"):
        on(mesh, lambda x, s: jcc.lax.pbroadcast(x[0], "d", s, **how), (P("d"), P()))(x, ROOT)


@needs_engine
def test_fewer_bytes_travel(mesh):
    """Weights of bfloat16 of which one in eight has changed by a step."""
    weights = (0.02 * np.random.default_rng(4).standard_normal(1 << 16)).astype(jnp.bfloat16)
    bits = weights.view(np.uint16).copy()
    bits[::8] ^= 1
    x = np.stack([bits.view(weights.dtype)] * N)

    def sent(ref):
        f = lambda x: jcc.bcast(x[0], ROOT, ref=ref, axis_name="d", codec="lossless")  # noqa: E731
        jcc.stats.reset()
        got = jax.block_until_ready(on(mesh, f, P("d"))(x))
        np.testing.assert_array_equal(np.asarray(got).view(np.uint16), bits)
        return jcc.stats.get().operations["bcast"].sent_bytes

    assert 3 * sent(weights) < sent(None)
