"""Tensors as self-describing bytes: jaxccomp.codecs.encode and decode."""

import pathlib
import pickle
import random
import struct

import hypothesis
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from golden_errors import raises
from hypothesis import strategies as st

from jaxccomp import codecs, errors

ON_HOST = {n: info for n, info in codecs.table().items() if not n.startswith("nvcomp.")}
LOSSLESS = [name for name, info in ON_HOST.items() if info.lossless and not info.missing]
LOSSY = [name for name, info in ON_HOST.items() if not info.lossless and not info.missing]
DTYPES = [np.dtype(name) for name in codecs.table()["lossless"].dtypes]


def bits(array):
    return array.reshape(-1).view(np.uint8).tobytes()


def noise(dtype, shape, seed=0):
    count = int(np.prod(shape)) * dtype.itemsize
    raw = np.random.default_rng(seed).integers(0, 256, count, np.uint8)
    if dtype == np.bool_:
        raw &= 1
    return raw.view(dtype).reshape(shape)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("codec", [*LOSSLESS, "lossless|lossless"])
def test_lossless_frames_decode_bit_for_bit(codec, dtype):
    for shape in [(), (0,), (3, 0, 2), (1,), (5, 7), (4097,)]:
        array = noise(dtype, shape)
        out = codecs.decode(codecs.encode(codec, array))
        assert out.dtype == dtype and out.shape == shape
        assert bits(out) == bits(array)
        ref = noise(dtype, shape, seed=1)
        data = codecs.encode(codec, array, ref)
        assert bits(codecs.decode(data, ref)) == bits(array)


@pytest.mark.parametrize("codec", LOSSY)
def test_lossy_frames_decode_within_the_error_bound(codec):
    x = np.random.default_rng(0).normal(0, 0.02, (37, 113)).astype(np.float32)
    bound = codecs.error_bound(codec, x.dtype)
    y = codecs.decode(codecs.encode(codec, x))
    assert y.dtype == x.dtype and y.shape == x.shape
    error = np.abs(y.astype(np.float64) - x).reshape(-1)
    flat = np.abs(x).reshape(-1).astype(np.float64)
    block = bound.block_values or flat.size
    starts = np.arange(0, flat.size, block)
    peaks = np.repeat(np.maximum.reduceat(flat, starts), block)[: flat.size]
    assert (error <= bound.relative * flat + bound.block * peaks + bound.absolute).all()
    ref = (x + np.random.default_rng(1).normal(0, 1e-4, x.shape)).astype(np.float32)
    near = codecs.decode(codecs.encode(codec, x, ref), ref)
    assert np.abs(near - x).max() <= 2.001 * np.abs(x - ref).max() + bound.absolute


def test_encode_accepts_jax_arrays_strides_and_byte_orders():
    x = jnp.arange(12, dtype=jnp.bfloat16).reshape(3, 4)
    assert (codecs.decode(codecs.encode("lossless", x)) == np.asarray(x)).all()
    base = np.arange(24.0).reshape(4, 6)
    for view in (base[::2, ::-1], base.T, base.astype(">f8"), 2.5):
        assert (codecs.decode(codecs.encode("lossless", view)) == np.asarray(view)).all()


def test_inspect_returns_spec_dtype_shape_and_chunks():
    x = np.zeros((100, 50), ml_dtypes.bfloat16)
    info = codecs.inspect(codecs.encode(" raw | lossless ", x, chunk_bytes=1000, checksum=False))
    assert info.spec == "lossless" and info.dtype == x.dtype and info.shape == (100, 50)
    assert info.value_bytes == x.nbytes and info.chunks == 10 and info.chunk_values == 500
    assert not info.checksum and not info.delta
    assert codecs.inspect(codecs.encode("lossless", x, ref=x)).delta


@pytest.mark.parametrize("codec", ["int8:rounding=stochastic", "bf16:rounding=stochastic"])
def test_chunks_are_independent_and_seeded_by_the_key(codec):
    x = np.random.default_rng(0).normal(size=10000).astype(np.float32)
    whole = codecs.decode(codecs.encode(codec, x, key=(1, 2, 3)))
    cut = codecs.encode(codec, x, key=(1, 2, 3), chunk_bytes=128 * 4)
    assert bits(codecs.decode(cut)) == bits(whole)
    other = codecs.decode(codecs.encode(codec, x, key=(2, 2, 3)))
    assert bits(other) != bits(whole)


@pytest.mark.parametrize("codec", [*LOSSLESS, *LOSSY, "bf16|lossless"])
def test_decode_refuses_every_prefix_and_every_changed_byte(codec):
    x = np.random.default_rng(0).normal(size=300).astype(np.float32)
    data = codecs.encode(codec, x, chunk_bytes=400)
    for length in range(len(data)):
        with pytest.raises(errors.CorruptDataError):
            codecs.decode(data[:length])
    with pytest.raises(errors.CorruptDataError):
        codecs.decode(data + b"\0")
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 0x41
        # The flag "delta" changes the required arguments, before anything else is read.
        with pytest.raises((errors.CorruptDataError, errors.InvalidArgumentError)):
            codecs.decode(changed)


def test_changed_bytes_without_checksum_raise_only_documented_errors():
    x = np.random.default_rng(0).normal(size=1000).astype(ml_dtypes.bfloat16)
    data = codecs.encode("lossless", x, checksum=False)
    rng = random.Random(0)
    for _ in range(2000):
        changed = bytearray(data)
        changed[rng.randrange(len(changed))] = rng.randrange(256)
        try:
            codecs.decode(changed, max_bytes=1 << 20, require_checksum=False)
        except errors.InvalidArgumentError:
            pass
        except errors.CorruptDataError:
            pass


