"""The codecs of the traced plane: error bounds, and the engine's values bit for bit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_errors import raises
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxccomp import codecs, errors
from jaxccomp._native import engine
from jaxccomp._traced import codecs as traced_codecs

pytestmark = pytest.mark.skipif(not engine.available(), reason="bounds come from the engine")

# Decoded values equal the engine's.
EXACT = [
    "bf16",
    "fp16",
    "fp8_e4m3",
    "fp8_e5m2:block=64",
    "int8",
    "int4",
    "int2",
    "ternary:block=256,rounding=nearest",
    "tbq:threshold=0.5",
    "topk:density=0.2",
]
OTHERS = [
    "bf16:rounding=stochastic",
    "int8:rounding=stochastic",
    "int4:block=128,rounding=stochastic",
    "int2:rounding=stochastic",
    "onebit:block=256",
    "ternary:block=256",
    "randomk:density=0.2",
    "randomk:density=0.2,unbiased=true",
]
LENGTHS = [0, 1, 37, 530]
DTYPES = ["float16", "bfloat16", "float64"]
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-42, 3e38, -3e38, 1e39, 65504, 2.0**-100]


@functools.cache
def coder(spec, count, dtype):
    """Encodes and decodes in separate programs, so that the encoding is materialised."""
    codec = traced_codecs.find(codecs.canonical(spec))
    encode = jax.jit(lambda x, seed: codec.encode(x, jax.random.key(seed)))
    decode = jax.jit(lambda wire: codec.decode(wire, (count,), dtype))
    return lambda x, seed: np.asarray(decode(encode(x, seed)))


def check_bound(spec, x, decoded):
    bound = codecs.error_bound(spec, x.dtype)
    with np.errstate(all="ignore"):
        wide, got = x.astype(np.float64), decoded.astype(np.float64)
    length = bound.block_values or max(len(x), 1)
    for i in range(0, len(x), length):
        values, results = wide[i : i + length], got[i : i + length]
        inside = np.isfinite(values) & (np.abs(values) <= bound.range)
        if not bound.keeps_nonfinite and not inside.all():
            assert np.isnan(results).all()
            continue
        np.testing.assert_array_equal(np.isnan(results), np.isnan(values))
        beyond = ~inside & ~np.isnan(values)
        # Values barely beyond the range, within rounding, may round to its end.
        barely = beyond & (np.abs(values) <= bound.range * (1 + bound.relative))
        expected = np.where(barely & np.isfinite(results), bound.range, np.inf)
        np.testing.assert_array_equal(results[beyond], (np.sign(values) * expected)[beyond])
        values, results = values[inside], results[inside]
        if not len(values):
            continue
        magnitude = np.abs(values)
        most = bound.relative * magnitude + bound.block * magnitude.max() + bound.absolute
        assert (np.abs(results - values) <= most).all()


def check(spec, x, seed=0):
    decoded = coder(spec, len(x), x.dtype.name)(x, seed)
    assert decoded.dtype == x.dtype and decoded.shape == x.shape
    check_bound(spec, x, decoded)
    if spec in EXACT:
        native = np.asarray(codecs.decode(codecs.encode(spec, x)))
        # XLA flushes subnormals, including rounded values of a wider type.
        tiny = np.abs(native.astype(np.float64)) < 2.0**-126
        same = (decoded == native) & (np.signbit(decoded) == np.signbit(native))
        assert (same | tiny | (np.isnan(decoded) & np.isnan(native))).all()


def values(count, seed, spread, special, dtype):
    rng = np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        x = rng.standard_normal(count) * 10.0 ** rng.uniform(-spread, spread, count)
        for which, place in special:
            if count:
                x[place % count] = SPECIAL[which]
        return x.astype(jnp.dtype(dtype))


cases = given(
    seed=st.integers(0, 2**32 - 1),
    spread=st.floats(0, 37),
    special=st.lists(
        st.tuples(st.integers(0, len(SPECIAL) - 1), st.integers(0, 10_000)), max_size=4
    ),
)


@pytest.mark.parametrize("count", LENGTHS)
@pytest.mark.parametrize("spec", EXACT + OTHERS)
@cases
@settings(max_examples=12, deadline=None)
@example(seed=0, spread=0, special=[])
def test_decoded_values_are_within_the_error_bound(spec, count, seed, spread, special):
    check(spec, values(count, seed, spread, special, "float32"), seed)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spec", EXACT + OTHERS)
def test_every_dtype_is_decoded_within_the_error_bound(spec, dtype):
    if dtype not in codecs.table()[spec.split(":")[0]].dtypes:
        pytest.skip("travels as it is")
    with jax.enable_x64(True):
        for seed, spread in enumerate([0, 1, 3, 30]):
            check(spec, values(301, seed, spread, [], dtype), seed)
            check(spec, values(301, seed, spread, [(seed, 7), (9, 8), (8, 300)], dtype), seed)


@pytest.mark.parametrize("spec", EXACT)
def test_every_scale_is_decoded_within_the_error_bound(spec):
    """All scales, including the ones at rounding boundaries."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 0x7F80, 600).astype(np.uint32) << 16
    bits += rng.choice(np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32), 600)
    check(spec, bits.view(np.float32)[:530])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("spec", sorted({*EXACT, *OTHERS}))
