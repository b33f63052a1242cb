"""`backend="nccl"`: what it takes, what it is lowered to, and that derivatives and vmap keep it."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxccomp as jcc
from jaxccomp import errors
from jaxccomp._native import cuda, platforms

TARGET = "@jaxccomp_nccl_collective"


@pytest.fixture
def on_gpus(monkeypatch):
    """The CPU's devices as GPUs; NCCL needs no CUDA library of the engine's."""
    jcc.init()
    monkeypatch.setattr(cuda, "why_missing", lambda: "not installed")
    gpus = jax.devices("cpu")
    monkeypatch.setattr(platforms.Platform, "devices", lambda self: gpus)


def lowered(function, shape=(4, 5), dtype=jnp.float32, along=None):
    if along:
        mesh = jax.sharding.Mesh(jax.devices()[:1], (along,))
        function = jax.shard_map(function, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
    traced = jax.jit(function).trace(jax.ShapeDtypeStruct(shape, dtype))
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    return [line for line in text.splitlines() if "custom_call @jaxccomp" in line]


OPERATIONS = {
    "bcast": lambda x, **how: jcc.bcast(x, root=0, **how),
    "allreduce": lambda x, **how: jcc.allreduce(x, op="mean", **how),
    "reduce": lambda x, **how: jcc.reduce(x, root=0, **how),
    "allgather": jcc.allgather,
    "gather": lambda x, **how: jcc.gather(x, root=0, **how),
    "scatter": lambda x, **how: jcc.scatter(x, root=0, **how),
    "reduce_scatter": jcc.reduce_scatter,
    "alltoall": jcc.alltoall,
    "sendrecv": lambda x, **how: jcc.sendrecv(x, dest=[0], source=[0], **how),
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("style", ["comm", "axis"])
def test_every_operation_is_one_call(on_gpus, name, style):
    how = {"backend": "nccl"} | ({"axis_name": "i"} if style == "axis" else {})
    calls = lowered(
        lambda x: OPERATIONS[name](x, **how), shape=(1, 5), along="i" if style == "axis" else None
    )
    assert len(calls) == 1 and TARGET in calls[0] and 'backend = "nccl"' in calls[0]
    if style == "axis":
        number = platforms.CUDA.number(jax.devices()[0].id)
        assert f"groups = array<i64: {number}>" in calls[0]


@pytest.mark.parametrize("name", OPERATIONS)
def test_transposes_and_batches_keep_the_backend(on_gpus, name):
    def function(x):
        along = OPERATIONS[name](x, backend="nccl", axis_name="i")
        return jnp.sum(along**2)

    for calls in (
        lowered(jax.grad(function), shape=(1, 5), along="i"),
        lowered(jax.vmap(function), shape=(3, 1, 5), along="i"),
        lowered(jax.grad(lambda x: jax.vmap(function)(x).sum()), shape=(3, 1, 5), along="i"),
    ):
        assert calls and all(TARGET in call for call in calls)


def test_codecs_do_not_go_with_it(on_gpus):
    for how in ({"codec": "int8"}, {"codec": "lossless"}, {"cotangent_codec": "bf16"}):
        with pytest.raises(errors.InvalidArgumentError, match="NCCL sends values as they are"):
            jcc.allreduce(jnp.ones(3), backend="nccl", **how)
    with pytest.raises(errors.InvalidArgumentError, match="NCCL sends values as they are"):
        jcc.bcast(jnp.ones(3), root=0, ref=jnp.ones(3), codec="lossless", backend="nccl")
    with pytest.raises(errors.UnknownNameError, match="leaves the choice to NCCL"):
        jcc.allreduce(jnp.ones(3), backend="nccl", algorithm="ring")


def test_what_nccl_lacks_is_named(on_gpus):
    with pytest.raises(errors.UnknownNameError, match="valid: 'allgather', 'allreduce'"):
        jcc.scan(jnp.ones(3), backend="nccl")
    with pytest.raises(errors.UnknownNameError, match="'max', 'mean', 'min', 'prod', 'sum'"):
        jcc.allreduce(jnp.ones(3, jnp.int32), op="xor", backend="nccl")
    with pytest.raises(errors.UnsupportedDTypeError, match="16-bit integers"):
        jcc.allreduce(jnp.ones(3, jnp.int16), backend="nccl")
    with pytest.raises(errors.UnsupportedDTypeError, match="complex numbers"):
        jcc.allreduce(jnp.ones(3, jnp.complex64), op="prod", backend="nccl")


def test_elsewhere_it_is_an_error():
    with pytest.raises(errors.EngineUnavailableError, match="for platform 'cpu'"):
        jax.block_until_ready(jax.jit(lambda x: jcc.allreduce(x, backend="nccl"))(np.ones(3)))


WITHOUT = """
import os, sys
from jaxccomp._native import engine
for name in ("nccl", "cuda"):
    engine.load().add_library_path(name, "/nowhere/lib" + name + ".so")
print(engine.load().nccl())
"""


def test_what_is_missing_is_said():
    done = subprocess.run(
        [sys.executable, "-P", "-c", WITHOUT], capture_output=True, text=True, timeout=100
    )
    version, why = eval(done.stdout)
    assert version or "the library nccl is not found" in why and "pip install" in why