def test_decode_refuses_frames_without_checksum_by_default():
    """Otherwise altering one bit, the flag, would disable the checksums of a frame."""
    x = np.arange(10, dtype=np.float32)
    data = codecs.encode("lossless", x, checksum=False)
    assert not codecs.inspect(data).checksum
    with raises(errors.CorruptDataError, "checksum=True", "require_checksum=False"):
        codecs.decode(data)
    assert (codecs.decode(data, require_checksum=False) == x).all()


def test_small_frames_cannot_claim_large_memory():
    x = np.zeros(1000, np.float32)
    data = bytearray(codecs.encode("lossless", x, checksum=False))
    data[16:24] = struct.pack("<q", 1 << 50)
    with pytest.raises(errors.CorruptDataError):
        codecs.decode(data, require_checksum=False)
    for extent in (-1, 1 << 62, (1 << 63) - 1):
        data[16:24] = struct.pack("<q", extent)
        with raises(errors.CorruptDataError, "shape"):
            codecs.decode(data, require_checksum=False)
    with raises(errors.InvalidArgumentError, "4000 bytes", "max_bytes is 100"):
        codecs.decode(codecs.encode("lossless", x), max_bytes=100)


@pytest.mark.parametrize("codec", ["lossless", "delta"])
def test_decode_refuses_chunks_below_the_minimum_size(codec):
    data = bytearray(codecs.encode(codec, np.zeros(1000, np.float32), checksum=False))
    index = 16 + 8 + len(codec)
    payload = index + 4
    assert struct.unpack_from("<i", data, index)[0] == len(data) - payload
    data[index:payload] = struct.pack("<i", 2)
    with raises(errors.CorruptDataError, "chunk 0", "2 bytes"):
        codecs.decode(data[: payload + 2], require_checksum=False)


@pytest.mark.parametrize("junk", [b"", b"JCCF", b"x" * 100, pickle.dumps(np.zeros(3)), "text", 3])
def test_decode_refuses_bytes_that_are_no_frame(junk):
    with pytest.raises(ValueError):
        codecs.decode(junk)


def test_delta_base_must_match_the_frame():
    x = np.arange(10, dtype=np.float32)
    data = codecs.encode("lossless", x, ref=x + 1)
    with raises(errors.InvalidArgumentError, "decode", "give ref="):
        codecs.decode(data)
    with raises(errors.InvalidArgumentError, "decode", "reference", "chunk 0"):
        codecs.decode(data, ref=x)
    with raises(errors.InvalidArgumentError, "ref", "float32[10]", "float64[10]"):
        codecs.decode(data, ref=(x + 1).astype(np.float64))
    with raises(errors.InvalidArgumentError, "ref", "float32[10]", "float32[5]"):
        codecs.encode("lossless", x, ref=x[:5])
    with raises(errors.InvalidArgumentError, "decode", "ref="):
        codecs.decode(codecs.encode("lossless", x), ref=x)


def test_invalid_arguments_raise_errors_that_name_allowed_values():
    with raises(errors.InvalidArgumentError, "'bf16'", "int32", "float32, float64"):
        codecs.encode("bf16", np.arange(3, dtype=np.int32))
    with raises(errors.InvalidArgumentError, "encode", "str32"):
        codecs.encode("lossless", np.array(["a"]))
    with raises(errors.InvalidArgumentError, "chunk_bytes", "1", "0"):
        codecs.encode("lossless", np.zeros(3), chunk_bytes=0)


@hypothesis.given(
    data=st.data(),
    codec=st.sampled_from([*LOSSLESS, "lossless|zstd"]),
    dtype=st.sampled_from(DTYPES),
    count=st.integers(0, 5000),
    chunk_bytes=st.integers(1, 20000),
)
@hypothesis.settings(deadline=None, max_examples=150)
def test_random_arrays_round_trip_bit_for_bit(data, codec, dtype, count, chunk_bytes):
    # Limits the number of chunks, because each has a header.
    hypothesis.assume(count * dtype.itemsize / chunk_bytes < 2000)
    seed = data.draw(st.integers(0, 2**32 - 1))
    array = noise(dtype, (count,), seed)
    if data.draw(st.booleans()):
        array = np.sort(array.view(np.uint8)).view(dtype)
    out = codecs.decode(codecs.encode(codec, array, chunk_bytes=chunk_bytes))
    assert bits(out) == bits(array)


@hypothesis.given(st.binary(max_size=300))
@hypothesis.settings(deadline=None, max_examples=300)
def test_decode_refuses_random_bytes_after_a_frame_header(tail):
    with pytest.raises((errors.CorruptDataError, errors.InvalidArgumentError)):
        codecs.decode(b"JCCF\x01" + tail, max_bytes=1 << 24)


GOLDEN = sorted((pathlib.Path(__file__).parents[1] / "golden").glob("*.jccf"))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden_frames_decode_to_the_same_values(path):
    expected = np.load(path.with_suffix(".npy"))
    ref = path.with_suffix(".ref.npy")
    data = path.read_bytes()
    # NumPy's files do not support bfloat16.
    info = codecs.inspect(data)
    like = np.load(ref).view(info.dtype) if ref.exists() else None
    out = codecs.decode(data, like, require_checksum=info.checksum)
    assert bits(out) == bits(expected)


def test_every_codec_has_a_golden_frame():
    have = {codecs.inspect(path.read_bytes()).spec.partition(":")[0] for path in GOLDEN}
    assert set(ON_HOST) <= have
