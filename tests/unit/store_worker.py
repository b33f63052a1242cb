"""A process of jax.distributed, without MPI: `store_worker.py CASE RANK RANKS PORT LIBRARY`.

Prints one JSON object. LIBRARY has ranks for NCCL's fake (tests/cpp/store_main.cc); cases that need
none use the engine itself.
"""

import ctypes
import json
import sys
import time

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

import jaxccomp as jcc
from jaxccomp import _compat, comm, errors
from jaxccomp._bootstrap import kv_store
from jaxccomp._native import engine

GOOD, OLD = 22707, 21400


class Rank:
    """A rank of the library, with the interface of the engine's mailbox."""

    PARTING = -1

    def __init__(self, library, rank, ranks, version=GOOD, timeout_seconds=30.0):
        self.lib = ctypes.CDLL(library)
        self.lib.store_open.restype = ctypes.c_void_p
        self.lib.store_take.restype = ctypes.c_int64
        self.lib.store_message.restype = ctypes.c_void_p
        self.lib.store_meet.restype = self.lib.store_last_id.restype = ctypes.c_char_p
        timeout = ctypes.c_double(timeout_seconds)
        self.handle = ctypes.c_void_p(self.lib.store_open(rank, ranks, version, timeout))
        assert self.handle
        self.store = kv_store.Store(_compat.distributed_client(), rank, ranks)
        self.store.carry(self)

    def take(self):
        process = ctypes.c_int()
        count = self.lib.store_take(self.handle, ctypes.byref(process))
        if count < 0:
            return None
        return process.value, ctypes.string_at(self.lib.store_message(self.handle), count)

    def deliver(self, message):
        self.lib.store_deliver(self.handle, message, ctypes.c_int64(len(message)))

    def fail(self, why):
        self.lib.store_fail(self.handle, why.encode())

    def end_parting(self):
        self.lib.store_end_parting(self.handle)

    def meet(self, lines):
        begun = time.monotonic()
        error = self.lib.store_meet(self.handle, lines.encode()).decode()
        return {
            "error": error,
            "id": self.lib.store_last_id().decode(),
            "seconds": time.monotonic() - begun,
        }

    def leave(self):
        self.lib.store_shutdown(self.handle)
        self.store.stop()


def meeting(rank, ranks, library):
    """Two programs, of which the second one needs no new communicator."""
    own = Rank(library, rank, ranks)
    first = own.meet("7 8")
    found = first | {"again": own.meet("9")["error"]}
    own.leave()
    return found


def late(rank, ranks, library):
    own = Rank(library, rank, ranks)
    time.sleep(3 * (rank == 1))
    found = own.meet("7")
    own.leave()
    return found


def old(rank, ranks, library):
    """One rank's NCCL cannot be used; afterwards all is as before."""
    own = Rank(library, rank, ranks, version=OLD if rank == 1 else GOOD)
    found = own.meet("7")
    own.leave()
    return found


def differs(rank, ranks, library):
    own = Rank(library, rank, ranks)
    found = own.meet("7 8" if rank != 1 else "7 9")
    own.leave()
    return found


def missing(rank, ranks, library):
    own = Rank(library, rank, ranks, timeout_seconds=2.0)
    found = {"error": ""}
    if rank != 1:
        found = own.meet("7")
    else:
        time.sleep(4)
    own.leave()
    return found


def ended(rank, ranks, library):
    """Rank 1 has come to the end of its program: who waits for it hears so before the deadline."""
    own = Rank(library, rank, ranks)
    found = own.meet("7") if rank != 1 else {"error": "", "seconds": 0}
    own.leave()
    return found


def forged(rank, ranks, library):
    """Somebody else writes into the store."""
    own = Rank(library, rank, ranks, timeout_seconds=20.0)
    if rank == 1:
        time.sleep(1)
        for process in range(ranks):
            own.store._put(process, b"\0" * 300)
        time.sleep(1)
    found = own.meet("7") if rank != 1 else {"error": "", "seconds": 0}
    own.leave()
    return found


def package(rank, ranks, library):
    """The package itself: who is there, groups, what moves values and what does not."""
    world = jcc.init()
    found = {"rank": world.rank, "size": world.size, "way": engine.load().describe()["transports"]}
    found["group"] = world.split(rank % 2, key=-rank).processes
    found["again"] = world.split(None if rank == 0 else 0) is None
    try:
        jcc.allreduce(np.ones(3))
    except errors.EngineUnavailableError as error:
        found["error"] = str(error)
    try:
        jcc.allreduce(np.ones(3), backend="nccl")
    except errors.EngineUnavailableError as error:
        found["nccl"] = str(error)
    mesh = jax.make_mesh((ranks,), ("i",))

    def total(backend):
        along = jax.shard_map(
            lambda: jcc.allreduce(jax.lax.axis_index("i") + 1, axis_name="i", backend=backend)[
                None
            ],
            mesh=mesh,
            in_specs=(),
            out_specs=P("i"),
        )
        return int(jax.jit(along)().addressable_shards[0].data[0])

    found["sum"] = [total("auto"), total("xla")]
    try:
        total("native")
    except errors.EngineUnavailableError as error:
        found["native"] = str(error)
    return found


def alone(rank, ranks, library):
    """One process does not call init."""
    jax.devices()  # which JAX itself waits for all to do
    if rank == 1:
        time.sleep(4)
        return {"error": ""}
    try:
        jcc.init(timeout_seconds=2.0)
    except errors.InitializationError as error:
        assert not comm.is_initialized()
        return {"error": str(error)}
    return {"error": "did not wait"}


def main(case, rank, ranks, port, library):
    jax.distributed.initialize(f"127.0.0.1:{port}", int(ranks), int(rank))
    print(json.dumps(globals()[case](int(rank), int(ranks), library)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
