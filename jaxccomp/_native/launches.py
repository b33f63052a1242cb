"""The source location and the thread name of each launch of a program, for the engine.

With the option ``check_launches`` the engine compares locations (the dispatch stack in Python)
between ranks. Without them, a rank that skips one of many equal launches looks like a rank that is
one launch behind. Source lines, and the numbers of `step`, distinguish the two.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import threading
import types
import weakref
from collections.abc import Iterator

import jax

_PACKAGES = tuple(
    os.path.dirname(os.path.abspath(path)) + os.sep for path in (__file__, jax.__file__)
)
_STDLIB = os.path.dirname(os.path.abspath(os.__file__)) + os.sep

# Step numbers by thread, since each thread may run a loop of its own.
_steps: weakref.WeakKeyDictionary[threading.Thread, int] = weakref.WeakKeyDictionary()
# Threads in which this package currently launches programs of its own.
_of_this_package: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def step(number: int) -> None:
    """Sets the step number of this thread's next launches, for the option ``check_launches``.

    With the option on, ranks compare the number at each launch of a program with collectives, and
    at each operation or message on an ordered communicator. If numbers differ, all ranks get an
    error that names both. This finds a rank that skips one of the equal launches of a loop, which
    the engine cannot detect otherwise. Without the option the number has no effect.

    Args:
      number: any integer, the same on all ranks at the same step.

    Example:
      >>> import jaxccomp
      >>> for number in range(3):
      ...     jaxccomp.step(number)
    """
    _steps[threading.current_thread()] = int(number)


@contextlib.contextmanager
def left_out() -> Iterator[None]:
    """Excludes this thread's launches from the comparison: they are this package's own."""
    thread = threading.current_thread()
    _of_this_package.add(thread)
    try:
        yield
    finally:
        _of_this_package.discard(thread)


@contextlib.contextmanager
def own_settings() -> Iterator[None]:
    """Overrides the program's JAX settings in a thread of this package.

    For instance, weights may have NaNs although the program sets ``jax_debug_nans``.
    """
    with (
        left_out(),
        jax.debug_nans(False),
        jax.debug_infs(False),
        jax.disable_jit(False),
        jax.transfer_guard("allow"),
    ):
        yield


def launch_place() -> str:
    """The location of the current launch: the step, and source lines, innermost first.

    Frames of JAX, of this package and of Python's library are left out. If XLA runs the launch on a
    thread of its own, the main thread's stack is used: with the option on, it made the launch and
    waits for it.
    """
    launcher, places = _this_thread(), []
    if launcher in _of_this_package:
        return ""
    if launcher is not None:
        places = _places(sys._getframe())
    if launcher is None or not places:
        launcher = threading.main_thread()
        if launcher in _of_this_package:
            return ""
        places = _places(sys._current_frames().get(launcher.ident or 0))
    if (number := _steps.get(launcher)) is not None:
        places.insert(0, f"step {number}")
    return " < ".join(places)


def _this_thread() -> threading.Thread | None:
    """The current thread; None for XLA's threads, for which ``current_thread`` leaks a dummy."""
    ident, main = threading.get_ident(), threading.main_thread()
    if ident == main.ident:
        return main
    return next((thread for thread in threading.enumerate() if thread.ident == ident), None)


def _places(frame: types.FrameType | None) -> list[str]:
    places = []
    while frame is not None:
        if name := _shown(frame.f_code.co_filename):
            places.append(f"{name}:{frame.f_lineno}")
        frame = frame.f_back
    return places


@functools.lru_cache(4096)
def _shown(path: str) -> str:
    """A file's name; empty for files that are left out."""
    is_library = path.startswith(_STDLIB) and "site-packages" not in path
    is_left_out = is_library or path.startswith((*_PACKAGES, "<frozen"))
    return "" if is_left_out else os.path.basename(path)


# --- Names of threads -----------------------------------------------------------------------------

_WORKER = re.compile(r"_\d+$")  # the number of a worker in its ThreadPoolExecutor
_FOREIGN = "Dummy-"  # threads not started by Python, such as XLA's


def thread_name() -> str:
    """The calling thread's name; empty for the main thread, "?" for one not started by Python.

    Ranks that start the same threads get the same names. The workers of a pool share one name,
    since any worker may get a task.
    """
    thread = threading.current_thread()
    if thread is threading.main_thread():
        return ""
    return "?" if thread.name.startswith(_FOREIGN) else _WORKER.sub("", thread.name)
