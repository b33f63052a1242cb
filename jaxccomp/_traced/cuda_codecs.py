"""The codecs of backend="xla" with the CUDA library's kernels instead of jax.numpy.

Each encoding or decoding is one custom call, which XLA may capture in a CUDA graph. The kernels
encode to one array of bytes, as the engine does, and jax.numpy to several arrays. So either all
ranks must use kernels, or none: `usable`.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxccomp import _jax, comm
from jaxccomp._codecs import specs
from jaxccomp._native import engine, platforms
from jaxccomp._native.platforms import CUDA
from jaxccomp._traced import codecs as traced_codecs
from jaxccomp._traced.codecs import Codec, Wire

Array = Any

_lock = threading.Lock()
_registered = False


def usable(ctx: Any) -> bool:
    """Return whether a program that is being lowered may call the kernels, on all its ranks.

    It must be lowered for CUDA only, and not be partitioned by XLA, which would gather the operands
    of a custom call.
    """
    if _jax.platforms(ctx) != (CUDA.name,) or _jax.is_partly_automatic(ctx):
        return False
    return comm.all_have_cuda()


def find(spec: str, dtype: str) -> Codec | None:
    """Return the codec of a canonical spec and a dtype; None if values are sent as they are.

    Uses kernels if there are any for both, otherwise the codec in jax.numpy.
    """
    plain = traced_codecs.find_for(spec, dtype)
    stage = str(specs.parse(spec).stages[0])  # ignore lossless codecs: shapes are static
    own = specs.find_custom(stage) is not None  # registered by the program
    if plain is None or own or not platforms.cuda_runs_on_streams(stage, dtype):
        return plain
    return _OnCuda(stage, plain)


class _OnCuda(Codec):
    """Encodes one dtype; batched calls encode all rows at once."""

    def __init__(self, spec: str, plain: Codec):
        self.spec = spec
        self.dtypes = plain.dtypes
        self.random = plain.random
        self.draws_alike = plain.draws_alike

    def encode(self, x: Array, key: Array | None = None) -> Wire:
        if not x.size:
            return ()
        keys = (traced_codecs.words_of(key),) if self.random and key is not None else ()
        code = jax.ShapeDtypeStruct((_code_bytes(self.spec, x.dtype.name, x.size),), jnp.uint8)
        return (self._call("jaxccomp_encode", code, x.dtype, jnp.ravel(x), *keys),)

    def decode(self, wire: Wire, shape: Sequence[int], dtype: Any, to: Any = None) -> Array:
        return self._decode_to("jaxccomp_decode", wire, shape, dtype, to or dtype)

    def decode_sum(self, wire: Wire, shape: Sequence[int], dtype: Any, to: Any) -> Array:
        return self._decode_to("jaxccomp_decode_sum", wire, shape, dtype, to)

    def _decode_to(
        self, target: str, wire: Wire, shape: Sequence[int], dtype: Any, to: Any
    ) -> Array:
        count = math.prod(shape)
        if not count:
            return jnp.zeros(shape, to)
        values = jax.ShapeDtypeStruct((count,), to)
        return self._call(target, values, dtype, *wire).reshape(shape)

    def _call(self, target: str, result: Any, dtype: Any, *operands: Array) -> Array:
        _register()
        # The kernels take batch dimensions first, in all operands and in the result.
        call = jax.ffi.ffi_call(target, result, vmap_method="broadcast_all")
        return call(*operands, codec=self.spec, dtype=jnp.dtype(dtype).name)


@functools.cache
def _code_bytes(spec: str, dtype: str, count: int) -> int:
    """Return the bytes of an encoding, from the arrays of the same codec in jax.numpy."""
    codec = traced_codecs.find(spec)
    assert codec is not None
    key = jax.eval_shape(jax.random.key, 0)
    parts = jax.eval_shape(codec.encode, jax.ShapeDtypeStruct((count,), dtype), key)
    return sum(part.size * np.dtype(part.dtype).itemsize for part in parts)


def _register() -> None:
    """Register the handlers with XLA, once."""
    global _registered
    with _lock:
        if _registered:
            return
        for name, stages in engine.load().codec_registrations().items():
            jax.ffi.register_ffi_target(name, stages, platform=CUDA.xla)
        _registered = True
