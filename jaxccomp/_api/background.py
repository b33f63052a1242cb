"""A background thread for operations that run concurrently with the program."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from jaxccomp._native import launches

P = ParamSpec("P")
T = TypeVar("T")


class Background:
    """Calls functions in order, in its own thread.

    On CPUs JAX runs the programs of one thread in order: an operation that waits for other ranks
    delays the next program of its thread. Programs of different threads run concurrently.
    """

    def __init__(self, name: str):
        """Starts no thread yet.

        Args:
          name: the thread's name, by which the engine matches launches; the same on all ranks.
        """
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"jaxccomp-{name}")

    def start(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue a call of ``function``. The interpreter exits only after it has returned."""

        def run() -> T:
            with launches.own_settings():
                return function(*args, **kwargs)

        return self._executor.submit(run)
