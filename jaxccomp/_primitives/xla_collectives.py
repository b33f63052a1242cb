"""XLA's own collectives on the engine, for unchanged programs of `jit` with shardings.

XLA's partitioner adds collectives after tracing. On CPUs jaxlib runs them by the functions of an
MPI, in a library that ``MPITRAMPOLINE_LIB`` names; ``libjaxccomp_xla.so`` of this package is such
a library (csrc/xla_collectives/). jaxlib loads it when it is imported, and `activate` connects it
with the engine.

XLA asks the library for a communicator for each group of devices, without saying which group. So
`_prepare` reads the groups from each compiled program, before it can run, and makes XLA ask for one
group at a time: it runs a small program with one collective over the group, on this process's
devices only. In it the library sends nothing, so processes need not do this together.

Rules of the policy with the codec "auto" are resolved there, too: the sizes of the program's
collectives are known. The library gets a rule for each of them.
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

# Operation, dtype (empty: every one), minimum of the operand's bytes, codec.
Rule = tuple[str, str, int, str]

_lock = threading.Lock()
_is_active = False
_making = threading.local()
_made: set[tuple[Any, ...]] = set()
_rules: list[Rule] = []
# Group, operation, dtype and bytes of the collectives whose "auto" is resolved.
_chosen: set[tuple[tuple[int, ...], str, str, int]] = set()


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

_AUTO = "auto"


def parse_policy(text: str) -> list[Rule]:
    """Read a policy: rules ``OP [DTYPE] [>=SIZE] CODEC``, separated by semicolons or lines.

    The first rule that fits an operation counts; an operation that no rule fits is sent raw. ``#``
    begins a comment. The codec ``auto`` is chosen by the profile of the ranks.

    Raises:
      InvalidArgumentError: for a text that is no policy, for lossy codecs of values other than
        float32 and float64 in allreduce and reduce_scatter, and for ``permute auto``.
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
    if codecs.find_custom(spec) is not None:
        raise errors.InvalidArgumentError(
            f"the policy's rule {text!r}: {codec!r} is no codec of the engine."
        )
    codec = codecs.canonical_choice(codec)
    if operation == "permute" and _is_open(codec):
        raise errors.InvalidArgumentError(
            f"the policy's rule {text!r}: {codec!r} chooses by predicted times, which do not exist "
            "for permutes. Name a codec, such as 'lossless'."
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
    return operation, dtype, size, codec


def _is_open(codec: str) -> bool:
    """Return whether the codec is chosen by the profile."""
    return codec.partition(":")[0] == _AUTO


def _rule_of(operation: str, dtype: str, size: int) -> Rule | None:
    """Return the first rule that fits an operation, as the library does; None: it is sent raw."""
    for rule in _rules:
        of, of_dtype, min_bytes, _ = rule
        if of in ("*", operation) and of_dtype in ("", dtype) and size >= min_bytes:
            return rule
    return None


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
            _rules[:] = parse_policy(comm.xla_policy())
            # "auto" is raw until `_choose` adds rules for the collectives of a program.
            engine.load().set_xla_policy(
                [
                    (operation, dtype, size, "raw" if _is_open(codec) else codec)
                    for operation, dtype, size, codec in _rules
                ]
            )
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
    collectives = _jax.collectives_of(executable, len(devices))
    for each in collectives:
        _check_counts(each)
        groups |= dict.fromkeys(each.groups)
    mine = [[devices[index] for index in group] for group in groups]
    mine = [group for group in mine if any(each.process_index == here for each in group)]
    if not mine:
        return
    comm.init()
    for each in collectives:
        _choose(each, devices)
    for group in mine:
        with _lock:
            if tuple(group) not in _made:
                _make(group)
                _made.add(tuple(group))


def _blocks(collective: _jax.XlaCollective) -> Iterator[tuple[str, int]]:
    """Yield dtype, in XLA's words, and number of elements of each block that XLA passes."""
    # Of an all-to-all, each block is a result of its own, unless it has one result.
    is_whole = collective.name == "all-to-all" and len(collective.values) == 1
    is_gathered = collective.name == "all-gather"
    for dtype, count in collective.values:
        yield dtype, count // len(collective.groups[0]) if is_whole or is_gathered else count


def _element_bytes(dtype: str) -> int:
    return _BYTES.get(dtype) or max(int("".join(filter(str.isdigit, dtype[:3]))) // 8, 1)


def _check_counts(collective: _jax.XlaCollective) -> None:
    """Raise if XLA's counts, which have 32 bits, overflow: XLA would send other values."""
    counts_bytes = collective.name not in ("all-reduce", "reduce-scatter")
    for dtype, count in _blocks(collective):
        if counts_bytes:
            count *= _element_bytes(dtype)
        if count > _MAX_COUNT:
            unit = "bytes" if counts_bytes else "elements"
            raise errors.InvalidArgumentError(
                f"XLA's {collective.name} of this program sends blocks of {count} {unit}, and its "
                f"CPU collectives by MPI count to {_MAX_COUNT}. Use more devices, smaller arrays, "
                "or jaxccomp.lax, which has no such limit."
            )


# Operations with predicted times, and the algorithm of the prediction: XLA runs an all-to-all as
# exchanges of pairs.
_PREDICTED = {
    "all-reduce": ("allreduce", "auto"),
    "reduce-scatter": ("reduce_scatter", "auto"),
    "all-gather": ("allgather", "auto"),
    "all-to-all": ("alltoall", "pairwise"),
}
_KINDS = {"s": "int", "u": "uint", "f": "float", "c": "complex"}


def _choose(collective: _jax.XlaCollective, devices: Sequence[Any]) -> None:
    """Resolve "auto" for a collective of a program: give the library rules for its groups.

    All ranks of a group compile the same programs in the same order, so they choose alike.

    Raises:
      InvalidArgumentError: if the policy's rule is "auto" and there is no profile.
    """
    ranks, here = len(collective.groups[0]), jax.process_index()
    if collective.name not in _PREDICTED or ranks == 1:
        return
    operation, _ = _PREDICTED[collective.name]
    for kind, count in _blocks(collective):
        dtype, size = "", count * _element_bytes(kind)
        if operation in _REDUCTIONS:
            dtype = "uint8" if kind == "pred" else _KINDS.get(kind[0], "") + kind[1:]
            if dtype not in _DTYPES:  # XLA refuses to reduce it
                continue
        if operation == "reduce_scatter":
            size *= ranks
        rule = _rule_of(operation, dtype, size)
        if rule is None or not _is_open(rule[-1]):
            continue
        how = _resolved(rule, collective, devices, dtype, size)
        for group in collective.groups:
            if all(devices[index].process_index != here for index in group):
                continue
            key = (tuple(CPU.number(devices[i].id) for i in group), operation, dtype, size)
            with _lock:
                if key not in _chosen:
                    engine.load().add_xla_rule(*key, *how)
                    _chosen.add(key)


def _resolved(
    rule: Rule, collective: _jax.XlaCollective, devices: Sequence[Any], dtype: str, size: int
) -> tuple[str, str]:
    """Return codec and algorithm for an operation whose rule's codec is "auto"."""
    planner, codec = comm.planner(), rule[-1]
    if planner is None:
        shown = " ".join(filter(None, (*rule[:2], f">={rule[2]}" if rule[2] else "", codec)))
        raise errors.InvalidArgumentError(
            f"the policy's rule {shown!r} chooses by a profile, and the ranks have none. Measure "
            "one by `python -m jaxccomp tune links --output FILE`, and set JAXCCOMP_PROFILE=FILE."
        )
    operation, algorithm = _PREDICTED[collective.name]
    is_cut = operation == "alltoall"  # `size` is that of a block
    numbers = comm.process_numbers()
    choice = planner.choose(
        operation,
        algorithm=algorithm,
        codecs=codecs.choices(codec),
        # XLA passes the values of other operations as bytes: predict them as float32.
        sizes=((dtype or "float32", size * len(collective.groups[0]) if is_cut else size),),
        groups=tuple(
            tuple(numbers[devices[index].process_index] for index in group)
            for group in collective.groups
        ),
    )
    if choice is None:
        return codecs.canonical(codec), "auto"
    # The messages of an all-to-all have no algorithm.
    return choice.chosen.codec, "auto" if is_cut else choice.chosen.algorithm


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
