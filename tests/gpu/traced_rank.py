"""The rank of traced.py: checks and times codecs of backend="xla" on the GPU.

    python tests/gpu/traced_rank.py

Prints a line of JSON for each codec and dtype compared with the CPU's codec, one about XLA's
command buffers, and one for each rate, with kernels and composed from jax.lax. Exits with 1 after a
failure, and with 77 without a GPU.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import time

# Let XLA make command buffers from a single command on, and dump compiled programs.
DUMPS = tempfile.mkdtemp(prefix="jaxccomp_traced_")
os.environ["XLA_FLAGS"] = " ".join(
    [
        os.environ.get("XLA_FLAGS", ""),
        "--xla_gpu_graph_min_graph_size=1",
        "--xla_gpu_enable_command_buffer=FUSION,CUSTOM_CALL",
        f"--xla_dump_to={DUMPS}",
        "--xla_dump_hlo_as_text",
    ]
)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import jaxccomp as jcc  # noqa: E402
from jaxccomp import codecs  # noqa: E402
from jaxccomp._native import platforms  # noqa: E402
from jaxccomp._traced import codecs as traced_codecs  # noqa: E402
from jaxccomp._traced import cuda_codecs  # noqa: E402

NO_DEVICE = 77
SPECS = (
    "bf16",
    "bf16:rounding=stochastic",
    "fp16",
    "fp8_e4m3",
    "fp8_e5m2:block=256",
    "int8",
    "int4:block=64",
    "int2:block=256",
    "int8:rounding=stochastic",
    "int4:rounding=stochastic",
    "onebit",
    "ternary",
    "ternary:rounding=nearest",
    "tbq:threshold=0.5",
)
DTYPES = ("float32", "bfloat16", "float16")
ROWS = 3
MEASURED = ("bf16", "fp8_e4m3", "int8:block=256", "int8:rounding=stochastic", "int4", "onebit")
MEASURED_VALUES = 64 << 18  # 64 MiB of float32


def fail(what: str) -> None:
    """Prints a failure; `main` then exits with 1."""
    fail.count += 1
    print(what, file=sys.stderr)


fail.count = 0


def say(**row) -> None:
    print(json.dumps(row), flush=True)


def codec_on_gpu(spec: str, dtype: str):
    """The codec made of kernels; None if it does not support the dtype."""
    canonical = codecs.canonical(spec)
    if dtype not in traced_codecs.find(canonical).dtypes:
        return None
    if not platforms.cuda_runs_on_streams(canonical, dtype):
        fail(f"{spec} has no kernels for {dtype}")
        return None
    return cuda_codecs.find(canonical, dtype)


def values(count: int, dtype: str) -> np.ndarray:
    x = np.random.default_rng(count).standard_normal((ROWS, count)).astype(np.float32)
    x[0, count // 2] = np.nan
    x[1] *= np.float32(1e-30)
    return np.asarray(jnp.asarray(x, dtype))


def compare(spec: str, dtype: str) -> None:
    """Compares rows batched by `vmap`, each with its key, with the CPU's codec of each row."""
    codec = codec_on_gpu(spec, dtype)
    if codec is None:
        return
    compared, differ = 0, set()
    encode = jax.jit(jax.vmap(lambda x, key: codec.encode(x, key)[0]))
    for count in (1, 1000, 4096, 1_000_003):
        x = values(count, dtype)
        keys = jax.random.split(jax.random.key(count), ROWS)
        code = np.asarray(encode(x, keys))
        steps = [int(low) | int(high) << 32 for low, high in np.asarray(jax.random.key_data(keys))]
        frames = [
            codecs.encode(spec, row, key=(step, 0, 0), checksum=False, chunk_bytes=1 << 30)
            for row, step in zip(x, steps, strict=True)
        ]
        # float32 and half types are summed in float32, in the order of the rows.
        decode = jax.jit(lambda c, n=count: codec.decode_rows((c,), (n,), dtype))
        add = jax.jit(lambda c, n=count: codec.decode_sum((c,), (n,), dtype, jnp.float32))
        wide = jax.jit(lambda c, n=count: codec.decode_rows((c,), (n,), dtype, jnp.float32))
        expected = [codecs.decode(frame) for frame in frames]
        rows = np.asarray(wide(code))
        total = rows[0]
        for row in rows[1:]:
            total = total + row
        checks = {
            "bytes": all(
                bytes(c) == f[-len(c) :] for c, f in zip(map(np.array, code), frames, strict=True)
            ),
            "values": np.array_equal(
                np.stack(expected).astype(np.float32),
                np.asarray(decode(code)).astype(np.float32),
                equal_nan=True,
            ),
            "sums": np.array_equal(total, np.asarray(add(code)), equal_nan=True),
        }
        compared += len(checks)
        differ |= {name for name, equal in checks.items() if not equal}
    say(codec=spec, dtype=dtype, compared=compared, differ=", ".join(sorted(differ)))
    if differ:
        fail(f"{spec} of {dtype}: {', '.join(sorted(differ))} are not the CPU's")


