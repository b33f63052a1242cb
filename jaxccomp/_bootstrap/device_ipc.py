"""Agrees which ranks export messages in their GPUs' memory to each other, when processes join."""

from __future__ import annotations

from typing import Any

from jaxccomp._bootstrap.peer_info import Share, share_bytes


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
        for i, row in enumerate(share_bytes(share, offer.ljust(longest, b"\0"))):
            offers[i] = row[: lengths[i]]
    offers[process] = offer
    opened, reasons = core.open_ipc(offers)
    core.agree_on_ipc([list(map(int, row)) for row in share(opened)])
    return reasons
