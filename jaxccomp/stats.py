"""What the engine has done in this process: bytes sent, time spent, per operation."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping

from jaxccomp import comm
from jaxccomp._native import engine

_COMBINE = {"peak_bytes": max, "bound_bytes": max}


@dataclasses.dataclass(frozen=True)
class OperationStats:
    """One kind of operation, summed over its calls.

    Attributes:
      calls: how often it ran.
      value_bytes: the size of its operands.
      sent_bytes: what was sent of them, encoded.
      remote_bytes: the part of ``sent_bytes`` that left the process.
      peak_bytes: the most temporary memory that one call held for scratch and encoded values,
        and that held at the same time what had come from other hosts before it was wanted;
        lossless and sparse codecs also need a workspace per thread.
      bound_bytes: what that call might have held at most: 4 chunks for each rank that it
        exchanges values with. What comes early is at most 1 MiB from each process of another
        host, for all operations together.
      seconds: from the start of each call to its end, summed; calls in flight together count
        each for itself.
      ipc_bytes: the part of ``sent_bytes`` that stayed in a GPU's memory, where the receiver read
        it (the option ``device_ipc_bytes``). It lies in memory set aside for that, and is not in
        ``peak_bytes`` once it has been sent.
      cuda_aware_sent_bytes: the part of ``sent_bytes`` that MPI took from a GPU's memory (the
        option ``device_mpi_bytes``).
      cuda_aware_received_bytes: what MPI put into a GPU's memory, whether or not it was sent from
        one.
      nccl_calls: how often it was queued with ``backend="nccl"``. That is in no other count: when
        NCCL ran, and what it sent, only the GPU knows.
      nccl_bytes: the size of the operands of those calls.
    """

    calls: int = 0
    value_bytes: int = 0
    sent_bytes: int = 0
    remote_bytes: int = 0
    seconds: float = 0.0
    peak_bytes: int = 0
    bound_bytes: int = 0
    ipc_bytes: int = 0
    cuda_aware_sent_bytes: int = 0
    cuda_aware_received_bytes: int = 0
    nccl_calls: int = 0
    nccl_bytes: int = 0


@dataclasses.dataclass(frozen=True)
class Stats:
    """All operations since the start or the last :func:`reset`."""

    operations: Mapping[str, OperationStats]

    @property
    def total(self) -> OperationStats:
        """The sum over all operations; of memory the most."""
        total = OperationStats()
        for each in self.operations.values():
            total = OperationStats(
                **{
                    field.name: _COMBINE.get(field.name, operator.add)(
                        getattr(total, field.name), getattr(each, field.name)
                    )
                    for field in dataclasses.fields(total)
                }
            )
        return total

    def __str__(self) -> str:
        lines = [
            f"{'operation':<16}{'calls':>9}{'values':>12}{'sent':>12}{'memory':>12}{'seconds':>10}"
        ]
        rows = (*sorted(self.operations.items()), ("all", self.total))
        for name, each in rows:
            lines.append(
                f"{name:<16}{each.calls:>9}{format_bytes(each.value_bytes):>12}"
                f"{format_bytes(each.sent_bytes):>12}{format_bytes(each.peak_bytes):>12}"
                f"{each.seconds:>10.3f}"
            )
        lines += [
            f"{name + ' (nccl)':<16}{each.nccl_calls:>9}{format_bytes(each.nccl_bytes):>12}"
            for name, each in rows
            if each.nccl_calls
        ]
        return "\n".join(lines)


def get() -> Stats:
    """The numbers so far; empty before the first operation and without the engine."""
    if not comm.is_initialized() or not engine.available():
        return Stats({})
    fields = {field.name for field in dataclasses.fields(OperationStats)}
    return Stats(
        {
            name: OperationStats(**{key: row[key] for key in row if key in fields})
            for name, row in engine.load().stats().items()
        }
    )


def reset() -> None:
    """Starts counting anew."""
    if comm.is_initialized() and engine.available():
        engine.load().reset_stats()


def format_bytes(count: int) -> str:
    """``count`` in binary units, such as "1.5 MiB"."""
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.0f} {units[0]}" if size.is_integer() else f"{size:.1f} {units[0]}"