def test_encoded_bytes_equal_the_engines(spec, dtype):
    """The concatenated arrays equal the engine's bytes; keys give the same random numbers."""
    name = spec.partition(":")[0]
    if dtype not in codecs.table()[name].dtypes or name in ("topk", "randomk"):
        pytest.skip("travels as it is, or in another form")
    codec = traced_codecs.find(codecs.canonical(spec))
    encode = jax.jit(codec.encode)
    for count in (1, 5, 1024, 2079) if dtype == "float32" else (1, 2079):
        x = np.asarray(values(count, count, 2, [(0, 70), (7, 3)], dtype))
        key = jax.random.key(count)
        low, high = map(int, jax.random.key_data(key))
        wire = encode(x, key)
        frame = codecs.encode(spec, x, key=(low | high << 32, 0, 0), checksum=False)
        if name == "onebit":  # the traced plane sums its means in float32
            means = np.asarray(wire[0])
            expected = np.frombuffer(frame[-sum(w.nbytes for w in wire) :], np.float32, means.size)
            np.testing.assert_allclose(means.reshape(-1), expected, rtol=1e-5)
            wire = wire[1:]
        code = b"".join(np.asarray(part).tobytes() for part in wire)
        assert code == frame[-len(code) :], count


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_scales_at_rounding_boundaries_decode_within_the_error_bound(bits):
    """The largest value is a code times a bfloat16, or adjacent."""
    most = 2 ** (bits - 1) - 1
    scales = np.linspace(1, 2, 129)[:128].astype(np.float32) * most
    x = np.zeros((3, 128, 32), np.float32)
    x[:, :, 0] = np.stack([scales, np.nextafter(scales, 0), np.nextafter(scales, np.inf)])
    x[:, :, 1] = scales / np.float32(2.1)
    check(f"int{bits}", x.reshape(-1))


@pytest.mark.parametrize(
    "spec",
    [
        "bf16:rounding=stochastic",
        "int4:rounding=stochastic",
        "ternary:block=256",
        "randomk:density=0.2,unbiased=true",
    ],
)
def test_stochastic_codecs_are_unbiased(spec):
    codec = traced_codecs.find(codecs.canonical(spec))
    x = np.random.default_rng(1).standard_normal(256).astype(np.float32)
    keys = jax.random.split(jax.random.key(0), 4000)
    decoded = jax.vmap(lambda key: codec.decode(codec.encode(x, key), x.shape, x.dtype))(keys)
    # A rare outcome may never occur: allow one more or less.
    step = np.abs(decoded).max()
    most = 5.5 * np.asarray(decoded).std(axis=0) / np.sqrt(len(keys)) + 5.5 * step / len(keys)
    assert (np.abs(np.asarray(decoded).mean(axis=0) - x) <= most).all()


