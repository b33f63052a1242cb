"""Line format between a rank and the launcher: ``[rank] text``, and control messages."""

from __future__ import annotations

import contextlib
import json
import re
import signal
from typing import Any

_PREFIXED = re.compile(rb"\[(\d+)\] (.*)", re.DOTALL)
_TOLD = b"\x1ejaxccomp "  # a control character that programs do not begin lines with
_ABORTED = re.compile(r"Abort\(-?\d+\) on node (\d+)|MPI_ABORT was invoked on rank (\d+)")


def prefixed(rank: int, line: bytes) -> bytes:
    """Return a line of a rank's output with rank prefix and newline."""
    return b"[%d] %s%s" % (rank, line, b"" if line.endswith(b"\n") else b"\n")


def told(rank: int, **values: Any) -> bytes:
    """Return a control message for the launcher."""
    return prefixed(rank, _TOLD + json.dumps(values).encode())


def parse(line: bytes) -> tuple[int | None, bytes, dict[str, Any] | None]:
    """Return a line's rank (None: mpiexec's own), its text, and its control message or None."""
    match = _PREFIXED.fullmatch(line.lstrip(b"\0"))  # Open MPI ends its banners with zeros
    if not match:
        return None, line, None
    rank, text = int(match[1]), match[2]
    # The program's line before the message may lack a newline.
    before, found, value = text.partition(_TOLD)
    if found:
        with contextlib.suppress(ValueError):
            return rank, before, json.loads(value)
    return rank, text, None


def aborted(line: str) -> int | None:
    """Return the rank that called MPI_Abort, if this is MPI's line about it; else None."""
    match = _ABORTED.search(line)
    return int(match[1] or match[2]) if match else None


def exit_status(returncode: int) -> int:
    """Convert a `subprocess` return code to a shell's: 128 + the signal number."""
    return 128 - returncode if returncode < 0 else returncode


def described(status: int) -> str:
    """Describe the end of a process with this exit status.

    >>> described(3), described(139)
    ('ended with exit status 3', 'was ended by SIGSEGV (exit status 139)')
    """
    try:
        name = signal.Signals(status - 128).name
    except ValueError:
        return f"ended with exit status {status}"
    return f"was ended by {name} (exit status {status})"
