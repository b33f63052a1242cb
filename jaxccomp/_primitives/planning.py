"""What "auto" becomes, where a profile says what algorithms and codecs take (docs/planner.md)."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from jaxccomp import codecs, comm
from jaxccomp._call import Call


@dataclasses.dataclass(frozen=True)
class Lowered:
    """A call, as it has become part of a program.

    Attributes:
      where: the source line.
      call: with the algorithm and the codec that run.
      mover: "native", "nccl" or "xla".
      sizes: bytes that a rank passes in, by dtype; None where they are not known.
      choice: a `jaxccomp.schedules.Choice`, where prices are known.
    """

    where: str
    call: Call
    mover: str
    sizes: tuple[tuple[str, int], ...] | None
    choice: Any | None


_recorder = threading.local()


@contextlib.contextmanager
def recorded() -> Iterator[list[Lowered]]:
    """Collects all calls that this thread lowers within a ``with`` block."""
    before = getattr(_recorder, "calls", None)
    _recorder.calls = []
    try:
        yield _recorder.calls
    finally:
        _recorder.calls = before


def record(where: str, call: Call, mover: str, avals: Sequence[Any], choice: Any = None) -> None:
    """Notes a call, where somebody asks for it."""
    if _is_recording():
        _recorder.calls.append(Lowered(where, call, mover, _sizes(avals), choice))


def _is_recording() -> bool:
    return getattr(_recorder, "calls", None) is not None


def settled(call: Call) -> Call:
    """The call as it is without a profile."""
    return call.replace(codec=codecs.canonical(call.codec))


def choice_of(
    call: Call, avals: Sequence[Any], groups: Sequence[Sequence[Any]] | None
) -> Any | None:
    """What the profile of the ranks chooses for a call that the engine runs on the host.

    Args:
      call: with "auto" where something is to be chosen.
      avals: shapes and dtypes of the operands that are sent.
      groups: of devices, by rank, for a call along axes.

    Returns:
      A `jaxccomp.schedules.Choice`; None where there is none, or none is asked for.
    """
    planner, sizes = comm.planner(), _sizes(avals)
    specs = codecs.choices(call.codec)
    is_open = call.algorithm == "auto" or len(specs) > 1
    if planner is None or sizes is None or not (is_open or _is_recording()):
        return None
    # Residuals and references cost what prices do not know.
    if call.feedback or call.carries or call.referenced or call.reverse:
        return None
    return planner.choose(
        call.collective,
        algorithm=call.algorithm,
        codecs=specs,
        sizes=sizes,
        groups=_processes(call, groups),
        root=max(call.root, 0),
    )


def _sizes(avals: Sequence[Any]) -> tuple[tuple[str, int], ...] | None:
    sizes: Counter[str] = Counter()
    for aval in avals:
        if not hasattr(aval, "dtype") or not all(isinstance(n, int) for n in aval.shape):
            return None  # as in exported programs of any shape
        sizes[aval.dtype.name] += math.prod(aval.shape) * aval.dtype.itemsize
    return tuple(sorted(sizes.items()))


def _processes(call: Call, groups: Sequence[Sequence[Any]] | None) -> tuple[tuple[int, ...], ...]:
    if call.comm is not None:
        return (call.comm.processes,)
    numbers = comm.process_numbers()
    return tuple(tuple(numbers[device.process_index] for device in group) for group in groups or ())
