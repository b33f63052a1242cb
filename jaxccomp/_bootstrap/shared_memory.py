"""Checks for enough space in /dev/shm for MPI.

MPICH maps a file in /dev/shm and writes to it. If /dev/shm is full, the kernel ends the rank by
SIGBUS without an error text.
"""

from __future__ import annotations

import contextlib
import os
import time

FOLDER = "/dev/shm"
_WRITE_UNCHECKED = ("MPICH", "Intel MPI")  # Open MPI reports missing space itself
_BYTES_PER_RANK = 1_060_000  # measured: written by MPICH 5 until MPI_Init ends
_FILES = "mpich_shm_"
_NEW_SECONDS = 60.0


def why_too_little(vendor: str, ranks: int, *, starting: bool = False, folder: str = FOLDER) -> str:
    """Return why the ranks cannot start on this host; empty if no reason is known.

    Args:
      vendor: the MPI's name in mpi4py.
      ranks: the number of ranks on this host.
      starting: whether ranks may already have created files: then new files count as theirs.
      folder: the folder of shared-memory files.
    """
    if vendor not in _WRITE_UNCHECKED:
        return ""
    needed = ranks * _BYTES_PER_RANK
    try:
        found = os.statvfs(folder)
    except OSError:
        return ""
    free, size = (blocks * found.f_frsize for blocks in (found.f_bavail, found.f_blocks))
    if free + (_taken_lately(folder) if starting and free < needed else 0) >= needed:
        return ""
    return (
        f"{folder} has {free >> 10} KiB free of {size >> 10} KiB, and {vendor} needs about "
        f"{needed >> 10} KiB there for {ranks} {'ranks' if ranks > 1 else 'rank'} of a host: it "
        f"would end by SIGBUS. Remove files of jobs that were killed ({folder}/{_FILES}*), or make "
        "it larger (for containers: docker run --shm-size=1g)"
    )


def _taken_lately(folder: str) -> int:
    """Bytes of files that MPICH has made within the last minute."""
    total, since = 0, time.time() - _NEW_SECONDS
    for entry in os.scandir(folder):
        with contextlib.suppress(OSError):
            status = entry.stat(follow_symlinks=False)
            if entry.name.startswith(_FILES) and status.st_ctime > since:
                total += 512 * status.st_blocks
    return total