def test_stochastic_bf16_keeps_values_representable_in_bfloat16():
    """Infinity, signed zeros and NaN are kept; larger finite values become the largest bfloat16."""
    codec = traced_codecs.find(codecs.canonical("bf16:rounding=stochastic"))
    kept = np.arange(0x10000, dtype=np.uint32).astype(np.uint16)
    values = (kept.astype(np.uint32) << 16).view(np.float32)
    (code,) = jax.jit(codec.encode)(values, jax.random.key(5))
    is_nan = np.isnan(values)
    np.testing.assert_array_equal(np.asarray(code)[~is_nan], kept[~is_nan])
    np.testing.assert_array_equal(np.asarray(code)[is_nan], kept[is_nan] | 0x40)
    above = np.array([0x7F7F0001, 0x7F7FFFFF, 0xFF7FFFFF] * 10, np.uint32).view(np.float32)
    (code,) = codec.encode(above, jax.random.key(5))
    np.testing.assert_array_equal(code, np.array([0x7F7F, 0x7F7F, 0xFF7F] * 10, np.uint16))


@pytest.mark.parametrize("unbiased", ["false", "true"])
def test_randomk_keeps_one_value_of_each_segment(unbiased):
    codec = traced_codecs.find(codecs.canonical(f"randomk:density=0.01,unbiased={unbiased}"))
    x = np.arange(1, 100_041, dtype=np.float32)
    decoded = np.asarray(codec.decode(codec.encode(x, jax.random.key(3)), x.shape, x.dtype))
    (places,) = np.nonzero(decoded)
    lengths = np.where(np.arange(1001) < 100_040 % 1001, 100, 99)
    assert (np.searchsorted(np.cumsum(lengths), places, side="right") == np.arange(1001)).all()
    factors = lengths if unbiased == "true" else 1
    np.testing.assert_array_equal(decoded[places], x[places] * factors)
    middle = (places - np.cumsum(lengths) + lengths) / lengths
    assert 0.45 < middle.mean() < 0.55 and middle.min() < 0.02 and middle.max() > 0.97


@pytest.mark.parametrize(
    "spec,dtype,travels",
    [
        ("bf16", "float32", {"uint16": 1001}),
        ("bf16:rounding=stochastic", "float32", {"uint16": 1001}),
        ("int8", "float32", {"uint16": 32, "uint8": 1001}),
        ("int4", "bfloat16", {"uint16": 32, "uint8": 501}),
        ("int2:block=256", "float32", {"uint16": 4, "uint8": 251}),
        ("fp8_e4m3", "float32", {"uint8": 32 + 1001}),
        ("onebit", "float32", {"float32": 2, "uint8": 126}),
        ("ternary:block=256", "float32", {"float32": 4, "uint8": 251}),
        ("tbq", "float16", {"uint8": 251}),
        ("topk", "bfloat16", {"bfloat16": 11, "uint16": 11}),
        ("randomk", "float32", {"float32": 11, "uint32": 2}),
    ],
)
def test_encoded_arrays_have_the_documented_sizes(spec, dtype, travels):
    codec = traced_codecs.find(codecs.canonical(spec))
    x = jax.ShapeDtypeStruct((7, 143), dtype)
    sizes = {}
    for array in jax.eval_shape(codec.encode, x, jax.eval_shape(jax.random.key, 0)):
        sizes[array.dtype.name] = sizes.get(array.dtype.name, 0) + array.size
    assert sizes == travels


def test_topk_positions_of_large_arrays_are_int32():
    codec = traced_codecs.find("topk")
    x = np.zeros(70_000, np.float32)
    x[-1] = 5
    values, places = codec.encode(x)
    assert places.dtype == jnp.int32
    np.testing.assert_array_equal(codec.decode((values, places), x.shape, x.dtype), x)


@pytest.mark.parametrize("spec", ["raw", "lossless", "zstd:level=3", "lz4", "zstd|lossless"])
def test_xla_backend_ignores_lossless_codecs_and_stages(spec):
    assert traced_codecs.find(codecs.canonical(spec)) is None
    assert traced_codecs.find("int8|lossless").bits == 8


def test_xla_backend_has_exactly_the_fixed_rate_lossy_codecs():
    fixed = {
        name
        for name, info in codecs.table().items()
        if not info.lossless and name not in ("dgc", "zfp")
    }
    assert set(traced_codecs.CODECS) == fixed
    for name in fixed:
        assert traced_codecs.find(name).dtypes == codecs.table()[name].dtypes
    for name in ("dgc", "zfp"):
        with raises(errors.UnknownNameError, 'backend="xla"', "'bf16'", "fixed rate"):
            traced_codecs.find(name)
