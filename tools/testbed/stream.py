"""One end of a TCP stream; a separate script without imports of packages, so that it starts fast.

python stream.py receive ADDRESS PORT            prints a line, then bytes per second
python stream.py send ADDRESS PORT SECONDS
"""

import socket
import sys
import time

_BUFFER_BYTES = 1 << 18


def receive(address: str, port: str) -> None:
    """Receives a stream and prints its rate without the first fifth, TCP's slow start."""
    with socket.create_server((address, int(port))) as server:
        server.settimeout(30)
        print("listening", flush=True)
        stream, _ = server.accept()
    buffer, total, marks = bytearray(_BUFFER_BYTES), 0, []
    with stream:
        stream.settimeout(30)
        while count := stream.recv_into(buffer):
            total += count
            marks.append((time.perf_counter(), total))
    end, total = marks[-1]
    begin = marks[0][0] + (end - marks[0][0]) / 5
    first = next(mark for mark in marks if mark[0] >= begin)
    print((total - first[1]) / (end - first[0]))


def send(address: str, port: str, seconds: str) -> None:
    """Sends for ``seconds``."""
    buffer = bytes(_BUFFER_BYTES)
    with socket.create_connection((address, int(port)), timeout=30) as stream:
        deadline = time.perf_counter() + float(seconds)
        while time.perf_counter() < deadline:
            stream.sendall(buffer)


if __name__ == "__main__":
    {"receive": receive, "send": send}[sys.argv[1]](*sys.argv[2:])
