"""Lets Ctrl-C end the process at once while ``python -m jaxccomp`` runs its imports.

If Python raises KeyboardInterrupt in a callback of the garbage collector or of a weak reference, it
prints and drops the exception. Imports run many such callbacks.
"""

from __future__ import annotations

import signal
import sys


def is_command(argv: list[str], original: list[str]) -> bool:
    """Return whether the interpreter is about to run ``python -m jaxccomp``.

    Args:
      argv: ``sys.argv``, which is ``["-m", ...]`` while Python searches the module.
      original: ``sys.orig_argv``.
    """
    return argv[:1] == ["-m"] and ("-m", "jaxccomp") in zip(original, original[1:], strict=False)


_ends_at_once = (
    is_command(sys.argv, sys.orig_argv)
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
)
if _ends_at_once:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def raise_keyboard_interrupt() -> None:
    """Make Ctrl-C raise KeyboardInterrupt again; commands call this after their imports."""
    if _ends_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)
