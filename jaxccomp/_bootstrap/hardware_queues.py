"""Gives CUDA as many hardware queues as it can have where streams wait for the host."""

from __future__ import annotations

import os
from typing import Any

from jaxccomp import config, errors

_VARIABLE = "CUDA_DEVICE_MAX_CONNECTIONS"
_MOST = "32"


def follow_device_wait() -> None:
    """Sets their number whenever ``device_wait`` becomes "stream", and now if it is.

    Called when the package is imported: CUDA reads the number when it starts.
    """
    config.on_change(_set)


def _set(option: config.Option, value: Any) -> None:
    if option.name != "device_wait" or value != "stream":
        return
    if os.environ.setdefault(_VARIABLE, _MOST).strip() == "1":
        raise errors.InvalidArgumentError(
            f'device_wait="stream" does not go with {_VARIABLE}=1: behind a stream that waits, all '
            f"others would stand still. Leave {_VARIABLE} unset, which makes it {_MOST} where "
            'jaxccomp is imported before CUDA starts, or use device_wait="host".'
        )
