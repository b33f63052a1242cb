"""What the engine calls Python's threads: it must not mix their launches."""

from __future__ import annotations

import re
import threading

_WORKER = re.compile(r"_\d+$")  # the number of a worker in its ThreadPoolExecutor
_FOREIGN = "Dummy-"  # threads that Python has not started, such as XLA's


def current() -> str:
    """The calling thread's name; empty for the main thread, "?" for one that Python did not start.

    It is the same on all ranks where these start the same threads. The workers of a pool share one,
    as it is chance which of them gets a task.
    """
    thread = threading.current_thread()
    if thread is threading.main_thread():
        return ""
    return "?" if thread.name.startswith(_FOREIGN) else _WORKER.sub("", thread.name)
