"""The record that each process sends to the others when it joins, and data derived from it."""

from __future__ import annotations

import os
import socket
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from jaxccomp import config, errors
from jaxccomp._native import engine, platforms

# An allgather of rows of integers.
Share = Callable[[Sequence[int]], Sequence[Sequence[int]]]


class Row(NamedTuple):
    """The record of one process."""

    jax_index: int
    jax_count: int
    host: int
    unit_bytes: int
    lacks_cuda: int  # 1: JAX has GPUs in this process that the engine cannot use
    pid: int = 0
    pid_space: int = 0  # processes of one host may see different pids (containers)
    start_time: int = 0  # distinguishes the process from a later one with its pid
    transport: int = 0  # index of the option's value in its choices
    profile: int = 0  # size of its profile in bytes; 0: none; below 0: unreadable
    profile_hash: int = 0
    plan: int = 0  # the same for its pinned plans
    plan_hash: int = 0
    xla_policy: int = 0  # hash of the option's text


def share_bytes(share: Share, own_bytes: bytes) -> list[bytes]:
    """Allgather byte strings of equal length; the results are padded with zeros."""
    words = np.frombuffer(own_bytes + bytes(-len(own_bytes) % 8), np.int64)
    return [np.asarray(row, np.int64).tobytes() for row in share(words.tolist())]


def hosts(rows: Sequence[Row]) -> list[int]:
    """Return for each process the number of its host: the lowest process on that host."""
    names = [row.host for row in rows]
    return [names.index(name) for name in names]


def own(open_mpi: bool, files: Sequence[int] = ()) -> Row:
    """Return this process's row.

    Args:
      open_mpi: whether Open MPI is the transport.
      files: size and hash of this process's profile, then size and hash of its pinned plans.
    """
    unit_bytes = config.get("mpi_unit_bytes")
    if unit_bytes == 0:
        # Stay below the eager limit: Open MPI's rendezvous progresses only in calls of MPI.
        unit_bytes = 48 << 10 if open_mpi else 1 << 30
    lacks_cuda = bool(platforms.CUDA.local_devices()) and bool(platforms.why_no_cuda())
    return Row(
        jax.process_index(),
        jax.process_count(),
        _host_number(),
        unit_bytes,
        int(lacks_cuda),
        *_pid(),
        config.choices("transport").index(config.get("transport")),
        *files,
        xla_policy=zlib.crc32(xla_policy_text().encode()),
    )


def xla_policy_text() -> str:
    """Return the rules of the option ``xla_policy``, which may name a file.

    Raises:
      InvalidArgumentError: if the file cannot be read.
    """
    value: str = config.get("xla_policy")
    if not os.path.isfile(value):
        return value
    try:
        with open(value, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise errors.InvalidArgumentError(f"the option xla_policy: {value}: {error}.") from None


def call(share: Share, own_row: Row) -> list[Row]:
    """Exchange the rows of all processes.

    Args:
      share: an allgather of rows.
      own_row: this process's row.
    """
    rows = [Row(*map(int, each)) for each in share(own_row)]
    if len({row.unit_bytes for row in rows}) > 1:
        raise errors.InitializationError(
            "the option mpi_unit_bytes must be the same on all ranks; by rank it is "
            f"{[row.unit_bytes for row in rows]}."
        )
    if len({row.xla_policy for row in rows}) > 1:
        ranks = [rank for rank, row in enumerate(rows) if row.xla_policy != rows[0].xla_policy]
        raise errors.InitializationError(
            f"the option xla_policy must be the same on all ranks; ranks {ranks} have other rules "
            "than rank 0. Give all of them the same --policy (or JAXCCOMP_XLA_POLICY)."
        )
    if len({row.transport for row in rows}) > 1:
        names = config.choices("transport")
        raise errors.InitializationError(
            "the option transport must be the same on all ranks; by rank it is "
            f"{[names[row.transport] if 0 <= row.transport < len(names) else '?' for row in rows]}."
        )
    return rows


def _pid() -> tuple[int, int, int]:
    """Return this process's pid, pid namespace and start time; zeros if unknown."""
    try:
        space = os.stat("/proc/self/ns/pid").st_ino
    except OSError:  # not Linux
        return 0, 0, 0
    start_time = engine.load().start_time(os.getpid())
    return (os.getpid(), space, start_time) if start_time else (0, 0, 0)


def system_processes(rows: Sequence[Row], rank: int) -> list[tuple[int, int]]:
    """Return pid and start time of each process that process ``rank`` sees; of others (0, 0)."""
    here = rows[rank]
    return [
        (row.pid, row.start_time)
        if (row.host, row.pid_space) == (here.host, here.pid_space) and row is not here
        else (0, 0)
        for row in rows
    ]


def _host_number() -> int:
    """Return a number that is equal for processes with the same host name and running kernel."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read()
    except OSError:  # not Linux
        boot = ""
    return zlib.crc32(f"{socket.gethostname()} {boot}".encode())


def who_lacks_cuda(rows: Sequence[Row]) -> str:
    """Return which ranks cannot use their GPUs, and why; empty when all can."""
    lacking = [rank for rank, row in enumerate(rows) if row.lacks_cuda]
    if not lacking:
        return ""
    where = "this rank" if platforms.why_no_cuda() else "another rank"
    return (
        f"rank {', '.join(map(str, lacking))} of the world cannot use its GPUs with the "
        f"engine ({where}: "
        f"{platforms.why_no_cuda() or '`python -m jaxccomp doctor` shows the reason there'})"
    )


def processes(rows: Sequence[Row], rank: int, distributed: bool, mpi: bool) -> dict[int, int]:
    """Return the ranks in the world by JAX's process index.

    Args:
      rows: the rows of all processes.
      rank: this process's rank.
      distributed: whether ``jax.distributed`` has joined them.
      mpi: whether MPI has joined them.
    """
    if not distributed:
        return {jax.process_index(): rank}
    if not mpi:
        return {index: index for index in range(len(rows))}
    indices = [row.jax_index for row in rows]
    if sorted(indices) != list(range(jax.process_count())) or any(
        row.jax_count != len(indices) for row in rows
    ):
        raise errors.InitializationError(
            f"MPI has {len(rows)} processes, but jax.distributed joins them differently: "
            f"by MPI rank, their JAX process indices are {indices}. Call "
            "jax.distributed.initialize() on every MPI rank with num_processes = the number of "
            'MPI ranks (cluster_detection_method="mpi4py" does that).'
        )
    return {index: rank for rank, index in enumerate(indices)}
