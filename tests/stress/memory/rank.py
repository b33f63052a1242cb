"""A rank of the memory matrix: `rank.py LIBRARY PLACE ROW FAULT FIRST RUNS [RANK SOCKET]`.

Prints one JSON list for each case: this rank, the number of the case, failed checks, and on rank 0
whether the operation failed, and whether a thread was in its memory then.
"""

import ctypes
import json
import os
import signal
import sys
import time
from multiprocessing.connection import Client, Listener

LAST = 2**64 - 1
PATIENCE_SECONDS = 60


class MpiRanks:
    def __init__(self):
        from mpi4py import MPI

        self._mpi = MPI
        self.rank = MPI.COMM_WORLD.rank

    def exchange(self, mine):
        return self._mpi.COMM_WORLD.allgather(mine)

    def join(self, library, pids, small, place):
        comm = self._mpi.COMM_WORLD.Dup()
        comm.Set_errhandler(self._mpi.ERRORS_RETURN)
        handles = [
            ctypes.c_uint64(self._mpi._handleof(each) & LAST) for each in (comm, self._mpi.BYTE)
        ]
        return library.JaxccompMemoryJoinMpi(
            self.rank, pids, small, *handles, int("hosts" in place)
        )


class SocketRanks:
    def __init__(self, rank, socket):
        self.rank = rank
        if rank == 0:
            with Listener(socket, "AF_UNIX") as listener:
                self._peer = listener.accept()
            return
        begun = time.monotonic()
        while True:
            try:
                self._peer = Client(socket, "AF_UNIX")
                return
            except (FileNotFoundError, ConnectionRefusedError):
                if time.monotonic() - begun > PATIENCE_SECONDS:
                    raise
                time.sleep(0.01)

    def exchange(self, mine):
        self._peer.send(mine)
        other = self._peer.recv()
        return [mine, other] if self.rank == 0 else [other, mine]

    def join(self, library, pids, small, place):
        room = ctypes.create_string_buffer(1 << 16)
        length = library.JaxccompMemoryOpenUcx(room, len(room))
        addresses = self.exchange(room.raw[: max(length, 0)])
        texts = (ctypes.c_char_p * 2)(*addresses)
        lengths = (ctypes.c_int * 2)(*map(len, addresses))
        return library.JaxccompMemoryJoinUcx(
            self.rank, pids, small, texts, lengths, int("read" in place)
        )


def names(function):
    found = (ctypes.c_char_p * 64)()
    return [each.decode() for each in found[: function(found, len(found))]]


def main(library, place, row, fault, first, runs, rank="", socket=""):
    library = ctypes.CDLL(library)
    for join in (library.JaxccompMemoryJoinMpi, library.JaxccompMemoryJoinUcx):
        join.restype = ctypes.c_void_p
    # The default handler would raise KeyboardInterrupt in this script.
    signal.signal(signal.SIGINT, lambda *_: None)
    ranks = SocketRanks(int(rank), socket) if socket else MpiRanks()
    pids = (ctypes.c_int64 * 2)(*ranks.exchange(os.getpid()))
    # Without credit, a small message waits at its sender like a large one.
    small = 0 if row.startswith("small") else 512
    world = ctypes.c_void_p(ranks.join(library, pids, small, place))
    row = names(library.JaxccompMemoryRows).index(row)
    number = names(library.JaxccompMemoryFaults).index(fault)
    outcome = (ctypes.c_int32 * 3)()
    for run in range(int(first), int(first) + int(runs)):
        ranks.exchange(run)
        library.JaxccompMemoryCase(world, row, number, run, outcome)
        print(json.dumps([ranks.rank, run, *outcome]), flush=True)
    if "killed" in fault:
        os._exit(0)  # MPI_Finalize waits for the other rank
    ranks.exchange("end")
    library.JaxccompMemoryLeave(world)


if __name__ == "__main__":
    main(*sys.argv[1:])
