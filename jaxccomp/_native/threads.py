"""Names of Python's threads for the engine, which keeps the launches of threads apart."""

from __future__ import annotations

import re
import threading

_WORKER = re.compile(r"_\d+$")  # the number of a worker in its ThreadPoolExecutor
_FOREIGN = "Dummy-"  # threads not started by Python, such as XLA's


def current() -> str:
    """The calling thread's name; empty for the main thread, "?" for one not started by Python.

    It is the same on all ranks if these start the same threads. The workers of a pool share one
    name, since any of them may get a task.
    """
    thread = threading.current_thread()
    if thread is threading.main_thread():
        return ""
    return "?" if thread.name.startswith(_FOREIGN) else _WORKER.sub("", thread.name)
