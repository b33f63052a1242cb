"""Makes the engine's FFI targets known to XLA, once, when the first native operation is lowered.

It cannot be done earlier: types must be registered after JAX's backend is up, or its start fails.
"""

from __future__ import annotations

import threading
from typing import Any

import jax

from jaxccomp import _engine, comm

TARGET = "jaxccomp_collective"
PLATFORM = "cpu"
_COMPILED = "/jax/core/compile/backend_compile_duration"

_lock = threading.Lock()
_registered = False


def ensure_registered() -> None:
    """Joins the world, registers types and targets, and follows XLA's compilations.

    Raises:
      EngineUnavailableError: without the extension.
    """
    global _registered
    if _registered:
        return
    core = _engine.load()
    comm.init()
    jax.devices(PLATFORM)
    with _lock:
        if _registered:
            return
        for name, handles in core.state_types().items():
            jax.ffi.register_ffi_type(name, handles, platform=PLATFORM)
        for name, stages in core.registrations().items():
            jax.ffi.register_ffi_target(name, stages, platform=PLATFORM)
        # The engine groups the call sites that were instantiated since the last compilation.
        jax.monitoring.register_event_duration_secs_listener(
            lambda event, *_, **__: _close_executable(core, event)
        )
        _registered = True


def _close_executable(core: Any, event: str) -> None:
    if event == _COMPILED:
        core.close_executable()
