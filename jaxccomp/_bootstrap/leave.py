"""How a process leaves the others: in good order, after a failure, or as a forked child."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import traceback
from typing import Any

from jaxccomp import config
from jaxccomp._bootstrap import drain
from jaxccomp._bootstrap import mpi as _mpi
from jaxccomp._bootstrap.world import World
from jaxccomp._native import engine

# How long MPI_Finalize may take where ranks are dead, or the user has no patience.
_SHORT_SECONDS = 5.0
_LONGEST_FAILURE = 500

_joined: World | None = None
_finalizes_mpi = False  # this package has initialised MPI, not mpi4py
_process: int | None = None  # its pid, which a forked child has not


def at_exit(*, finalizes_mpi: bool = False, mpi: Any = None) -> None:
    """Has this process leave the others when it ends.

    Args:
      finalizes_mpi: whether MPI is finalised then, as nobody else does it.
      mpi: mpi4py's MPI, when it is there: before its end the engine has to stop.
    """
    global _finalizes_mpi, _process
    _finalizes_mpi = _finalizes_mpi or finalizes_mpi
    if _process is not None:
        return
    _process = os.getpid()
    if mpi is not None:
        _mpi.before_finalize(mpi, stop_engine)
    # Last registered, first called: before MPI is finalised, be it here or by mpi4py, which does it
    # after all of Python's exit functions.
    atexit.register(_leave)
    # Before Python waits for the program's other threads, which may wait for other ranks.
    with contextlib.suppress(AttributeError, RuntimeError):
        threading._register_atexit(_announce_failure)


def joined(world: World) -> None:
    """Remembers what this process has joined."""
    global _joined
    _joined = world


def stop_engine() -> None:
    """Ends the engine's operations and threads; a forked child has none."""
    if engine.available():
        engine.load().shutdown()


def _leave() -> None:
    """At exit: stops the engine while MPI is still there, and when nobody needs it any more.

    Others may wait for operations that are still queued here. After an uncaught exception they are
    told instead that this process is gone, as what those wait for may never come.
    """
    if os.getpid() != _process:
        return
    failure = _failure()
    interrupts = _interrupts()
    try:
        if failure:
            _announce_failure()
        elif _joined is not None and _joined.processes > 1:
            drain.wait()
    finally:
        dead = _dead()
        stop_engine()
        if _joined is not None and _joined.memberships is not None:
            _joined.memberships.files.remove()
        if _joined is not None and _joined.out_of_band is not None:
            _joined.out_of_band.stop()
        impatient = failure.startswith("KeyboardInterrupt") or _interrupts() != interrupts
        _finalize(failure, dead, impatient)


def _finalize(failure: str, dead: list[str], impatient: bool) -> None:
    """Finalises MPI, which waits for all ranks; not for ever where some may never come."""
    if _mpi.is_finished():
        return
    if not (failure or dead or impatient):
        if _finalizes_mpi:
            _mpi.finish()
        return
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    if dead and _finalizes_mpi:
        return  # it could only wait for the dead; so the exit status stays the program's own
    core = engine.load()
    seconds = _SHORT_SECONDS if dead or impatient else config.get("timeout_seconds")
    why = "; ".join(dead) or (f"this rank has ended with {failure}" if failure else "interrupted")
    text = f"jaxccomp: MPI was not finalised {seconds:g} s after the program's end ({why})"
    if _finalizes_mpi:
        core.end_within(seconds, 1, text)
        _mpi.finish()
        core.end_in_time()
    else:
        core.bound_last_exit(seconds, 1, text)


def _dead() -> list[str]:
    if _joined is None or _joined.processes == 1 or not engine.available():
        return []
    return [why for why, is_dead in engine.load().find_gone().values() if is_dead]


def _interrupts() -> int:
    return engine.load().interrupts() if engine.available() else 0


def _announce_failure() -> None:
    """Tells all other processes that this one ends by an exception, and which."""
    failure = _failure()
    if failure and os.getpid() == _process and engine.available():
        engine.load().announce(f"has ended with {failure}")


def _failure() -> str:
    """The exception that ends this program, such as "ValueError: no"; empty when none does."""
    if hasattr(sys, "ps1") or sys.flags.interactive:
        return ""  # there, an exception ends nothing
    value = getattr(sys, "last_value", None)
    if not isinstance(value, BaseException):
        return ""
    text = " ".join("".join(traceback.format_exception_only(type(value), value)).split())
    return text[:_LONGEST_FAILURE]
