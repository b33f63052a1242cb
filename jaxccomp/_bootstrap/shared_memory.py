"""Room for the memory that ranks of one host share by MPI.

MPICH maps a file of /dev/shm and writes to it. Where that is full, the kernel ends the rank by
SIGBUS, without a word why.
"""

from __future__ import annotations

import contextlib
import os
import time

FOLDER = "/dev/shm"
_WRITE_UNCHECKED = ("MPICH", "Intel MPI")  # Open MPI says itself that there is no room
_BYTES_PER_RANK = 1_060_000  # measured: what MPICH 5 has written when MPI_Init ends
_FILES = "mpich_shm_"
_NEW_SECONDS = 60.0


def why_too_little(vendor: str, ranks: int, *, starting: bool = False, folder: str = FOLDER) -> str:
    """Why so many ranks cannot start on this host; empty where nothing is known against it.

    Args:
      vendor: of the MPI, as mpi4py names it.
      ranks: how many this host has.
      starting: whether some of them may have taken their part already: then new files count as
        theirs.
      folder: where shared memory has its files.
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
