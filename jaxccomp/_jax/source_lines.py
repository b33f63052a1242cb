"""Source lines of the user's program, without frames of JAX and of this package."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from typing import Any

from jaxccomp._jax import internals
from jaxccomp._jax.internals import uses

source_info = internals.module("jax._src.source_info_util")

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def exclude_this_package() -> None:
    """Make JAX's errors and locations name the caller's line, not one of this package."""
    source_info.register_exclusion(_PACKAGE)


@uses("source lines")
def where(ctx: Any) -> str:
    """Return ``file.py:41``: the innermost user frame of an operation that is lowered."""
    return _line(ctx.traceback)


@uses("source lines")
def this_line() -> str:
    """Return ``file.py:41``: the innermost user frame of the current call."""
    return _line(source_info.current().traceback)


@uses("source lines")
def line_of(eqn: Any) -> str:
    """Return ``file.py:41``: the innermost user frame of an equation."""
    return _line(eqn.source_info.traceback)


@uses("source lines")
def at_this_line(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that traces ``function`` with the source line of the current call.

    Branches need it: JAX traces them without the frames of the caller of `jax.lax.cond`.
    """
    traceback = source_info.current().traceback

    @functools.wraps(function)
    def at_line(*args: Any) -> Any:
        with source_info.user_context(traceback):
            return function(*args)

    return at_line


@uses("source lines")
def at_lowered_operation(ctx: Any) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which traced operations get the lowered operation's source line."""
    return source_info.user_context(ctx.traceback)


@uses("source lines")
def at_equation(eqn: Any) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which traced operations get ``eqn``'s source line and name stack."""
    stack = source_info.current_name_stack() + eqn.source_info.name_stack
    with contextlib.ExitStack() as both:
        both.enter_context(source_info.user_context(eqn.source_info.traceback, name_stack=stack))
        both.enter_context(eqn.ctx.manager)
        return both.pop_all()


@uses("source lines")
def scope_of(eqn: Any) -> str:
    """Return the name stack of an equation within its jaxpr."""
    return str(eqn.source_info.name_stack)


def _line(traceback: Any) -> str:
    frame = source_info.user_frame(traceback)
    return "unknown" if frame is None else f"{os.path.basename(frame.file_name)}:{frame.start_line}"


internals.at_import("source lines", exclude_this_package)
