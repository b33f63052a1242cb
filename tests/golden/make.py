"""Makes golden frames: encodings that every later version must decode to the same bits.

    python tests/golden/make.py

Existing files are never overwritten, because later versions must decode them. A new codec, or a new
version of a format, needs a row below.
"""

import pathlib

import ml_dtypes
import numpy as np

from jaxccomp import codecs

FOLDER = pathlib.Path(__file__).parent

# Name of the file: spec, dtype, shape, other arguments of encode().
ROWS = {
    "raw": ("raw", "int16", (3, 5), {}),
    "lossless_bfloat16": ("lossless", "bfloat16", (40, 41), {}),
    "lossless_float32_chunks": ("lossless", "float32", (700,), {"chunk_bytes": 1024}),
    "lossless_segments": ("lossless", "bfloat16", (40000,), {}),
    "lossless_float8": ("lossless", "float8_e4m3fn", (333,), {"checksum": False}),
    "lossless_empty": ("lossless", "float64", (0, 4), {}),
    "lossless_scalar": ("lossless", "complex64", (), {}),
    "bf16": ("bf16", "float32", (33,), {}),
    "bf16_stochastic": ("bf16:rounding=stochastic", "float32", (100,), {"key": (5, 6, 7)}),
    "fp16": ("fp16", "float64", (33,), {}),
    "bf16_lossless": ("bf16|lossless", "float32", (500,), {}),
    "int8": ("int8", "float32", (100,), {}),
    "int8_stochastic": ("int8:block=64,rounding=stochastic", "float16", (100,), {"key": (5, 6, 7)}),
    "int4": ("int4", "bfloat16", (101,), {}),
    "int2": ("int2:block=128", "float64", (300,), {}),
    "int4_zstd": ("int4|zstd", "float32", (500,), {}),
    "fp8_e4m3": ("fp8_e4m3", "float32", (100,), {}),
    "fp8_e5m2": ("fp8_e5m2:block=256", "float32", (300,), {}),
    "onebit": ("onebit", "float32", (1100,), {}),
    "ternary": ("ternary", "float32", (1100,), {"key": (1, 2, 3)}),
    "tbq": ("tbq:threshold=0.01", "float32", (100,), {}),
    "topk": ("topk:density=0.1", "float32", (500,), {}),
    "randomk": ("randomk:density=0.1", "float32", (500,), {"key": (9, 8, 7)}),
    "dgc": ("dgc:density=0.1", "float32", (500,), {}),
    "zstd": ("zstd", "float32", (300,), {}),
    "lz4": ("lz4", "int32", (300,), {}),
    "zfp": ("zfp:rate=12", "float32", (300,), {}),
}
# Encoded as a difference to a delta base, which each has in its own file.
WITH_REF = {
    "lossless_ref": ("lossless", "float32", (400,), {}),
    "int8_ref": ("int8", "float32", (100,), {}),
    "delta_events": ("delta", "bfloat16", (3000,), {}),
    "delta_lanes": ("delta", "bfloat16", (20000,), {}),
    "delta_float32": ("delta", "float32", (3000,), {}),
    "delta_float16": ("delta", "float16", (5000,), {}),
}
# The size of the difference, relative to the values; 0.01 for other rows.
STEPS = {"delta_events": 1e-4, "delta_lanes": 3e-3, "delta_float16": 1e-3, "delta_float32": 1e-4}


def values(name: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Reproducible numbers that look like weights; small whole ones for integers."""
    random = np.random.default_rng(sum(name.encode()))
    if np.dtype(dtype).kind in "iu":
        return random.integers(0, 100, shape).astype(dtype)
    return random.normal(0, 0.02, shape).astype(dtype)


def main() -> None:
    """Writes the missing files."""
    assert ml_dtypes
    for name, (spec, dtype, shape, how) in (ROWS | WITH_REF).items():
        path = FOLDER / f"{name}.jccf"
        if path.exists():
            continue
        array = values(name, dtype, shape)
        ref = None
        if name in WITH_REF:
            step = STEPS.get(name, 0.01)
            ref = (array + values("ref" + name, dtype, shape) * np.float32(step)).astype(dtype)
            np.save(FOLDER / f"{name}.ref.npy", ref)
        data = codecs.encode(spec, array, ref, **how)
        path.write_bytes(data)
        decoded = codecs.decode(data, ref, require_checksum=how.get("checksum", True))
        np.save(FOLDER / f"{name}.npy", decoded.reshape(-1).view(np.uint8))


if __name__ == "__main__":
    main()
