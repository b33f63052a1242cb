"""Keeps connections to a port open, as a process without the group's secret would.

    python -m stress.stranger PORT COUNT HEX

Sends the bytes HEX on each connection. A connection that is closed is opened again after a second.
Runs until it is killed.
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
import time
from typing import NoReturn

REOPEN_SECONDS = 1.0


def keep_open(port: int, count: int, data: bytes) -> NoReturn:
    os.nice(19)  # strangers are on other machines, and take no processor time of this one
    events = selectors.DefaultSelector()
    due = [0.0] * count  # by connection that is closed: when to open it

    def close(raw: socket.socket) -> None:
        events.unregister(raw)
        raw.close()
        due.append(time.monotonic() + REOPEN_SECONDS)

    while True:
        now = time.monotonic()
        ready = [each for each in due if each <= now]
        due[:] = [each for each in due if each > now]
        for _ in ready:
            raw = socket.socket()
            raw.setblocking(False)
            raw.connect_ex(("127.0.0.1", port))
            events.register(raw, selectors.EVENT_WRITE)
        for key, mask in events.select(0.1):
            raw = key.fileobj
            assert isinstance(raw, socket.socket)
            try:
                if mask & selectors.EVENT_WRITE:
                    raw.send(data)
                    events.modify(raw, selectors.EVENT_READ)
                elif not raw.recv(1 << 16):
                    close(raw)
            except OSError:
                close(raw)


if __name__ == "__main__":
    keep_open(int(sys.argv[1]), int(sys.argv[2]), bytes.fromhex(sys.argv[3]))
