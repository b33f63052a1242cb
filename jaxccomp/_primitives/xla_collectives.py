"""XLA's own collectives on the engine, for unchanged programs of `jit` with shardings.

XLA's partitioner adds collectives after tracing. On CPUs jaxlib runs them by the functions of an
MPI, in a library that ``MPITRAMPOLINE_LIB`` names; ``libjaxccomp_xla.so`` of this package is such
a library (csrc/xla_collectives/). jaxlib loads it when it is imported, and `activate` connects it
with the engine.

XLA asks the library for a communicator for each group of devices, without saying which group. So
`_prepare` reads the groups from each compiled program, before it can run, and makes XLA ask for one
group at a time: it runs a small program with one collective over the group, on this process's
devices only. In it the library sends nothing, so processes need not do this together.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from jaxccomp import _jax, codecs, comm, errors
from jaxccomp._native import engine
from jaxccomp._native.platforms import CPU

_MAX_COUNT = 2**31 - 1
# Bytes of an element by XLA's dtype; of types that are not listed, the bits in the name tell.
_BYTES = {"pred": 1, "bf16": 2, "c64": 8, "c128": 16}
_AXIS = "jaxccomp_group"

_lock = threading.Lock()
_is_active = False
_making = threading.local()
_made: set[tuple[Any, ...]] = set()


# --- Policy ---------------------------------------------------------------------------------------

_REDUCTIONS = ("allreduce", "reduce_scatter")
_LOSSY_DTYPES = ("float32", "float64")
_OPERATIONS = ("*", *_REDUCTIONS, "allgather", "permute", "alltoall")
_DTYPES = (
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float32", "float64", "complex64", "complex128"),
)
_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE = re.compile(r">=([0-9]+)(B|KiB|MiB|GiB|)")

# Operation, dtype (empty: every one), minimum of the operand's bytes, codec.
Rule = tuple[str, str, int, str]


def parse_policy(text: str) -> list[Rule]:
    """Read a policy: rules ``OP [DTYPE] [>=SIZE] CODEC``, separated by semicolons or lines.

    The first rule that fits an operation counts; an operation that no rule fits is sent raw. ``#``
    begins a comment.

    Raises:
      InvalidArgumentError: for a text that is no policy, and for lossy codecs of values other than
        float32 and float64 in allreduce and reduce_scatter.
      UnknownNameError: for unknown operations, dtypes and codecs.

    Example:
      >>> parse_policy("allreduce float32 >=1MiB int8; * lossless")
      [('allreduce', 'float32', 1048576, 'int8'), ('*', '', 0, 'lossless')]
    """
    lines = (line.partition("#")[0] for line in text.splitlines())
    rules = (rule.strip() for line in lines for rule in line.split(";"))
    return [_parse_rule(rule) for rule in rules if rule]


def _parse_rule(text: str) -> Rule:
    operation, *middle = text.split()
    if operation not in _OPERATIONS:
        raise errors.unknown(f"operation in the policy's rule {text!r}:", operation, _OPERATIONS)
    if not middle:
        raise errors.InvalidArgumentError(
            f"the policy's rule {text!r} names no codec: OP [DTYPE] [>=SIZE] CODEC."
        )
    codec, dtype, size = middle.pop(), "", 0
    if middle and not middle[0].startswith(">"):
        dtype = middle.pop(0)
        if dtype not in _DTYPES:
            raise errors.unknown(f"dtype in the policy's rule {text!r}:", dtype, _DTYPES)
    if middle:
        found = _SIZE.fullmatch(middle.pop(0))
        if found is None or middle:
            raise errors.InvalidArgumentError(
                f"the policy's rule {text!r} must read OP [DTYPE] [>=SIZE] CODEC, with a SIZE "
                "such as 4096, 64KiB or 1MiB, and no space after >=."
            )
        size = int(found[1]) * _UNITS[found[2]]
    spec = codecs.parse(codec)
    if codecs.find_custom(spec) is not None or codec.startswith("auto"):
        raise errors.InvalidArgumentError(
            f"the policy's rule {text!r}: {codec!r} is no codec of the engine."
        )
    is_lossy = not codecs.is_lossless(spec)
    if dtype and operation not in _REDUCTIONS:
        raise errors.InvalidArgumentError(
            f"the policy's rule {text!r}: XLA names the dtype of "
            f"{errors.listed(_REDUCTIONS)} only; omit {dtype}."
        )
    if is_lossy and (operation not in _REDUCTIONS or dtype not in _LOSSY_DTYPES):
        raise errors.InvalidArgumentError(
            f"the policy's rule {text!r}: {codec!r} is lossy. Rules with lossy codecs name an "
            f"operation ({errors.listed(_REDUCTIONS)}) and a dtype (float32 or float64); "
            "'lossless' fits all."
        )
    return operation, dtype, size, str(spec)


# --- The library ----------------------------------------------------------------------------------


def activate() -> None:
    """Connect the library, which jaxlib has loaded, with the engine; a second call does nothing.

    Raises:
      EngineUnavailableError: if jaxlib has not loaded the library, or it is of another build.
    """
    global _is_active
    with _lock:
        if _is_active:
            return
        try:
            engine.load().set_xla_policy(parse_policy(comm.xla_policy()))
            engine.load().attach_xla(os.environ[engine.XLA_MPI])
        except RuntimeError as error:
            raise errors.EngineUnavailableError(f"{error}.") from None
        _jax.on_program(_prepare)
        _is_active = True


def _prepare(executable: Any, devices: Sequence[Any]) -> None:
    """Make XLA's communicators for the groups of a compiled program."""
    if getattr(_making, "now", False) or {each.platform for each in devices} != {"cpu"}:
        return
    if _jax.distributed_client() is None:  # XLA then has collectives of its own within a process
        return
    here = jax.process_index()
    groups: dict[tuple[int, ...], None] = {}
    for each in _jax.collectives_of(executable, len(devices)):
        _check_counts(each)
        groups |= dict.fromkeys(each.groups)
    mine = [[devices[index] for index in group] for group in groups]
    mine = [group for group in mine if any(each.process_index == here for each in group)]
    if not mine:
        return
    comm.init()
    for group in mine:
        with _lock:
            if tuple(group) not in _made:
                _make(group)
                _made.add(tuple(group))


