"""Calls of registered algorithms: their schedules are built when a call is lowered."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jaxccomp import errors
from jaxccomp._call import Call, has_row_per_rank
from jaxccomp._native import algorithms, engine

# The alignment of tensors in a block (kBlockAlign in csrc/collective/schedule.h).
_ALIGN = 64


def algorithm_of(call: Call, avals: Sequence[Any]) -> str:
    """Return the call's algorithm for the engine.

    Args:
      call: as lowered for the engine.
      avals: shapes and dtypes of the operands to send.

    Raises:
      ScheduleError: when the schedules of a registered algorithm are wrong or cannot be built.
    """
    if algorithms.find(call.collective, call.algorithm) is None:
        return call.algorithm
    block_bytes = 0
    for aval in avals:
        shape = aval.shape[1:] if has_row_per_rank(call) else aval.shape
        if not all(isinstance(size, int) for size in shape):
            raise errors.ScheduleError(
                f"{call.collective}: algorithm={call.algorithm!r} is registered by the program, "
                f"and its schedules are made for shapes that are known, not for {aval.shape}. "
                'Export the program with shapes that are, or with algorithm="auto".'
            )
        block_bytes = -(-block_bytes // _ALIGN) * _ALIGN + math.prod(shape) * aval.dtype.itemsize
    problem = algorithms.Problem(
        call.size,
        block_bytes,
        root=max(call.root, 0),
        coded=_codes_any(call, avals),
        feedback=call.feedback,
        reverse=call.reverse,
    )
    return algorithms.for_engine(call.collective, call.algorithm, problem)


def _codes_any(call: Call, avals: Sequence[Any]) -> bool:
    if call.codec == "raw":
        return False
    coded = set(engine.load().describe_codec(call.codec)["dtypes"])
    return not coded.isdisjoint(aval.dtype.name for aval in avals)
