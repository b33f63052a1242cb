"""Where in the Python program a launch is made: what the option ``check_launches`` compares.

A rank that leaves out one of many equal launches looks to the engine like one that is a launch
behind. The Python program knows better: the launches of a loop differ in the value of its variable.
"""

from __future__ import annotations

import contextlib
import dis
import os
import sys
import threading
import types
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax

_PACKAGES = tuple(
    os.path.dirname(os.path.abspath(path)) + os.sep for path in (__file__, jax.__file__)
)
_STDLIB = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
# Numbers and names tell iterations apart; arrays and objects may be each rank's own.
_COMPARED = (int, str)

# By thread: each has a loop of its own.
_steps: weakref.WeakKeyDictionary[threading.Thread, int] = weakref.WeakKeyDictionary()
# In which this package launches something of its own.
_of_this_package: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def step(number: int) -> None:
    """Says which step comes next in this thread of the program, for the option ``check_launches``.

    With that option on, launches of programs with collectives must carry the same number on all
    ranks, or all get an error that names both. It tells apart what the engine cannot see: a rank
    that leaves out one of many equal launches, in a ``while`` loop or over batches without a
    number. So do operations and messages on an ordered communicator. Without the option it does
    nothing.

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
    """The place of the launch under way: source lines, innermost first, with loop variables.

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
        code, at = frame.f_code, frame.f_lasti
        site = _sites.get((id(code), at)) or _learn(frame)
        if site.where:
            loops = [
                f"{name}={value!r}"
                for name in site.loop_variables
                if isinstance(value := _value(frame, name), _COMPARED)
            ]
            places.append(f"{site.where} ({', '.join(loops)})" if loops else site.where)
        frame = frame.f_back
    return places


class _Site(NamedTuple):
    """An instruction of the program."""

    code: types.CodeType  # kept, so that no other one gets its id
    where: str  # empty for those that are left out
    loop_variables: tuple[str, ...]


# By the id of the code, whose hash takes longer than all else here, and the instruction's offset.
_sites: dict[tuple[int, int], _Site] = {}
_MOST_SITES = 4096


def _learn(frame: types.FrameType) -> _Site:
    code = frame.f_code
    name = code.co_filename
    packaged = name.startswith((*_PACKAGES, "<frozen")) or (
        name.startswith(_STDLIB) and "site-packages" not in name
    )
    if len(_sites) >= _MOST_SITES:
        _sites.clear()
    site = _Site(
        code,
        "" if packaged else f"{os.path.basename(name)}:{frame.f_lineno}",
        () if packaged else _loop_variables(code, frame.f_lasti),
    )
    _sites[id(code), frame.f_lasti] = site
    return site


def _value(frame: types.FrameType, name: str) -> Any:
    return frame.f_locals.get(name, frame.f_globals.get(name))


def _loop_variables(code: types.CodeType, at: int) -> tuple[str, ...]:
    """The variables of the ``for`` loops around an instruction."""
    names: list[str] = []
    instructions = list(dis.get_instructions(code))
    for i, instruction in enumerate(instructions):
        if instruction.opname != "FOR_ITER":
            continue
        if instruction.offset < at < instruction.argval:
            names.extend(_targets(instructions[i + 1 :]))
    return tuple(names)


def _targets(instructions: list[dis.Instruction]) -> Iterator[str]:
    """What the value on the stack is stored to."""
    open_values = 1
    for instruction in instructions:
        if instruction.opname in ("UNPACK_SEQUENCE", "UNPACK_EX"):
            open_values += instruction.arg or 0
        elif instruction.opname == "STORE_FAST_STORE_FAST":
            yield from instruction.argval
            open_values -= 1
        elif instruction.opname.startswith("STORE_"):
            yield instruction.argval
        elif instruction.opname not in ("CACHE", "EXTENDED_ARG", "NOP"):
            return
        else:
            continue
        open_values -= 1
        if open_values <= 0:
            return
