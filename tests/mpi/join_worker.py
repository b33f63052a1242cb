"""Checks of joining, run on every rank: `mpiexec -n N python join_worker.py CASE,CASE...`."""

import os
import pathlib
import sys
import threading
import time

import jax

from jaxccomp import comm, config, errors, ops

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import patience  # noqa: E402


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


def spaces():
    """Every MPI communicator and every duplicate has separate messages."""
    import jax.numpy as jnp
    from mpi4py import MPI

    world = comm.init()
    wrap = comm.Communicator.from_mpi4py
    dups = [MPI.COMM_WORLD.Dup() for _ in range(2)]
    pairs = [wrap(dup).ordered() for dup in dups]
    assert [wrap(dup).ordered() for dup in dups] == pairs and len({*pairs, world.ordered()}) == 3
    pairs += [world.duplicate(name).ordered() for name in "ab"]
    one, other = [int(x) for x in (world.rank, world.size - 1 - world.rank)]
    for a, b in (pairs[:2], pairs[2:]):
        # The first message is received last; both have the same shape and tag.
        if one == 0:
            for value, each in ((1.0, a), (2.0, b)):
                ops.send(jnp.full(3, value), dest=other, comm=each)
        elif other == 0:
            on_b, on_a = (ops.recv(jnp.zeros(3), source=0, comm=each) for each in (b, a))
            assert (on_a[0], on_b[0]) == (1.0, 2.0), (on_a, on_b)
    # The first member times out with an error, and completes the same exchange later.
    late = MPI.COMM_WORLD.Dup()
    if world.rank == 0:
        MPI.COMM_WORLD.recv(source=1)
    elif world.rank == 1:
        with config.override(init_timeout_seconds=0.3):
            assert "rank 0" in refused(lambda: wrap(late))
        MPI.COMM_WORLD.send(None, dest=0)
    assert wrap(late).processes == world.processes


def check_freed(group, world):
    """The group works until it is freed; then all its calls raise."""
    total = jax.jit(lambda x: ops.allreduce(x, comm=group))
    assert total(jax.numpy.ones(2))[0] == world.size
    group.free()
    for use in (lambda: ops.barrier(comm=group), lambda: group.split(0), group.free):
        assert "has been freed" in refused(use)
    assert "has been freed" in refused(lambda: jax.block_until_ready(total(jax.numpy.ones(2))))


def freed():
    """Each rank frees a communicator by itself; its name is not used again."""
    import jax.numpy as jnp
    from mpi4py import MPI

    world = comm.init()
    x = jnp.ones(2)
    for _ in range(3):
        check_freed(world.split(0), world)
    kept = world.split(0)
    if world.rank == 0:
        kept.free()
    else:
        why = refused(lambda: jax.block_until_ready(ops.allreduce(x, comm=kept)))
        assert f"rank 0 of '{kept.name}' has freed the communicator" in why, why
    # Ranks that freed the group and ranks that kept it get the same new one.
    again = world.split(0)
    assert again != kept and ops.allreduce(x, comm=again)[0] == world.size
    for number in range(100):
        world.split(number).free()
    assert "cannot be freed" in refused(world.free)
    busy = world.duplicate("busy").ordered()
    if world.rank == 0:
        waits = threading.Thread(target=lambda: ops.recv(x, source=1, comm=busy))
        waits.start()
        time.sleep(patience.seconds(0.5))  # recv starts
        assert "recv" in refused(busy.free)
    MPI.COMM_WORLD.Barrier()
    if world.rank == 1:
        ops.send(x, dest=0, comm=busy)
    elif world.rank == 0:
        waits.join()
    busy.free()


def refused(use):
    """Return the error text of a call."""
    try:
        use()
    except Exception as error:  # noqa: BLE001 - also JAX's errors
        return str(error)
    raise AssertionError("not refused")


def refusals():
    """Unusable communicators are refused with the reason."""
    world = comm.init()
    from mpi4py import MPI

    local = MPI.COMM_WORLD.Split(min(world.rank, 1))
    inter = local.Create_intercomm(0, MPI.COMM_WORLD, 1 if world.rank == 0 else 0)
    for make, fact in (
        (lambda: comm.resolve(MPI.COMM_WORLD), "from_mpi4py"),
        (lambda: comm.resolve(comm.Communicator("far", (0, 99))), "99"),
        (lambda: comm.Communicator.from_mpi4py(MPI.COMM_NULL), "members"),
        (lambda: comm.Communicator.from_mpi4py(inter), "inter-communicator"),
    ):
        try:
            make()
        except errors.CommunicatorError as error:
            assert fact in str(error), error
        else:
            raise AssertionError(f"not refused: {fact}")


def late():
    """A rank that joins alone gets an error, and may try again."""
    from mpi4py import MPI

    if MPI.COMM_WORLD.rank == 0:
        try:
            comm.init(timeout_seconds=0.5)
        except errors.InitializationError as error:
            assert "ranks [1]" in str(error) and "2" in str(error), error
        else:
            raise AssertionError("init did not wait for the others")
        assert not comm.is_initialized()
        MPI.COMM_WORLD.send(None, dest=1)
    else:
        MPI.COMM_WORLD.recv(source=0)
    assert comm.init().size == MPI.COMM_WORLD.size


def distributed(port):
    """Ranks are MPI's, also if JAX numbers the processes differently."""
    from mpi4py import MPI

    rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    jax.distributed.initialize(f"127.0.0.1:{port}", size, size - 1 - rank)
    world = comm.init()
    assert (world.rank, world.size) == (rank, size)
    assert jax.process_index() == size - 1 - rank


def disagreement(*ports):
    """Two jax.distributed worlds in one MPI world are refused on every rank."""
    from mpi4py import MPI

    half, rank = divmod(MPI.COMM_WORLD.rank, 2)
    jax.distributed.initialize(f"127.0.0.1:{ports[half]}", 2, rank)
    try:
        comm.init()
    except errors.InitializationError as error:
        assert "[0, 1, 0, 1]" in str(error), error
    else:
        raise AssertionError("not refused")


def split_again():
    """A split that failed at its deadline and was made again shifts no later split."""
    from mpi4py import MPI

    world = comm.init()
    ranks = range(world.size)
    for failures in (2, 1):  # of rank 1, before rank 0 comes
        if world.rank == 1:
            with config.override(init_timeout_seconds=0.3):
                for _ in range(failures):
                    assert "processes [0]" in refused(lambda: world.split(0))
            MPI.COMM_WORLD.send(None, dest=0)
        elif world.rank == 0:
            MPI.COMM_WORLD.recv(source=1)
        for colors in ([0] * world.size, list(ranks), [rank % 2 for rank in ranks]):
            group = world.split(colors[world.rank])
            alike = tuple(rank for rank in ranks if colors[rank] == colors[world.rank])
            assert group.processes == alike, (group, colors)


if __name__ == "__main__":
    for case in sys.argv[1].split(","):
        globals()[case](*sys.argv[2:])
