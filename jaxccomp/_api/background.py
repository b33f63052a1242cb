"""A thread of the package's own, in which operations run beside the program."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from jaxccomp._native import launch_places

P = ParamSpec("P")
T = TypeVar("T")


class Background:
    """Calls functions one after the other in a thread of its own.

    On CPUs JAX runs the programs that one thread launches one after the other, so an operation that
    waits for other ranks holds up what the same thread launches next. Programs of another thread
    run beside. The engine matches launches by the thread's name, so it is the same on all ranks.
    """

    def __init__(self, name: str):
        """Starts no thread yet.

        Args:
          name: of the thread, the same on all ranks.
        """
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"jaxccomp-{name}")

    def start(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Calls ``function`` after those before it; Python ends only when it has returned."""

        def run() -> T:
            with launch_places.own_settings():
                return function(*args, **kwargs)

        return self._executor.submit(run)
