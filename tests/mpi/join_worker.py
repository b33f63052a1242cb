"""Checks of joining, run on every rank: `mpiexec -n N python join_worker.py CASE`."""

import os
import sys
import time

import jax

from jaxccomp import comm, errors


def groups():
    """split and from_mpi4py give the same groups on all members."""
    world = comm.init()
    assert world == comm.world() and not os.environ.get("JAXCCOMP_MPI")
    odd = world.rank % 2
    part = world.split(odd, key=-world.rank)
    assert part.processes == tuple(r for r in reversed(range(world.size)) if r % 2 == odd)
    assert part.processes[part.rank] == world.rank
    assert world.split(odd, key=-world.rank) == part
    assert part.split(0).size == part.size
    rest = world.split(None if world.rank == 0 else 3)
    assert (rest is None) == (world.rank == 0)
    from mpi4py import MPI

    assert comm.Communicator.from_mpi4py(MPI.COMM_WORLD) == world
    own = comm.Communicator.from_mpi4py(MPI.COMM_SELF)
    assert own.processes == (world.rank,) and own.rank == 0
    half = MPI.COMM_WORLD.Split(odd, world.rank)
    assert comm.Communicator.from_mpi4py(half).rank == half.rank


def refusals():
    """Communicators that cannot be used are refused, with the reason."""
    world = comm.init()
    from mpi4py import MPI

    local = MPI.COMM_WORLD.Split(min(world.rank, 1))
    inter = local.Create_intercomm(0, MPI.COMM_WORLD, 1 if world.rank == 0 else 0)
    for make, says in (
        (lambda: comm.resolve(MPI.COMM_WORLD), "from_mpi4py"),
        (lambda: comm.resolve(comm.Communicator("far", (0, 99))), "another world"),
        (lambda: comm.Communicator.from_mpi4py(MPI.COMM_NULL), "with members"),
        (lambda: comm.Communicator.from_mpi4py(inter), "inter-communicator"),
    ):
        try:
            make()
        except errors.CommunicatorError as error:
            assert says in str(error), error
        else:
            raise AssertionError(f"not refused: {says}")


def late():
    """A rank that comes alone gets an error, and may try again."""
    from mpi4py import MPI

    if MPI.COMM_WORLD.rank == 0:
        try:
            comm.init(timeout_seconds=0.5)
        except errors.InitializationError as error:
            assert "not all" in str(error), error
        else:
            raise AssertionError("init did not wait for the others")
        assert not comm.is_initialized()
    else:
        time.sleep(1.5)
    assert comm.init().size == MPI.COMM_WORLD.size


def distributed(port):
    """Ranks are MPI's where JAX numbers its processes otherwise."""
    from mpi4py import MPI

    rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    jax.distributed.initialize(f"127.0.0.1:{port}", size, size - 1 - rank)
    world = comm.init()
    assert (world.rank, world.size) == (rank, size)
    assert jax.process_index() == size - 1 - rank


def disagreement(port):
    """Two worlds of jax.distributed in one of MPI are refused on every rank."""
    from mpi4py import MPI

    half, rank = divmod(MPI.COMM_WORLD.rank, 2)
    jax.distributed.initialize(f"127.0.0.1:{int(port) + half}", 2, rank)
    try:
        comm.init()
    except errors.InitializationError as error:
        assert "[0, 1, 0, 1]" in str(error), error
    else:
        raise AssertionError("not refused")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
