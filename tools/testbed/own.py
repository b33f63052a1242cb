"""The part of ``collectives`` that imports jaxccomp: operations, checks and statistics."""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import os
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

import jaxccomp as jcc
from jaxccomp import codecs
from jaxccomp._native import engine
from testbed import workers

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_SUMS = ("allreduce", "reduce_scatter")
_SAME_EVERYWHERE = ("bcast", "allreduce", "allgather")
# A baseline, not a codec: indices and new values of the changed weights, zstd -3 (PULSE, arXiv
# 2602.03839). The root encodes, a raw bcast by the same algorithm sends the bytes, and each rank
# applies them.
INDEX_VALUE_ZSTD = "index_value_zstd"

# name: (function, whether a rank's input has one row for each rank)
OPERATIONS: dict[str, tuple[Callable[..., Any], bool]] = {
    "bcast": (functools.partial(jcc.bcast, root=0), False),
    "allreduce": (functools.partial(jcc.allreduce, op="sum"), False),
    "reduce_scatter": (functools.partial(jcc.reduce_scatter, op="sum"), True),
    "allgather": (jcc.allgather, False),
    "alltoall": (jcc.alltoall, True),
    "gather": (functools.partial(jcc.gather, root=0), False),
    "scatter": (functools.partial(jcc.scatter, root=0), True),
    "reduce": (functools.partial(jcc.reduce, op="sum", root=0), False),
}


def operand(operation: str, x: np.ndarray) -> jax.Array:
    """A rank's input on the device, from flat values."""
    rows = (jcc.init().size, -1) if OPERATIONS[operation][1] else (-1,)
    return jax.device_put(_floats(x).reshape(rows))


def step(operation: str, x: np.ndarray, ref: np.ndarray | None, given: argparse.Namespace) -> Any:
    """A function that runs the operation once in a jitted call, and waits for the result."""
    if given.codec == INDEX_VALUE_ZSTD:
        assert operation == "bcast" and ref is not None
        return _index_value_zstd(x, ref, given.algorithm)
    options = {"codec": given.codec, "algorithm": given.algorithm}
    value = operand(operation, x)
    if ref is not None:
        update = jax.jit(lambda v, r: jcc.bcast(v, root=0, ref=r, **options), donate_argnums=1)
        return _updates(update, (value, jax.device_put(_floats(ref))))
    call = jax.jit(functools.partial(OPERATIONS[operation][0], **options))
    return lambda: call(value).block_until_ready()


def _updates(update: Callable[..., Any], states: tuple[Any, Any]) -> Callable[[], Any]:
    """A function whose calls alternate between the two states, like updates in training.

    The result of a call is the donated reference of the next call.
    """
    held = [jnp.copy(states[1])]
    turns = itertools.cycle(states)

    def call() -> Any:
        held.append(update(next(turns), held.pop()).block_until_ready())
        return held[0]

    return call


def _index_value_zstd(x: np.ndarray, ref: np.ndarray, algorithm: str) -> Callable[[], Any]:
    root = jcc.world().rank == 0
    bcast = jax.jit(lambda v: jcc.bcast(v, root=0, algorithm=algorithm))

    def sent() -> np.ndarray:
        where = np.flatnonzero(x != ref).astype(np.uint32)
        plain = np.concatenate([where.view(np.uint8), x[where].view(np.uint8)])
        return np.frombuffer(codecs.encode("zstd:level=3", plain, chunk_bytes=1 << 30), np.uint8)

    def call() -> np.ndarray:
        code = sent() if root else None
        size = int(bcast(np.int32(len(code) if code is not None else 0)))
        code = np.asarray(bcast(code if code is not None else np.zeros(size, np.uint8)))
        result = ref.copy()
        if root:
            result[:] = x
            return result
        plain = np.asarray(codecs.decode(code.tobytes()))
        count = len(plain) // (4 + x.itemsize)
        result[plain[: 4 * count].view(np.uint32)] = plain[4 * count :].view(x.dtype)
        return result

    return call


