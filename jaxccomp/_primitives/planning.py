"""What "auto" becomes, where a profile says what algorithms and codecs take (docs/planner.md)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from jaxccomp import codecs, comm
from jaxccomp._call import Call


def settled(call: Call) -> Call:
    """The call as it is without a profile."""
    return call.replace(codec=codecs.canonical(call.codec))


def planned(call: Call, avals: Sequence[Any], groups: Sequence[Sequence[Any]] | None) -> Call:
    """The call with the algorithm and the codec that its ranks' profile chooses.

    Args:
      call: one that the engine runs on the host.
      avals: shapes and dtypes of the operands that are sent.
      groups: of devices, by rank, for a call along axes.
    """
    plan = plan_of(call, avals, groups)
    if plan is None:
        return settled(call)
    return call.replace(codec=plan.chosen.codec, algorithm=plan.chosen.algorithm)


def plan_of(call: Call, avals: Sequence[Any], groups: Sequence[Sequence[Any]] | None) -> Any | None:
    """The `jaxccomp.schedules.Plan` of a call; None where there is nothing to choose."""
    specs = codecs.choices(call.codec)
    planner = comm.planner()
    if planner is None or (call.algorithm != "auto" and len(specs) == 1):
        return None
    # Residuals and references cost what prices do not know.
    if call.feedback or call.carries or call.referenced or call.reverse:
        return None
    sizes: Counter[str] = Counter()
    for aval in avals:
        if not hasattr(aval, "dtype") or not all(isinstance(n, int) for n in aval.shape):
            return None  # sizes are not known, as in exported programs of any shape
        sizes[aval.dtype.name] += math.prod(aval.shape) * aval.dtype.itemsize
    return planner.choose(
        call.collective,
        algorithm=call.algorithm,
        codecs=specs,
        sizes=tuple(sorted(sizes.items())),
        groups=_processes(call, groups),
        root=max(call.root, 0),
    )


def _processes(call: Call, groups: Sequence[Sequence[Any]] | None) -> tuple[tuple[int, ...], ...]:
    if call.comm is not None:
        return (call.comm.processes,)
    numbers = comm.process_numbers()
    return tuple(tuple(numbers[device.process_index] for device in group) for group in groups or ())
