"""jaxccomp.bcast of the difference to a delta base, along named axes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import pairwise
from golden_errors import raises
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxccomp as jcc
from jaxccomp._native import engine

N = 8
ROOT = 5
BACKENDS = ["xla"] + (["native"] if engine.available() else [])
# Tolerances for differences of 1e-3; bf16 of the values themselves (about 1) has a far larger
# error.
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
    """Returns all ranks' values, and a delta base close to them."""
    rng = np.random.default_rng(3)
    ref = rng.standard_normal(shape).astype(np.float32)
    return ref + (1e-3 * rng.uniform(-1, 1, (ranks, *shape))).astype(np.float32), ref


def check(result, expected, codec):
    np.testing.assert_allclose(result, expected, rtol=0, atol=TOLERANCE[codec])


@pytest.mark.parametrize("backend,codec,check_vma", pairwise(BACKENDS, TOLERANCE, [True, False]))
def test_bcast_with_delta_base_supports_pytrees_of_mixed_dtypes(mesh, backend, codec, check_vma):
    """Leaves of several types, some not supported by the codec; empty ones; PRNG keys."""
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
def test_delta_base_can_be_carried_by_scan_and_donated(mesh, backend):
    """The parameters of each step are the delta base of the next."""
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
def test_donated_operands_give_right_results_and_others_keep_values(mesh, backend, which):
    how = {"axis_name": "d", "codec": "lossless", "backend": backend}
    x, ref = pair()
    donated = {"x": 0, "ref": 1, "both": (0, 1), "the same": 0}[which]
    if which == "the same":
        x = np.stack([ref] * N)

    def program(x, ref):
        return jcc.bcast(x, ROOT, ref=x if which == "the same" else ref, **how)

    spread = jax.NamedSharding(mesh, P("d"))
    # Separate copies on each rank, so that memory of the result's shape can be reused.
    rows = [jax.device_put(jnp.array(v.reshape(-1, 5)), spread) for v in (x, np.stack([ref] * N))]
    result = on(mesh, program, (P("d"), P("d")), donate_argnums=donated)(*rows)
    np.testing.assert_array_equal(result, x[ROOT])
    for row, values in zip(rows, (x, np.stack([ref] * N)), strict=True):
        if not row.is_deleted():
            np.testing.assert_array_equal(row, values.reshape(-1, 5))


