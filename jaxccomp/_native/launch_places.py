"""Where in the Python program a launch is made: what the option ``check_launches`` compares.

A rank that leaves out one of many equal launches looks to the engine like one that is a launch
behind. The Python program knows better: its lines, and the steps that it counts with `step`.
"""

from __future__ import annotations

import contextlib
import functools
import os
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

# By thread: each has a loop of its own.
_steps: weakref.WeakKeyDictionary[threading.Thread, int] = weakref.WeakKeyDictionary()
# In which this package launches something of its own.
_of_this_package: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def step(number: int) -> None:
    """Says which step comes next in this thread of the program, for the option ``check_launches``.

    With that option on, launches of programs with collectives must carry the same number on all
    ranks, or all get an error that names both. It tells apart what the engine cannot see: a rank
    that leaves out one of the equal launches of a loop. So do operations and messages on an ordered
    communicator. Without the option it does nothing.

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
    """What this thread launches meanwhile has no place to compare, as it is this package's own."""
    thread = threading.current_thread()
    _of_this_package.add(thread)
    try:
        yield
    finally:
        _of_this_package.discard(thread)


@contextlib.contextmanager
def own_settings() -> Iterator[None]:
    """In a thread of this package: what a program asks of JAX for itself does not hold there.

    Weights may have NaNs, for instance.
    """
    with (
        left_out(),
        jax.debug_nans(False),
        jax.debug_infs(False),
        jax.disable_jit(False),
        jax.transfer_guard("allow"),
    ):
        yield


def current() -> str:
    """The place of the launch under way: the step, and source lines, innermost first.

    Frames of JAX, of this package and of Python's library are left out. Launches that XLA runs on a
    thread of its own are made by the main thread, which waits for them while the option is on.
    """
    launcher, places = _this_thread(), []
    if launcher in _of_this_package:
        return ""
    if launcher is not None:
        places = _places(sys._getframe())
    if not places:
        launcher = threading.main_thread()
        places = _places(sys._current_frames().get(launcher.ident))
    if (number := _steps.get(launcher)) is not None:
        places.insert(0, f"step {number}")
    return " < ".join(places)


def _this_thread() -> threading.Thread | None:
    """None for a thread of XLA's, of which ``threading.current_thread`` would make one for ever."""
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
    """A file's name; empty for those that are left out."""
    is_library = path.startswith(_STDLIB) and "site-packages" not in path
    is_left_out = is_library or path.startswith((*_PACKAGES, "<frozen"))
    return "" if is_left_out else os.path.basename(path)