def coding_seconds(comm: Any, x: np.ndarray, ref: np.ndarray, codec: str) -> float:
    """Lower bound of the coding time of a broadcast of ``x`` with ``ref`` on one machine's ranks.

    The root encodes and all others decode, each rank on one core at a time. The root measures the
    rates of one core, on values in memory instead of the cache, while the other ranks sleep. The
    bound does not include checksums of references.
    """
    rates = None
    if comm.Get_rank() == 0:
        seconds = 1.0
        rates = engine.load().measure_codec(
            codec, _BFLOAT16.name, x.view(np.uint8), ref.view(np.uint8), 1 << 18, False, seconds
        )
    workers.barrier(comm, pause_seconds=0.05)
    rates = comm.bcast(rates)
    others = comm.Get_size() - 1
    encode, decode = (x.nbytes / rates[f"{way}_rate"] for way in ("encode", "decode"))
    return max((encode + others * decode) / (os.cpu_count() or 1), encode, decode)


def check(
    comm: Any,
    operation: str,
    result: Any,
    make: Callable[[int], np.ndarray],
    expected: Callable[..., np.ndarray],
    codec: str,
    algorithm: str = "auto",
) -> dict[str, Any]:
    """Compares a result with NumPy's, within the codec's error bound.

    Args:
      comm: mpi4py's communicator.
      operation: name of the operation.
      result: this rank's result.
      make: returns a rank's operand.
      expected: ``(operation, make, rank, ranks)`` returns a rank's result without a codec.
      codec: codec spec.
      algorithm: name of the algorithm; some encode values again at each hop.

    Returns:
      ``{"check": ..., "bound": ...}`` over all ranks, or ``{"error": ...}``.
    """
    rank, ranks = comm.Get_rank(), comm.Get_size()
    result = np.asarray(result).reshape(-1)
    want = expected(operation, make, rank, ranks)
    summed = operation in _SUMS
    bound = codecs.error_bound("raw" if codec == INDEX_VALUE_ZSTD else codec, result.dtype)
    exact = not summed and not (bound.relative or bound.block or bound.absolute)
    faults = []
    differ = False
    if operation in _SAME_EVERYWHERE:
        sums = comm.allgather(zlib.crc32(result.view(np.uint8)))
        differ = len(set(sums)) > 1
    # chain_recoded rounds at each hop, so that ranks may differ with a lossy codec.
    if differ and (exact or algorithm != "chain_recoded"):
        faults.append("results differ between ranks")
    if exact:
        same = np.array_equal(result.view(np.uint8), want.view(np.uint8))
        worst = 0.0 if same else np.inf
    elif np.isinf(bound.absolute):
        worst = float(np.abs(_wide(result) - _wide(want)).max() / np.abs(_wide(want)).max())
    else:
        terms = _terms(operation, make, rank, ranks) if summed else [want]
        terms = [_wide(each) for each in terms]
        hops = _hops(algorithm, ranks)
        worst = _worst(_wide(result), _wide(want), terms, bound, summed, hops, result.dtype)
    worst = max(comm.allgather(worst))
    if not worst <= 1:
        faults.append("wrong values" if exact else f"error {worst:.3g} of what is allowed")
    if faults:
        return {"error": "; ".join(faults)}
    if exact:
        return {"check": "bit-exact", "bound": "none"}
    more = "; ranks differ" if differ else ""
    if np.isinf(bound.absolute):
        return {
            "check": f"{worst:.2g} of the greatest{more}",
            "bound": "none is promised; less than the greatest value",
        }
    said = _in_words(bound)
    said += f", and of what is on its way up to {hops} times more" if said and hops else ""
    if not summed:
        return {"check": f"{worst:.2f} of bound{more}", "bound": f"one coding: {said}"}
    if not said:
        return {"check": "rounding", "bound": f"rounding of a sum of {ranks}"}
    return {
        "check": f"{worst:.2f} of bound",
        "bound": f"{ranks} contributions and their sum, each coded once: {said}; rounding",
    }