def _check_counts(collective: _jax.XlaCollective) -> None:
    """Raise if XLA's counts, which have 32 bits, overflow: XLA would send other values."""
    ranks = len(collective.groups[0])
    counts_bytes = collective.name not in ("all-reduce", "reduce-scatter")
    for dtype, count in collective.values:
        if counts_bytes:
            count *= _BYTES.get(dtype) or max(int("".join(filter(str.isdigit, dtype[:3]))) // 8, 1)
        # Of an all-to-all, each block is a result of its own, unless it has one result.
        is_whole = collective.name == "all-to-all" and len(collective.values) == 1
        if collective.name == "all-gather" or is_whole:
            count //= ranks
        if count > _MAX_COUNT:
            unit = "bytes" if counts_bytes else "elements"
            raise errors.InvalidArgumentError(
                f"XLA's {collective.name} of this program sends blocks of {count} {unit}, and its "
                f"CPU collectives by MPI count to {_MAX_COUNT}. Use more devices, smaller arrays, "
                "or jaxccomp.lax, which has no such limit."
            )


def _make(group: Sequence[Any]) -> None:
    """Make XLA ask the library for the communicators of this group, for all local devices."""
    core = engine.load()
    failures: list[BaseException] = []

    def run() -> None:
        _making.now = True
        try:
            mesh = Mesh(np.array(group), (_AXIS,))
            program = jax.shard_map(_sum, mesh=mesh, in_specs=(), out_specs=PartitionSpec())
            jax.block_until_ready(jax.jit(program)())
        except BaseException as error:
            failures.append(error)

    with _made_group(core, group):
        if len(group) == 1:
            return
        # A new thread has none of the caller's contexts (jax.disable_jit, jax.set_mesh).
        thread = threading.Thread(target=run, name="jaxccomp-xla-group", daemon=True)
        thread.start()
        thread.join()
    if failures:
        raise failures[0]


def _sum() -> Any:
    return jax.lax.psum(jax.lax.axis_index(_AXIS), _AXIS)


@contextlib.contextmanager
def _made_group(core: Any, group: Sequence[Any]) -> Iterator[None]:
    """Let the library accept XLA's calls for this group, and check that they have come."""
    core.make_xla_group([CPU.number(each.id) for each in group])
    try:
        yield
    finally:
        ranks = core.end_xla_group()
    here = jax.process_index()
    expected = [rank for rank, each in enumerate(group) if each.process_index == here]
    if len(group) > 1 and sorted(ranks) != expected:
        raise errors.JaxHookError(
            f"XLA has made communicators for the ranks {sorted(ranks)} of a group of "
            f"{len(group)} devices, and not for {expected}: this release of JAX "
            f"({jax.__version__}) makes them in another way. Unset {engine.XLA_MPI} and "
            f"{engine.XLA_IMPLEMENTATION} to use JAX's default."
        )
