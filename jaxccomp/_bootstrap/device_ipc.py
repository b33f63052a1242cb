"""Agrees which ranks export messages in their GPUs' memory to each other, when processes join."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxccomp._bootstrap.peer_info import Share

_WORD_BYTES = 8


def agree(core: Any, share: Share, process: int) -> list[str]:
    """Exchanges what the processes offer and which of it each can open.

    Called by all of them together, before any operation: to set memory aside and to open that of
    others may wait for all of a GPU.

    Args:
      core: the native engine.
      share: gives every process the rows of all.
      process: this one's rank.

    Returns:
      By process, why this one cannot import from it; empty where it can.
    """
    offer = core.offer_ipc()
    lengths = [int(length) for (length,) in share((len(offer),))]
    offers = [b""] * len(lengths)
    if longest := max(lengths):
        words = -(-longest // _WORD_BYTES)
        padded = np.frombuffer(offer.ljust(words * _WORD_BYTES, b"\0"), np.int64)
        for i, row in enumerate(share(padded.tolist())):
            offers[i] = np.asarray(row, np.int64).tobytes()[: lengths[i]]
    offers[process] = offer
    opened, reasons = core.open_ipc(offers)
    core.agree_on_ipc([list(map(int, row)) for row in share(opened)])
    return reasons