def allowed(x: np.ndarray, bound: codecs.ErrorBound) -> np.ndarray:
    """The largest allowed error of each decoded value of ``x``, for any alignment of blocks."""
    size = np.abs(x)
    if bound.block_values and bound.block:
        blocks = -(-size.size // bound.block_values)
        padded = np.zeros(blocks * bound.block_values, size.dtype)
        padded[: size.size] = size
        greatest = padded.reshape(blocks, -1).max(axis=1)
        # The codec's block of a value lies within the value's block here and its two neighbours.
        around = np.pad(greatest, 1)
        greatest = np.maximum(np.maximum(around[:-2], around[2:]), greatest)
        greatest = np.repeat(greatest, bound.block_values)[: size.size]
    else:
        greatest = size.max(initial=0.0) if bound.block else 0.0
    return size * bound.relative + greatest * bound.block + bound.absolute


def timeline(step: Callable[[], Any]) -> jcc.trace.Timeline:
    """When the tasks of one call ran on this rank."""
    with jcc.trace.record() as recorded:
        step()
    return recorded


def together(each: Sequence[jcc.trace.Timeline]) -> jcc.trace.Timeline:
    """The tasks of all ranks in one timeline."""
    return jcc.trace.Timeline([task for line in each for task in line.tasks])


def memory(comm: Any, operation: str) -> dict[str, int]:
    """Peak bytes of a call and their bound, maxima over ranks; omits values that a rank lacks."""
    found = jcc.stats.get().operations.get(operation)
    counts = {name: getattr(found, name, None) for name in ("peak_bytes", "bound_bytes")}
    everyone = comm.allgather(counts)
    return {
        name: max(each[name] for each in everyone)
        for name in counts
        if all(each[name] is not None for each in everyone)
    }


def _terms(
    operation: str, make: Callable[[int], np.ndarray], rank: int, ranks: int
) -> list[np.ndarray]:
    """The operands of the sum on ``rank``."""
    rows = [make(r) for r in range(ranks)]
    if operation == "reduce_scatter":
        return [row.reshape(ranks, -1)[rank] for row in rows]
    return rows


def _hops(algorithm: str, ranks: int) -> int:
    """The number of times that an algorithm may re-encode values on the way to the last rank."""
    hops = {
        "ring": ranks - 2,
        "chain_recoded": ranks - 2,
        "recursive_doubling": math.ceil(math.log2(ranks)),
    }
    return max(hops.get(algorithm.partition(":")[0], 0), 0)


def _worst(
    result: np.ndarray,
    want: np.ndarray,
    terms: Sequence[np.ndarray],
    bound: codecs.ErrorBound,
    summed: bool,
    hops: int,
    dtype: np.dtype,
) -> float:
    """The largest ratio of error to allowed error; infinite if a value is not finite."""
    limit = sum(allowed(each, bound) for each in terms)
    size = sum(np.abs(each) for each in terms)
    for _ in range(hops):
        limit = limit + allowed(size + limit, bound)
    if summed:
        # The sum of decoded values is encoded again, and every addition rounds once.
        limit = limit + allowed(np.abs(want) + limit, bound)
        unit = float(ml_dtypes.finfo(dtype).eps) / 2
        limit = limit + len(terms) * unit * (size + limit)
    error = np.abs(result - want)
    if not np.isfinite(error).all():
        return float("inf")
    tiny = np.finfo(np.float32).tiny
    return float((error / np.maximum(limit, tiny)).max(initial=0.0))


def _in_words(bound: codecs.ErrorBound) -> str:
    parts = []
    if bound.relative > 1e-6:
        parts.append(f"{bound.relative:.3g} of the value")
    if bound.block:
        block = f"{bound.block_values} values" if bound.block_values else "the chunk"
        parts.append(f"{bound.block:.3g} of the greatest of {block}")
    return " and ".join(parts)


def _floats(x: np.ndarray) -> np.ndarray:
    return x.view(_BFLOAT16) if x.dtype == np.uint16 else x


def _wide(x: np.ndarray) -> np.ndarray:
    """Converts to float32; uint16 holds bits of bfloat16."""
    return _floats(x).astype(np.float32)
