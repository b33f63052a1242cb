"""Ctrl-C while ``python -m jaxccomp`` imports what it needs: it ends the process at once.

Python raises KeyboardInterrupt wherever the main thread happens to be. In a callback of the garbage
collector or of a weak reference, of which imports have many, the exception is printed and lost.
"""

from __future__ import annotations

import signal
import sys


def is_command(argv: list[str], original: list[str]) -> bool:
    """Whether the interpreter is about to run ``python -m jaxccomp``.

    Args:
      argv: ``sys.argv``, which is ``["-m", ...]`` while Python looks for the module.
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
    """Has Python raise KeyboardInterrupt again: for commands, whose imports are over."""
    if _ends_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)
