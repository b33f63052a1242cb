"""Reports exceptions in host callbacks to the engine.

An exception in a callback (``jax.pure_callback``, ``io_callback``, ``debug.callback``) ends the
program on its device only. On the process's other devices the program goes on, and may wait for
that device in a collective, without end.
"""

from __future__ import annotations

import logging
from typing import Any

# Where JAX logs such exceptions, with their traceback, on the thread that ran the callback.
_LOGGERS = ("jax._src.callback", "jax._src.debugging")


def watch(core: Any) -> None:
    """Reports each later exception in a callback to the engine ``core``."""

    def tell(record: logging.LogRecord) -> bool:
        if record.exc_info and "callback failed" in str(record.msg):
            kind, error, _ = record.exc_info
            core.callback_failed(f"{kind.__name__ if kind else 'Exception'}: {error}")
        return True

    for name in _LOGGERS:
        logging.getLogger(name).addFilter(tell)
