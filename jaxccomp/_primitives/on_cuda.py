"""Operations of the engine on GPUs: by its stage, or as compositions (docs/gpus.md).

The stage (csrc/cuda/stage/) runs every collective on raw values. With a lossless codec that has
CUDA kernels, it also runs messages, and collectives that only move blocks of equal size. Other
calls are composed in JAX: XLA's stream encodes the values, the stage sends the encoded values, and
XLA's stream decodes and reduces them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jaxccomp import _jax, codecs, errors
from jaxccomp._call import Call, split_references
from jaxccomp._native import platforms
from jaxccomp._primitives.composed import Composition, following
from jaxccomp._traced import codecs as traced_codecs
from jaxccomp._traced import cuda_codecs
from jaxccomp._traced.codecs import Codec, Unchanged

# The operations that the stage runs with a codec (MovesOnly in csrc/cuda/stage/stage.cc). Also
# sendrecv in program order: _is_message.
_MOVES = frozenset(
    {"bcast", "allgather", "gather", "scatter", "alltoall", "permute", "send", "recv"}
)
_UNCHANGED = Unchanged()


def check(ctx: Any, call: Call) -> None:
    """Raise unless a call with one of this package's codecs can run on GPUs.

    Raises:
      UnknownNameError: when the codec cannot run; the text names the codecs that can.
      InvalidArgumentError: for algorithm= with a codec.
    """
    dtypes = _dtypes(ctx, call)
    if not codecs.is_raw(call.codec) and call.algorithm.partition(":")[0] != "auto":
        raise errors.InvalidArgumentError(
            f"{call.collective}: on GPUs algorithm= is for operations without a codec, not for "
            f"algorithm={call.algorithm!r} with codec={call.codec!r}; leave one of them out."
        )
    if _runs_directly(call, dtypes):
        return
    refused = next((dtype for dtype in dtypes if not _is_composed(call, dtype)), None)
    if refused is None:
        return
    here = (name for name, row in codecs.table().items() if not row.missing)
    has = errors.listed(name for name in here if _can_run(call.replace(codec=name), refused))
    ref = " with ref=" if call.has_ref else ""
    raise errors.UnknownNameError(
        f"{call.collective}{ref}: the engine has no codec {call.codec!r} for {refused} on GPUs; "
        f"valid: {has}. Use one of them, run on CPU devices, or let JAX run the call with "
        'axis_name= and backend="xla".'
    )


def composition(ctx: Any, call: Call) -> Composition | None:
    """Return the composition of a call that passes `check`; None if the stage runs it directly."""
    if _runs_directly(call, _dtypes(ctx, call)):
        return None
    find_lossy = cuda_codecs.find if cuda_codecs.usable(ctx) else traced_codecs.find_for

    def find(spec: str, dtype: str) -> Codec | None:
        if not codecs.is_lossless(spec):
            return find_lossy(spec, dtype)
        return None if codecs.is_raw(spec) else _UNCHANGED

    # One piece: the stage cuts values into parts itself.
    return Composition(find, _stage_codec(call.codec), uncoded="raw", pieces=1)


def _stage_codec(spec: str) -> str:
    """Return the stage's codec: all of a lossless spec, else the codecs after the first one."""
    return spec if codecs.is_lossless(spec) else following(spec)


def _dtypes(ctx: Any, call: Call) -> list[str]:
    values, _ = split_references(call, _jax.avals_in(ctx))
    return list(dict.fromkeys(aval.dtype.name for aval in values if hasattr(aval, "dtype")))


def _runs_directly(call: Call, dtypes: Iterable[str]) -> bool:
    """Return whether the stage runs the call directly."""
    if call.has_ref or call.feedback:
        return False
    moves = codecs.is_raw(call.codec) or call.collective in _MOVES or _is_message(call)
    return moves and all(platforms.cuda_runs(call.codec, dtype) for dtype in dtypes)


def _is_message(call: Call) -> bool:
    """Return whether the call is a sendrecv that is matched in program order, as in MPI."""
    return call.collective == "sendrecv" and call.ordered


def _is_composed(call: Call, dtype: str) -> bool:
    """Return whether the call can be composed for values of a dtype."""
    first = codecs.parse(call.codec).stages[0]
    if dtype not in codecs.table()[first.name].dtypes:
        return platforms.cuda_runs("raw", dtype)
    stage_codec = _stage_codec(call.codec)
    if call.collective == "sendrecv" and not (_is_message(call) or codecs.is_raw(stage_codec)):
        return False
    if codecs.is_lossless(call.codec):
        return not call.has_ref and platforms.cuda_runs(call.codec, dtype)
    return first.name in traced_codecs.CODECS and platforms.cuda_runs(stage_codec, "uint8")


def _can_run(call: Call, dtype: str) -> bool:
    return _runs_directly(call, [dtype]) or _is_composed(call, dtype)