def captured() -> None:
    """Runs a program several times on changing values; checks that it is in a command buffer."""
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("i",))

    def body(x):
        return jcc.allreduce(x * 2, codec="int8", axis_name="i", backend="xla") + 1

    mapped = jax.shard_map(body, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=False)
    run = jax.jit(mapped)
    equal = True
    for step in range(5):
        x = np.random.default_rng(step).standard_normal(100_003).astype(np.float32)
        coded = codecs.decode(codecs.encode("int8", x * 2, chunk_bytes=1 << 30))
        coded = codecs.decode(codecs.encode("int8", coded, chunk_bytes=1 << 30))
        equal &= np.array_equal(np.asarray(run(x)), coded + 1)
    calls = "jaxccomp_encode" in run.lower(x).as_text()
    # XLA makes command buffers from HLO in some releases, from thunks in others.
    seen = sorted(
        path.name
        for path in pathlib.Path(DUMPS).iterdir()
        if "jit_body" in path.name
        and path.suffix == ".txt"
        and "jaxccomp_encode" in (text := path.read_text(errors="replace"))
        and ("command_buffer" in text or "CommandBuffer" in text)
    )
    say(captured="int8", equal=equal, calls=calls, command_buffers_in=seen)
    if not equal:
        fail("replayed programs give other values")
    if not calls:
        fail("the program was composed, not made of calls")
    if not seen:
        fail(f"no command buffer is seen in what XLA wrote of the program ({DUMPS})")


def seconds(function, *operands) -> float:
    """The median seconds of a call, including waiting for its results."""
    jax.block_until_ready(function(*operands))
    jax.block_until_ready(function(*operands))
    found = []
    for _ in range(15):
        start = time.perf_counter()
        jax.block_until_ready(function(*operands))
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def measure(spec: str) -> None:
    """Prints GB of values per second of kernels and of the composed codec, including dispatch."""
    canonical = codecs.canonical(spec)
    x = jnp.asarray(values(MEASURED_VALUES // ROWS, "float32")[0])
    key = jax.random.key(0)
    for how, codec in (
        ("calls", codec_on_gpu(spec, "float32")),
        ("composed", traced_codecs.find(canonical)),
    ):
        if codec is None:
            continue
        encode = jax.jit(codec.encode)
        wire = encode(x, key)
        decode = jax.jit(lambda wire, codec=codec: codec.decode(wire, x.shape, x.dtype))
        rates = {
            "encode": x.nbytes / seconds(encode, x, key) / 1e9,
            "decode": x.nbytes / seconds(decode, wire) / 1e9,
        }
        say(codec=spec, how=how, mib=x.nbytes >> 20, **{k: round(v, 1) for k, v in rates.items()})


def main() -> int:
    try:
        device = jax.devices("cuda")[0]
    except RuntimeError as error:
        print(f"JAX has no GPU here: {error}", file=sys.stderr)
        return NO_DEVICE
    if why := platforms.why_no_cuda():
        print(why, file=sys.stderr)
        return 1
    say(device=device.device_kind, jax=jax.__version__)
    with jax.default_device(device):
        for spec in SPECS:
            for dtype in DTYPES:
                compare(spec, dtype)
        captured()
        for spec in MEASURED:
            measure(spec)
    if fail.count:
        return 1
    shutil.rmtree(DUMPS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
