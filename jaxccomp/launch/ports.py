"""Ports of this host, kept for the process that is going to listen there."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def reserved(host: str = "127.0.0.1") -> Iterator[int]:
    """A port that is kept for who asks for it by number, for the length of a ``with`` block.

    Without that, another process may be given the port, for any connection it makes, before a rank
    listens there. Linux gives a port on which a socket is bound, without listening, to nobody who
    asks for any, while who asks for this one, with SO_REUSEADDR as servers do, gets it.

    Example:
      >>> with reserved() as port, socket.create_server(("127.0.0.1", port)) as server:
      ...     server.getsockname()[1] == port
      True
    """
    with socket.socket() as kept:
        kept.bind((host, 0))
        # Only now: with it, bind() would share a port that another keeps.
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        yield kept.getsockname()[1]