@pytest.mark.parametrize("codec", ["lossless", "bf16"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradient_flows_to_values_and_not_to_the_delta_base(mesh, backend, codec):
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


@pytest.mark.parametrize(
    "backend,dims,codec",
    pairwise(BACKENDS, [(0, 0), (1, 0), (None, 0), (1, None), (None, None)], TOLERANCE),
)
def test_bcast_with_delta_base_supports_vmap(mesh, backend, dims, codec):
    """Batches of values, of delta bases, or of both, with values close to each other."""
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
def test_bcast_with_delta_base_works_along_a_vmap_axis(codec):
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


@pytest.mark.parametrize("root,axes,codec", pairwise(range(6), [("v", "d"), ("d", "v")], TOLERANCE))
def test_bcast_with_delta_base_works_over_vmap_and_shard_map_axes(axes, root, codec):
    """Devices exchange the difference for the row that the root has."""
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
def test_pbroadcast_accepts_a_delta_base(mesh, backend):
    x, ref = pair()
    how = {"ref": ref, "codec": "bf16", "backend": backend}
    program = lambda x, how: jcc.lax.pbroadcast(x, "d", ROOT, **how)  # noqa: E731
    got = on(mesh, lambda x: program(x[0], how)[None], P("d"), P("d"))(x)
    check(got, np.stack([x[ROOT]] * N), "bf16")
    with raises(jcc.errors.InvalidArgumentError, "source", "pbroadcast"):
        on(mesh, lambda x, s: jcc.lax.pbroadcast(x[0], "d", s, **how), (P("d"), P()))(x, ROOT)


@needs_engine
def test_bcast_with_delta_base_sends_fewer_bytes(mesh):
    """bfloat16 weights, of which one in eight has changed in the last bit."""
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


def rows(seed=5, shape=(40, 3)):
    """Returns every rank's new and old values, which differ between ranks."""
    old = np.random.default_rng(seed).standard_normal((N, *shape)).astype(np.float32)
    return old + np.float32(1e-3) * np.roll(old, 1), old


TO_NEXT = [(r + 1) % N for r in range(N)]
TO_FEW = [3, None, 0, None, None, None, 7, None]


def previous(array, pairs, rank):
    """Returns the row of ``array`` that the rank has received."""
    source = [pairs.index(r) if r in pairs else r for r in range(N)]
    return jnp.asarray(array)[jnp.asarray(source)[rank]]


# By name: the operation on a rank's row of x and all old rows, and the results of all ranks.
MOVES = {
    "allgather": (
        lambda x, old, rank, how: jcc.allgather(x, ref=old, **how),
        lambda x: np.stack([x] * N),
    ),
    "scatter": (
        lambda x, old, rank, how: jcc.scatter(
            jnp.where(rank == ROOT, how.pop("everything"), 0), ROOT, ref=old, **how
        ),
        lambda x: x,
    ),
    "sendrecv": (
        lambda x, old, rank, how: jcc.sendrecv(
            x, TO_NEXT, ref=jnp.asarray(old)[rank], recv_ref=previous(old, TO_NEXT, rank), **how
        ),
        lambda x: np.roll(x, 1, 0),
    ),
    "sendrecv of few": (
        lambda x, old, rank, how: jcc.sendrecv(
            x, TO_FEW, ref=jnp.asarray(old)[rank], recv_ref=previous(old, TO_FEW, rank), **how
        ),
        lambda x: np.stack([x[TO_FEW.index(r)] if r in TO_FEW else 0 * x[0] for r in range(N)]),
    ),
}


def move(name, how):
    """Returns the program of a rank: a function of its row of x, all of x, and old."""
    run = MOVES[name][0]

    def program(x, everything, old):
        options = how | ({"everything": everything} if name == "scatter" else {})
        return run(x[0], old, jax.lax.axis_index("d"), options)[None]

    return program


@pytest.mark.parametrize(
    "name,backend,codec,check_vma", pairwise(MOVES, BACKENDS, TOLERANCE, [True, False])
)
def test_operations_with_delta_base_return_the_values(mesh, name, backend, codec, check_vma):
    x, old = rows()
    program = move(name, {"axis_name": "d", "codec": codec, "backend": backend})
    got = on(mesh, program, (P("d"), P(), P()), P("d"), check_vma)(x, x, old)
    check(got, MOVES[name][1](x), codec)


@pytest.mark.parametrize(
    "name,backend,dims",
    pairwise(MOVES, BACKENDS, [(0, 0), (1, None), (None, 1), (2, 2), (None, None)]),
)
def test_operations_with_delta_base_support_vmap(mesh, name, backend, dims):
    """Batches of values, of delta bases or of both: dimensions of x, and of old after its first."""
    x, old = rows()
    near = np.linspace(0, 1e-3, 3, dtype=np.float32)
    how = {"axis_name": "d", "codec": "delta", "backend": backend}
    run, expected = MOVES[name]
    many_x = x if dims[0] is None else np.stack([x + d for d in near], 1 + dims[0])
    many_old = old if dims[1] is None else np.stack([old + d for d in near], 1 + dims[1])
    in_axes = (dims[0], *(None if d is None else d + 1 for d in dims), 0)

    def program(x, everything, old):
        rank = jax.lax.axis_index("d")

        def one(x, everything, old, _):
            options = how | ({"everything": everything} if name == "scatter" else {})
            return run(x, old, rank, options)

        return jax.vmap(one, in_axes)(x[0], everything, old, jnp.zeros(3))[None]

    specs = (P("d"), P(), P())
    got = np.asarray(on(mesh, program, specs, P("d"), False)(many_x, many_x, many_old))
    for i in range(3):
        one = many_x if dims[0] is None else np.take(many_x, i, 1 + dims[0])
        np.testing.assert_array_equal(got[:, i], expected(one))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["allgather", "sendrecv", "sendrecv of few"])
def test_operations_with_delta_base_have_equal_derivatives(mesh, name, backend):
    """They equal the derivatives without a delta base."""
    x, old = rows()
    how = {"axis_name": "d", "codec": "delta", "backend": backend}

    def program(x, old):
        rank = jax.lax.axis_index("d")
        f = lambda x, old: MOVES[name][0](x, old, rank, dict(how))  # noqa: E731
        weights = jnp.cos(jnp.arange(f(x[0], old).size)).reshape(f(x[0], old).shape)
        by_x, by_old = jax.grad(lambda x, old: (f(x, old) * weights).sum(), (0, 1))(x[0], old)
        tangent = jax.jvp(f, (x[0], old), (2 * x[0], old))[1]
        return by_x[None], by_old[None], tangent[None]

    by_x, by_old, tangent = on(mesh, program, (P("d"), P()), P("d"), False)(x, old)
    np.testing.assert_array_equal(tangent, MOVES[name][1](2 * x))
    np.testing.assert_array_equal(by_old, 0 * np.stack([old] * N))
    weights = np.cos(np.arange(tangent[0].size)).reshape(tangent[0].shape).astype(np.float32)
    if name == "allgather":
        expected = weights * N
    else:
        pairs = TO_NEXT if name == "sendrecv" else TO_FEW
        expected = np.stack([weights if to is not None else 0 * weights for to in pairs])
    np.testing.assert_allclose(by_x, expected, rtol=1e-6)


@pytest.mark.parametrize("name", MOVES)
def test_operations_with_delta_base_work_along_a_vmap_axis(name):
    x, old = rows()

    def program(x, everything, old):
        how = {"axis_name": "d", "codec": "bf16"}
        options = how | ({"everything": everything} if name == "scatter" else {})
        return MOVES[name][0](x, old, jax.lax.axis_index("d"), options)

    got = jax.vmap(program, (0, None, None), axis_name="d")(x, x, old)
    np.testing.assert_array_equal(np.broadcast_to(got, MOVES[name][1](x).shape), MOVES[name][1](x))


@needs_engine
@pytest.mark.parametrize("name", [name for name in MOVES if name != "sendrecv of few"])
def test_operations_with_delta_base_send_fewer_bytes(mesh, name):
    old = (0.02 * np.random.default_rng(4).standard_normal((N, 1 << 14))).astype(jnp.bfloat16)
    bits = old.view(np.uint16).copy()
    bits[:, ::100] ^= 1
    x = bits.view(old.dtype)

    def sent(old, codec):
        program = move(name, {"axis_name": "d", "codec": codec})
        jcc.stats.reset()
        got = on(mesh, program, (P("d"), P(), P()), P("d"))(x, x, old)
        expected = np.broadcast_to(MOVES[name][1](bits), got.shape)
        np.testing.assert_array_equal(np.asarray(got).view(np.uint16), expected)
        (row,) = jcc.stats.get().operations.values()
        return row.sent_bytes

    assert 40 * sent(old, "delta") < sent(np.zeros_like(old), "lossless")
