"""Makes the engine's FFI targets known to XLA, once, when this process joins the others.

It cannot be done earlier: types must be registered after JAX's backend is up, or its start fails.
Nor later: a program that was compiled elsewhere, and is loaded, needs them at once.
"""

from __future__ import annotations

import threading
from typing import Any

import jax

from jaxccomp import _compat
from jaxccomp._native import engine, platforms, threads
from jaxccomp._native.platforms import Platform

# By who moves the values: the FFI target, and the type of what XLA keeps for a call site.
_NAMES = {
    "native": ("jaxccomp_collective", "jaxccomp_call_site"),
    "nccl": ("jaxccomp_nccl_collective", "jaxccomp_nccl_call_site"),
}
_COMPILED = "/jax/core/compile/backend_compile_duration"

_lock = threading.Lock()
_registered: set[tuple[Platform, str]] = set()


def target(platform: Platform, backend: str = "native") -> str:
    """The FFI target of ``backend``: "native" or "nccl".

    Registers type and target, and follows XLA's compilations.

    Raises:
      EngineUnavailableError: without the extension.
    """
    name, state_type = _NAMES[backend]
    if (platform, backend) in _registered:
        return name
    core = engine.load()
    platform.devices()
    with _lock:
        if (platform, backend) in _registered:
            return name
        row = core.registrations()[platform.name if backend == "native" else backend]
        jax.ffi.register_ffi_type(state_type, row["state_type"], platform=platform.xla)
        jax.ffi.register_ffi_target(name, row["stages"], platform=platform.xla)
        if not _registered:
            # The engine groups the call sites of a program until its compilation ends.
            jax.monitoring.register_event_duration_secs_listener(
                lambda event, *_, **about: _close_program(core, event, about.get("fun_name", ""))
            )
            # Of executables that are loaded no event tells.
            _compat.after_loading(core.close_program)
        _registered.add((platform, backend))
    return name


def register() -> None:
    """Registers the engine's own targets on the platforms that there are."""
    for platform in platforms.TABLE.values():
        if platform.devices():
            target(platform)


def _close_program(core: Any, event: str, fun_name: str = "") -> None:
    if event == _COMPILED:
        core.close_program(fun_name, threads.current())
