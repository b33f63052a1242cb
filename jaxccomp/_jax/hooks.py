"""The table of hooks: private or undocumented parts of JAX that this package relies on."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
import warnings
from collections.abc import Callable, Iterator

import jax

from jaxccomp import errors
from jaxccomp._jax import internals, self_tests

_TIMEOUT_SECONDS = 120.0


@dataclasses.dataclass(frozen=True)
class Hook:
    """A private or undocumented part of JAX that this package relies on.

    Attributes:
      name: its name in errors.
      used_for: the feature that the package loses without it.
      check: the self-test; raises if JAX behaves differently.
    """

    name: str
    used_for: str
    check: Callable[[], None]

    def problem(self) -> str | None:
        """Run the self-test; return None if the hook works, else the reason."""
        reasons: list[str] = []

        def run() -> None:
            try:
                with _default_settings():
                    self.check()
            except self_tests.Unexpected as error:
                reasons.append(str(error))
            except errors.JaxHookError as error:
                reasons.append(internals.reason_of(error.__cause__ or error))
            except Exception as error:
                reasons.append(internals.reason_of(error))

        # A warning that a self-test causes must not suppress a later one of the program.
        warned = set(internals._warned)
        # A new thread has none of the caller's traces, tokens and contexts.
        thread = threading.Thread(target=run, name="jaxccomp-hooks", daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            thread.start()
            thread.join(_TIMEOUT_SECONDS)
        internals._warned.clear()
        internals._warned.update(warned)
        if thread.is_alive():
            return f"its self-test has not ended after {_TIMEOUT_SECONDS:g} s"
        return reasons[0] if reasons else None


@contextlib.contextmanager
def _default_settings() -> Iterator[None]:
    """Set JAX's defaults: the program's settings would change the results of self-tests."""
    with (
        jax.disable_jit(False),
        jax.debug_nans(False),
        jax.debug_infs(False),
        jax.transfer_guard("allow"),
        jax.numpy_rank_promotion("allow"),
        jax.numpy_dtype_promotion("standard"),
    ):
        yield


HOOKS = (
    Hook("primitives", "all operations", self_tests.primitives_),
    Hook("derivatives", "derivatives of operations", self_tests.derivatives),
    Hook("effects", "operations in program order, send and recv", self_tests.effects),
    Hook("failed tokens", "ordered operations after a failed one", self_tests.failed_tokens),
    Hook("eager calls", "source lines of calls outside of jit", self_tests.eager_calls),
    Hook("named axes", "operations with axis_name=", self_tests.named_axes),
    Hook("varying types", "shard_map(check_vma=True)", self_tests.varying_types),
    Hook(
        "lowering context",
        "matching of a program's calls between ranks",
        self_tests.lowering_context,
    ),
    Hook("mesh devices", "operations with axis_name= on the native plane", self_tests.mesh_devices),
    Hook(
        "lowering to jax.lax", 'backend="xla" and composed operations', self_tests.lowering_to_lax
    ),
    Hook("FFI calls", "calls of the engine", self_tests.ffi_calls),
    Hook("reusable buffers", "results in the memory of operands", self_tests.reusable_buffers),
    Hook("source lines", "source lines in errors, traces and rules", self_tests.lines_of_the_user),
    Hook("collectives in jaxprs", "compress and its rules", self_tests.collectives_in_jaxprs),
    Hook(
        "functions in jaxprs",
        "compress inside jit, scan and others",
        self_tests.functions_in_jaxprs,
    ),
    Hook(
        "compilation events",
        "matching of calls when programs of one name are compiled",
        self_tests.compilation_events,
    ),
    Hook(
        "loaded executables",
        "matching of calls in programs loaded from a file or cache",
        self_tests.loaded_executables,
    ),
    Hook("compiled programs", "XLA's own collectives on the engine", self_tests.compiled_programs),
    Hook(
        "callback errors",
        "errors instead of waits for a device whose callback failed",
        self_tests.callback_errors,
    ),
    Hook("profiles", "trace.record(xla=True)", self_tests.profiles),
    Hook("jax.distributed", "init() without MPI", self_tests.key_value_store),
    Hook(
        "unknown values",
        "the error for a codec whose shapes depend on values",
        self_tests.values_unknown_in_traces,
    ),
)


def problems() -> dict[str, str]:
    """Run all self-tests, and return the reasons of the hooks that do not work.

    Self-tests run on the CPU, unless the program has started JAX on another platform.
    """
    bridge = internals.module("jax._src.xla_bridge")
    started = getattr(bridge, "backends_are_initialized", lambda: False)
    if not started():
        jax.config.update("jax_platforms", "cpu")
    found = {hook.name: hook.problem() for hook in HOOKS}
    return {name: reason for name, reason in found.items() if reason is not None}


@functools.cache
def require(name: str) -> None:
    """Raise unless a hook works; for hooks whose change would cause no other error.

    Raises:
      JaxHookError: with the reason.
    """
    hook = next(hook for hook in HOOKS if hook.name == name)
    if (reason := hook.problem()) is not None:
        raise errors.JaxHookError(internals.text(name, reason))
