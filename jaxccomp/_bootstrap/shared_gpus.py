"""Tells the engine which processes share a GPU, when they join."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from typing import Any

from jaxccomp._bootstrap.peer_info import Share

_NO_DEVICE = (-1, 0, 0)


def agree(core: Any, share: Share, hosts: Sequence[int], gpus: Sequence[int]) -> None:
    """Exchanges what the GPUs of all processes are, where some may be the same.

    A GPU is known by its host and its UUID, whatever the process calls it. Called by all processes
    together, before any operation, as the engine gets its GPUs ready for it.

    Args:
      core: the native engine.
      share: gives every process the rows of all.
      hosts: by process, a number for its host.
      gpus: by process, how many GPUs it has.
    """
    with_gpus = [host for host, count in zip(hosts, gpus, strict=True) if count]
    if len(set(with_gpus)) == len(with_gpus):
        return  # one process at most on each host
    own = [(number, *struct.unpack("<qq", uuid)) for number, uuid in core.cuda_uuids()]
    own += [_NO_DEVICE] * (max(gpus) - len(own))
    numbers: dict[tuple[int, int, int], int] = {}
    found = []
    for process, row in enumerate(share(list(itertools.chain(*own)))):
        flat = list(map(int, row))
        for device, *uuid in zip(flat[::3], flat[1::3], flat[2::3], strict=True):
            if device < 0 or not any(uuid):
                continue  # not usable there, or it does not say what it is
            gpu = numbers.setdefault((hosts[process], *uuid), len(numbers))
            found.append((process, device, gpu))
    core.set_gpus(found)
