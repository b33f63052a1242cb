"""Ports of this host, kept for the process that is going to listen there."""

from __future__ import annotations

import socket


def reserve(host: str = "127.0.0.1") -> tuple[socket.socket, int]:
    """A port, and a socket that keeps it for who asks for it by number, until it is closed.

    Without that, another process may be given the port, for any connection it makes, before a rank
    listens there. Linux gives a port on which a socket is bound, without listening, to nobody who
    asks for any, while who asks for this one, with SO_REUSEADDR as servers do, gets it.

    Example:
      >>> kept, port = reserve()
      >>> with kept, socket.create_server(("127.0.0.1", port)) as server:
      ...     server.getsockname()[1] == port
      True
    """
    kept = socket.socket()
    kept.bind((host, 0))
    # Only now: with it, bind() would share a port that another keeps.
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    port: int = kept.getsockname()[1]
    return kept, port
