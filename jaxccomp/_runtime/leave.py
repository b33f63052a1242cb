"""Disconnects this process from the others at exit, also after a failure.

A forked child has inherited the handlers, which do nothing there.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import traceback
from typing import Any

from jaxccomp import config
from jaxccomp._native import engine, platforms
from jaxccomp._runtime import mpi as _mpi
from jaxccomp._runtime.world import World

# --- Exit -----------------------------------------------------------------------------------------

# Time limit of MPI_Finalize if ranks are dead, or a signal ends the program.
_SHORT_SECONDS = 5.0
_MAX_FAILURE_CHARACTERS = 500

_joined: World | None = None
_finalizes_mpi = False  # this package has initialised MPI, so it also finalises MPI
_process: int | None = None  # this process's pid; a forked child has another


def at_exit(*, finalizes_mpi: bool = False, mpi: Any = None) -> None:
    """Register the exit handlers, which disconnect this process from the others.

    Args:
      finalizes_mpi: whether this package has to finalise MPI.
      mpi: mpi4py's MPI, if used: the engine must stop before MPI is finalised.
    """
    global _finalizes_mpi, _process
    _finalizes_mpi = _finalizes_mpi or finalizes_mpi
    if _process is not None:
        return
    _process = os.getpid()
    if mpi is not None:
        _mpi.before_finalize(mpi, stop_engine)
    # mpi4py finalises MPI after all functions of atexit, so `_leave` runs before.
    atexit.register(_leave)
    # Runs before Python joins the program's other threads, which may wait for other ranks.
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        with contextlib.suppress(RuntimeError):
            register(_announce_failure)


def joined(world: World) -> None:
    """Record the world that this process has joined."""
    global _joined
    _joined = world


def stop_engine() -> None:
    """End the engine's operations and threads; a forked child has none."""
    if engine.available():
        engine.load().shutdown()


def _leave() -> None:
    """Stop the engine at exit, before MPI is finalised.

    Other processes may wait for operations that are still queued here, so these finish first. After
    an uncaught exception they may never finish, so the failure is reported to the others instead.
    """
    if os.getpid() != _process:
        return
    failure = _failure()
    interrupts = _interrupts()
    try:
        if failure:
            _announce_failure()
        elif _joined is not None and _joined.processes > 1:
            platforms.wait_for_computations()
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
    """Finalise MPI, which waits for all ranks; with a time limit if a rank may never finalise."""
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
        return  # MPI_Finalize would wait for dead ranks; returning keeps the program's exit status
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
    return [why for why, is_dead in engine.load().find_failed().values() if is_dead]


def _interrupts() -> int:
    return engine.load().interrupts() if engine.available() else 0


def _announce_failure() -> None:
    """Report the exception that ends this process to all others."""
    failure = _failure()
    if failure and os.getpid() == _process and engine.available():
        engine.load().announce(f"has ended with {failure}")


def _failure() -> str:
    """Return the exception that ends this program, such as "ValueError: no"; empty if none."""
    if hasattr(sys, "ps1") or sys.flags.interactive:
        return ""  # an exception does not end an interactive session
    value = getattr(sys, "last_value", None)
    if not isinstance(value, BaseException):
        return ""
    text = " ".join("".join(traceback.format_exception_only(type(value), value)).split())
    return text[:_MAX_FAILURE_CHARACTERS]
