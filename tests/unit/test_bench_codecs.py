"""The benchmark of codecs: its input, its output, and its errors."""

import io
import json

import ml_dtypes
import numpy as np
import pytest
from bench import codecs as of_results
from golden_errors import raises

from jaxccomp import errors
from jaxccomp.bench import codecs as bench
from jaxccomp.bench import files
from jaxccomp.cli import main

QUICK = bench.Plan(
    specs=("raw", "lossless", "bf16", "int8|lossless"),
    chunk_bytes=4096,
    streaming_bytes=1 << 16,
    seconds=0.001,
)


def gaussian(dtype, count=8000):
    return np.random.default_rng(0).normal(0, 0.02, count).astype(dtype)


def test_rows_contain_rates_ratios_and_errors_of_each_tensor():
    x, brain = gaussian(np.float32), gaussian(ml_dtypes.bfloat16)
    tensors = [
        files.Tensor("x", x),
        files.Tensor("brain", brain),
        files.Tensor("update", brain, brain),
    ]
    ours = list(bench.run(QUICK, tensors, lambda line: None))
    # The codec bf16 does not encode bfloat16.
    assert len(ours) == (4 + 3 + 3) * 2
    for row in ours:
        assert row.encode_GBps > 0 and row.decode_GBps > 0 and row.merge_GBps > 0
        assert row.memcpy_GBps > 0
        assert (row.rel_l2 == 0) == (row.codec in ("raw", "lossless") or row.tensor == "update")
    by = {(row.tensor, row.codec, row.working_set): row for row in ours}
    assert by["x", "raw", "cached"].ratio == 1
    assert by["x", "bf16", "cached"].ratio == 2
    assert 1.4 < by["brain", "lossless", "cached"].ratio < 1.6
    assert by["update", "lossless", "cached"].ratio > 50
    assert 1e-3 < by["x", "bf16", "cached"].rel_l2 < 2.0**-8

    file = io.StringIO()
    bench.write(ours, file)
    file.seek(0)
    first, *lines = map(json.loads, file)
    again = of_results.parse([first, *lines])
    assert first["facts"]["instruction_set"] and len(again) == len(ours)
    wanted = {"codec", "dtype", "working_set", "ratio", "encode_GBps", "decode_GBps"}
    wanted |= {"memcpy_GBps", "rel_l2"}
    assert all(wanted <= set(line) for line in lines)
    text = bench.markdown(again)
    assert "**x, float32** (memcpy: cached " in text and "| `int8\\|lossless` |" in text


def test_load_reads_npy_files_and_folders_with_references(tmp_path):
    x = gaussian(ml_dtypes.bfloat16)
    np.save(tmp_path / "weights_bfloat16.npy", x.view(np.uint16))
    np.save(tmp_path / "previous_weights_bfloat16.npy", x.view(np.uint16))
    np.save(tmp_path / "grads_float32.npy", gaussian(np.float32).reshape(80, 100))
    (one,) = files.load(str(tmp_path / "weights_bfloat16.npy"))
    assert one.values.dtype == x.dtype and (one.values == x).all()
    rows = {row.name: row for row in files.load(str(tmp_path))}
    assert set(rows) == {"weights", "grads", "weights after 1 step"}
    assert rows["weights after 1 step"].ref is not None and rows["grads"].values.ndim == 1


def test_load_reads_safetensors_files_and_refuses_damaged_ones(tmp_path):
    flax = pytest.importorskip("safetensors.flax")
    path = str(tmp_path / "model.safetensors")
    import jax.numpy as jnp

    flax.save_file({"a": jnp.ones((2, 3), jnp.bfloat16), "b": jnp.zeros(4, jnp.bfloat16)}, path)
    (tensor,) = files.load(path)
    assert tensor.values.dtype == ml_dtypes.bfloat16 and tensor.values.sum() == 6
    (tmp_path / "broken.safetensors").write_bytes(b"\xff" * 20)
    with pytest.raises(errors.InvalidArgumentError):
        files.load(str(tmp_path / "broken.safetensors"))


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"no array at all"])
def test_files_without_arrays_are_named(tmp_path, content):
    path = tmp_path / "x.npy"
    path.write_bytes(content)
    with raises(errors.InvalidArgumentError, "x.npy", golden=False):
        files.load(str(path))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--file", "nowhere.npy"],
        ["--codecs", "int7"],
        ["--working-sets", "warm"],
        ["--seconds", "0"],
        ["--chunk", "1kb"],
    ],
)
def test_invalid_arguments_exit_with_status_2(arguments, capsys):
    assert main.main(["bench", "codecs", *arguments]) == 2
    assert "python -m jaxccomp bench: " in capsys.readouterr().err


def test_bench_codecs_writes_results_that_the_table_command_reads(tmp_path, capsys):
    np.save(tmp_path / "x.npy", gaussian(np.float32))
    arguments = [
        "--file",
        str(tmp_path / "x.npy"),
        "--codecs",
        "raw lossless",
        "--seconds",
        "0.001",
    ]
    arguments += ["--streaming", "1MiB", "--json", str(tmp_path / "out.jsonl")]
    assert main.main(["bench", "codecs", *arguments]) == 0
    assert "**x, float32**" in capsys.readouterr().out
    assert of_results.main(["--table", str(tmp_path / "out.jsonl")]) == 0
    assert "**x, float32**" in capsys.readouterr().out
