"""Runs the C++ checks of the MPI transport on this rank: `transport_worker.py LIBRARY`."""

import ctypes
import sys

from mpi4py import MPI

HANDLE, LAST = ctypes.c_uint64, 2**64 - 1

# Bytes of an MPI call, and number of payload tags: the transport's own; pieces so small that all
# payloads are split; so few tags that they run out. CREDITS: credit in bytes as between hosts; -1:
# one host. SMALL: credit of small messages; with 0, each of them is a rendezvous.
PIECES_AND_TAGS = [(1 << 30, 8192), (10241, 8192), (1 << 30, 8), (10241, 1)]
CREDITS = (-1, 0, 64 << 10, 2 << 20)
SMALL = (512, 0, 1, 40)
# MessageType: kClearToSend, kCredit, kFin and kCancelled, which refer to an earlier message. (So
# does kEagerUpgrade, but it may arrive after its payload has been received.)
OWN_TYPES = (5, 7, 16, 19)
SETTINGS = [
    (*each, credit, SMALL[(i + j) % 4])
    for i, each in enumerate(PIECES_AND_TAGS)
    for j, credit in enumerate(CREDITS)
]


def main(library):
    """Return the number of failed checks."""
    checks = ctypes.CDLL(library)

    def check(name, *arguments):
        # A communicator per check: a transport leaves its own messages behind.
        comm = MPI.COMM_WORLD.Dup()
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        handles = [HANDLE(MPI._handleof(each) & LAST) for each in (comm, MPI.BYTE)]
        failed = getattr(checks, name)(*handles, *arguments)
        MPI.COMM_WORLD.Barrier()
        return failed

    failed = 0
    for unit_bytes, tags, credit, small in SETTINGS:
        pieces = ctypes.c_int64(unit_bytes), ctypes.c_uint32(tags)
        credits = ctypes.c_int64(credit), ctypes.c_int64(small)
        failed += check("JaxccompCheckMpiTransport", *pieces, *credits, 0)
    failed += check("JaxccompCheckTurns")
    for all_remote, on_request in ((0, 0), (0, 1), (1, 1)):
        failed += check("JaxccompCheckCancel", all_remote, on_request)
    for message_type in OWN_TYPES:
        failed += check("JaxccompCheckStrayMessage", message_type)
    return failed + check("JaxccompCheckFreeze")


if __name__ == "__main__":
    failures = main(sys.argv[1])
    assert failures == 0, failures
