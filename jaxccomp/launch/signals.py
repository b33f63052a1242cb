"""Handles signals that end a program: it cleans up first, or ends at once during its imports."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import sys
import threading
from collections.abc import Callable, Iterator

# --- Ctrl-C while ``python -m jaxccomp`` runs its imports -----------------------------------------
# If Python raises KeyboardInterrupt in a callback of the garbage collector or of a weak
# reference, it prints and drops the exception. Imports run many such callbacks.


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


# --- Signals that end a program -------------------------------------------------------------------

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1


def die_with_parent(number: int) -> None:
    """Make the kernel send this process a signal when its parent dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


@contextlib.contextmanager
def handled(handler: Callable[[int], object], numbers: tuple[int, ...] = ENDING) -> Iterator[None]:
    """Call ``handler`` with the number of each of these signals, within the ``with`` block.

    Ignored signals stay ignored: ``nohup`` and the shell's ``&`` rely on this.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heeded = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    before = {n: signal.signal(n, lambda number, _: handler(number)) for n in heeded}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


_ended_by = 0


def end(number: int) -> None:
    """End this program like Ctrl-C: its ``finally`` clauses run."""
    global _ended_by
    _ended_by = number
    raise SystemExit(128 + number)


def ended_by() -> int:
    """Return the signal that `end` was called for; 0 for none.

    The program may continue after `end`, since Python drops exceptions in callbacks of its garbage
    collector; this function then returns the signal.
    """
    return _ended_by


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay signals that end a program until the end of the ``with`` block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_thread(target: Callable[..., object], *arguments: object) -> threading.Thread:
    """Start a thread that blocks signals, so that they reach and wake the main thread."""
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        thread.start()  # it inherits the mask
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return thread
