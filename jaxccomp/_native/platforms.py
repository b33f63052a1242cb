"""The platforms whose devices the engine serves, its FFI targets on them, and its CUDA library."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxccomp import _jax
from jaxccomp._native import engine, launches


@dataclasses.dataclass(frozen=True)
class Platform:
    """A platform of the engine.

    Attributes:
      name: its name in lowerings and ``jax.devices``.
      xla: its name in the registration of handlers.
      first_number: the engine's number of the device with id 0. JAX numbers the devices of each
        platform from 0; the engine has one set of numbers.
    """

    name: str
    xla: str
    first_number: int

    def devices(self) -> list[Any]:
        """All devices of all processes; none if JAX lacks the platform."""
        try:
            return jax.devices(self.name)
        except RuntimeError:
            return []

    def local_devices(self) -> list[Any]:
        """The devices of this process."""
        return jax.local_devices(backend=self.name) if self.devices() else []

    def number(self, device_id: int) -> int:
        """The engine's number of a device, from JAX's."""
        return self.first_number + device_id


CPU = Platform("cpu", "cpu", 0)
CUDA = Platform("cuda", "CUDA", 1 << 40)

TABLE = {platform.name: platform for platform in (CPU, CUDA)}


# --- Computations ---------------------------------------------------------------------------------


def wait_for_computations() -> None:
    """Wait until all computations of this thread on this process's devices have run.

    Also waits for computations of other threads if the program still holds their results. Ignores
    errors: the program gets them when it reads the results.
    """
    for platform in TABLE.values():
        _wait_for(platform)


def _wait_for(platform: Platform) -> None:
    with contextlib.suppress(Exception):
        devices = platform.local_devices()
        # The program may have dropped results, so queue one more computation and wait for it. XLA
        # runs a thread's computations for one device in order, and those for several devices in a
        # separate order. Even a small computation never overtakes a non-empty queue.
        for group in [[device] for device in devices] + ([devices] if len(devices) > 1 else []):
            _run_last(group)
        for array in jax.live_arrays(platform.name) if devices else ():
            with contextlib.suppress(Exception):
                array.block_until_ready()


def _run_last(devices: list[Any]) -> None:
    sharding = NamedSharding(Mesh(np.array(devices), "i"), PartitionSpec("i"))
    values = jax.device_put(np.zeros(len(devices), np.int32), sharding)
    jax.jit(lambda x: x + 1)(values).block_until_ready()


# --- FFI targets ----------------------------------------------------------------------------------

# The engine registers them with XLA once, when this process joins the others. Not earlier: if types
# are registered before JAX's backend starts, its start fails. Not later: a loaded precompiled
# program needs the targets at once.

# The FFI targets, and the types of the state that XLA keeps per call site.
_TARGET = "jaxccomp_collective"
_PASS_TARGET = "jaxccomp_pass"
_COUNT_TARGET = "jaxccomp_count"
_STATE_TYPE = "jaxccomp_call_site"
_COUNT_STATE_TYPE = "jaxccomp_counted_site"

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
        if platform is CPU:
            jax.ffi.register_ffi_target(_PASS_TARGET, row["pass"], platform=platform.xla)
            count = row["count"]
            jax.ffi.register_ffi_type(_COUNT_STATE_TYPE, count["state_type"], platform=platform.xla)
            jax.ffi.register_ffi_target(_COUNT_TARGET, count["stages"], platform=platform.xla)
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
    target(CPU)
    return _PASS_TARGET


def count_target() -> str:
    """The FFI target on the CPU that counts a call which XLA runs (`jaxccomp.stats`)."""
    target(CPU)
    return _COUNT_TARGET


def register_targets() -> None:
    """Registers the engine's target on all platforms with devices."""
    for platform in TABLE.values():
        if platform.devices():
            target(platform)


# --- The CUDA library -----------------------------------------------------------------------------


@functools.cache
def why_no_cuda() -> str:
    """Why the engine cannot use GPUs in this process, and the remedy; empty if it can.

    Starts JAX's backend, and opens the GPUs.
    """
    if not engine.available():
        return engine.why_missing()
    return engine.load().cuda()["missing"] or open_gpus()


@functools.cache
def cuda_runs(codec: str, dtype: str) -> bool:
    """Whether GPUs can send values of ``dtype`` with ``codec``."""
    return engine.load().cuda_runs(codec, dtype)


@functools.cache
def cuda_runs_on_streams(codec: str, dtype: str) -> bool:
    """Whether the traced plane may encode values of ``dtype`` with kernels."""
    return engine.load().cuda_runs_on_streams(codec, dtype)


@functools.cache
def open_gpus() -> str:
    """Opens all of JAX's GPUs in this process, once; XLA's threads only look them up.

    Returns:
      Why one of them cannot be opened; empty if all are open.
    """
    return engine.load().open_cuda_devices(
        [(each.local_hardware_id, CUDA.number(each.id)) for each in CUDA.local_devices()]
    )
