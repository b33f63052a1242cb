"""Access to JAX's private modules, and errors that name the hook where JAX has changed.

A hook is a private or undocumented part of JAX that this package relies on. `hooks` lists them all.
"""

from __future__ import annotations

import functools
import importlib
import os
import types
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax

from jaxccomp import errors

P = ParamSpec("P")
T = TypeVar("T")

_FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep
# How Python reports a missing name, parameter or key, or an unexpected type.
_CHANGED = (AttributeError, ImportError, KeyError, TypeError, ValueError)

_warned: set[str] = set()


def module(name: str) -> Any:
    """Return a private module of JAX; an empty one if it is missing.

    ``import jaxccomp`` then works, and the first use of the module raises an error (`uses`).
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        return types.ModuleType(name)


def uses(hook: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function that uses a hook: it raises `JaxHookError` if JAX has changed.

    Only errors raised by lines of this folder are converted. Errors raised inside JAX pass.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return function(*args, **kwargs)
            except _CHANGED as error:
                if not _raised_in_this_folder(error):
                    raise
                raise errors.JaxHookError(text(hook, reason_of(error))) from error

        return checked

    return decorate


def at_import(hook: str, step: Callable[[], None]) -> None:
    """Run a step of ``import jaxccomp``; if JAX has changed, warn instead of failing."""
    try:
        step()
    except _CHANGED as error:
        warn(hook, reason_of(error))


def warn(hook: str, reason: str) -> None:
    """Warn that a hook does not work; once for each hook."""
    if hook not in _warned:
        _warned.add(hook)
        warnings.warn(text(hook, reason), errors.JaxHookWarning, stacklevel=2)


def reason_of(error: BaseException) -> str:
    """Format an error as one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def text(hook: str, reason: str) -> str:
    return (
        f"jaxccomp's hook {hook!r} does not work with JAX {jax.__version__}: {reason}. "
        "`python -m jaxccomp doctor` tests all hooks. Install a supported version: "
        "pip install 'jax>=0.10.2,<0.13'."
    )


def _raised_in_this_folder(error: BaseException) -> bool:
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(_FOLDER)
