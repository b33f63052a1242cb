"""Reserves ports of this host for a process that will listen on them."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def reserved(host: str = "127.0.0.1") -> Iterator[int]:
    """Reserve a port for the length of a ``with`` block.

    Otherwise the system may assign the port to a connection of another process before a rank
    listens there. If a socket is bound to a port and does not listen, Linux never assigns the port
    automatically, but lets a server with SO_REUSEADDR bind to it by number.

    Example:
      >>> with reserved() as port, socket.create_server(("127.0.0.1", port)) as server:
      ...     server.getsockname()[1] == port
      True
    """
    with socket.socket() as kept:
        kept.bind((host, 0))
        # After bind(): with this option, bind() could share a port that another process reserves.
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        yield kept.getsockname()[1]
