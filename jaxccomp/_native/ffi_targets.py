"""Registers the engine's FFI targets with XLA, once, when this process joins the others.

Not earlier: if types are registered before JAX's backend starts, its start fails.
Not later: a loaded precompiled program needs the targets at once.
"""

from __future__ import annotations

import threading

import jax

from jaxccomp import _jax
from jaxccomp._native import engine, launches, platforms
from jaxccomp._native.platforms import Platform

# The FFI targets, and the type of the state that XLA keeps per call site.
_TARGET = "jaxccomp_collective"
_PASS_TARGET = "jaxccomp_pass"
_STATE_TYPE = "jaxccomp_call_site"

_lock = threading.Lock()
_registered: set[Platform] = set()


def target(platform: Platform) -> str:
    """The name of the FFI target on a platform.

    The first call registers type and target, and a listener for the end of XLA's compilations.

    Raises:
      EngineUnavailableError: without the extension.
    """
    if platform in _registered:
        return _TARGET
    core = engine.load()
    platform.devices()
    with _lock:
        if platform in _registered:
            return _TARGET
        row = core.registrations()[platform.name]
        jax.ffi.register_ffi_type(_STATE_TYPE, row["state_type"], platform=platform.xla)
        jax.ffi.register_ffi_target(_TARGET, row["stages"], platform=platform.xla)
        if platform is platforms.CPU:
            jax.ffi.register_ffi_target(_PASS_TARGET, row["pass"], platform=platform.xla)
        if not _registered:
            # The engine groups the call sites of a program until its compilation ends.
            _jax.on_compiled(
                lambda name: core.close_program(name, launches.thread_name()),
                has_run=lambda: bool(core.stats()),
            )
            _jax.on_loaded(core.close_program)  # a load has no compilation event
        _registered.add(platform)
    return _TARGET


def pass_target() -> str:
    """The FFI target on the CPU that returns its operands (`_api.overlap`)."""
    target(platforms.CPU)
    return _PASS_TARGET


def register() -> None:
    """Registers the engine's target on all platforms with devices."""
    for platform in platforms.TABLE.values():
        if platform.devices():
            target(platform)
