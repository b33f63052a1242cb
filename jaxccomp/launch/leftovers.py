"""Cleanup after a job: its remaining processes, found by a job tag, and its shared memory."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import signal
import time
from collections.abc import Callable

_SHARED_MEMORY = pathlib.Path("/dev/shm")
# Names of files of MPICH, Intel MPI, Open MPI and their libraries.
_OF_MPI = re.compile(r"mpich_|Intel_MPI|impi_|sm_segment|vader_segment|osc_|ompi|ucx_shm_|psm")


def marked(mark: str) -> list[int]:
    """Return the other processes whose environment has ``mark`` (``NAME=value``)."""
    wanted = mark.encode()
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        # The process may have ended, or belong to another user.
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            if pid != os.getpid() and wanted in file.read().split(b"\0"):
                found.append(pid)
    return found


def kill(mark: str, seconds: float = 5.0) -> None:
    """Kills the `marked` processes, and their new children."""
    deadline = time.monotonic() + seconds
    while (pids := marked(mark)) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def wait(done: Callable[[], bool], seconds: float, pause: float = 0.05) -> bool:
    """Wait until ``done()`` is true; return whether it was within ``seconds``."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True


class SharedFiles:
    """Files that MPI creates in shared memory for a job, and leaves when the job is killed.

    A file belongs to the job if it did not exist before the job and `look` has found it in use by
    one of the job's processes. Processes of concurrent jobs use other files.

    Args:
      mark: the job tag in the environment of the job's processes.
      folder: the folder of shared-memory files.
      proc: the folder of the proc file system.
    """

    def __init__(
        self,
        mark: str,
        folder: pathlib.Path = _SHARED_MEMORY,
        proc: pathlib.Path = pathlib.Path("/proc"),
    ):
        self._mark, self._folder, self._proc = mark, folder, proc
        self._before = self._listed()
        self._seen: set[tuple[str, int]] = set()

    def look(self) -> None:
        """Records the files that the job's processes use now."""
        for pid in marked(self._mark):
            self._seen |= self._used_by(pid)

    def remove(self) -> list[str]:
        """Removes the job's remaining files that no process uses.

        Returns:
          The names of the removed files.
        """
        left = (self._seen & self._listed()) - self._before
        if left:
            for entry in self._proc.iterdir():
                if entry.name.isdigit():
                    left -= self._used_by(int(entry.name))
        for name, _ in left:
            with contextlib.suppress(OSError):
                (self._folder / name).unlink()
        return sorted(name for name, _ in left)

    def _listed(self) -> set[tuple[str, int]]:
        """Names and inodes of MPI's files of this user in the folder."""
        found = set()
        with contextlib.suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    if _OF_MPI.match(entry.name) and status.st_uid == os.geteuid():
                        found.add((entry.name, status.st_ino))
        return found

    def _used_by(self, pid: int) -> set[tuple[str, int]]:
        found = set()
        start = f"{self._folder}/"
        with contextlib.suppress(OSError), open(self._proc / str(pid) / "maps", "rb") as file:
            for raw in file:
                # ADDRESSES RIGHTS OFFSET DEVICE INODE PATH
                fields = raw.decode(errors="replace").split(None, 5)
                if len(fields) == 6 and fields[5].startswith(start):
                    found.add((fields[5].strip()[len(start) :], int(fields[4])))
        return found
