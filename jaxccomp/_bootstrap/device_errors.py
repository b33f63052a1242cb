"""Errors of operations on devices that come after their program was dispatched, to nobody.

With device_wait="stream", and with NCCL, a program goes on as soon as its work is queued, and JAX
has no way to put an error into arrays that it has handed out. The next operation on the same
communicator raises; so does `check`; and a process that ends without either says so and fails.
"""

from __future__ import annotations

import atexit
import os
import sys

from jaxccomp import errors
from jaxccomp._native import engine

_raised = False
_failed = False


def check() -> None:
    """Raises when an operation on a GPU has failed.

    With ``device_wait="stream"`` and ``backend="nccl"`` its results are then not what they should
    be, and nothing else tells: wait for them first (``jax.block_until_ready``), check, and use
    them. On the CPU, and where the host waits, nothing is needed: the program fails by itself.

    Raises:
      OperationFailedError: with what failed; from then on each time.

    Example:
      >>> import jaxccomp
      >>> jaxccomp.check()
    """
    global _raised
    text, _ = _find()
    if text:
        _raised = True
        raise errors.OperationFailedError(
            f"an operation on a device has failed, and its results are not valid: {text}"
        )


def tell_at_exit() -> None:
    """Says what failed where the program has not been told, and has the process fail."""
    global _failed
    text, returned = _find()
    if not text or returned or _raised:
        return
    _failed = True
    print(
        f"jaxccomp: an operation on a device failed, and its results were not valid: {text}\n"
        "jaxccomp.check() after jax.block_until_ready(...) would have raised this.",
        file=sys.stderr,
        flush=True,
    )


def _find() -> tuple[str, bool]:
    return engine.load().device_error() if engine.available() else ("", False)


def _set_status() -> None:
    if _failed:
        # Python has no other way to fail so late.
        sys.stdout.flush()
        os._exit(1)


# First registered, last called: what else is to be done at exit has been.
atexit.register(_set_status)
