"""Ranks that fail, die, are interrupted or fork.

`mpiexec -n 3 python failure_worker.py CASE,CASE...` runs the cases in order.
"""

import asyncio
import os
import pathlib
import signal
import sys
import threading
import time

import jax
import jax.numpy as jnp

import jaxccomp as jcc
from jaxccomp import errors
from jaxccomp._runtime import leave

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import patience  # noqa: E402


def refused(call):
    """Return the error text of a call, which must fail before the deadline."""
    try:
        jax.block_until_ready(call())
    except Exception as error:  # noqa: BLE001 - its type is JAX's business
        assert not patience.at_deadline(str(error)), error
        return str(error)
    raise AssertionError("not refused")


def total(comm, count=2):
    return jcc.allreduce(jnp.ones(count), comm=comm)


def go_on_without_the_last(world):
    """The surviving ranks can communicate with each other."""
    rest = jcc.Communicator("rest", tuple(range(world.size - 1)))
    assert total(rest)[0] == rest.size
    for _ in range(2):
        left = world.shrink()
        assert left.processes == rest.processes and total(left)[0] == left.size


def tell(text):
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def raises_early(world):
    """Any call of another rank raises the failed rank's exception, at any time."""
    pair = world.split(int(world.rank == 0))
    if world.rank == 2:
        raise RuntimeError("boom")
    for use in (lambda: total(world), lambda: total(world, 5), lambda: jcc.barrier(comm=world)):
        said = refused(use)
        assert "rank 2 of the world" in said and "RuntimeError: boom" in said, said
        assert "at failure_worker.py:" in said, said
    if world.rank == 1:
        assert "RuntimeError: boom" in refused(lambda: total(pair))
    assert "RuntimeError: boom" in refused(lambda: total(world.duplicate("later").ordered()))
    assert "RuntimeError: boom" in refused(lambda: world.split(0))
    go_on_without_the_last(world)
    tell("was told")


def raises_late(world):
    """Also calls that already wait, and on a communicator that the failed rank has not used."""
    group = world.duplicate("group")
    total(world)
    if world.rank == 2:
        time.sleep(1)
        raise ValueError("late")
    said = refused(lambda: total(group))
    assert "rank 2 of the world" in said and "ValueError: late" in said, said
    go_on_without_the_last(world)
    tell("was told")


def raises_with_a_thread(world):
    """Other ranks get the error at once, even if a thread keeps the failed rank from exiting."""
    if world.rank == 2:
        threading.Thread(target=time.sleep, args=(10,)).start()
        raise RuntimeError("boom")
    assert "RuntimeError: boom" in refused(lambda: total(world))
    tell("was told")


def split_alone(world, patience_seconds):
    """All members name the missing process, and time out together."""
    from mpi4py import MPI

    total(world)
    if world.rank < 2:
        with jcc.config.override(init_timeout_seconds=float(patience_seconds)):
            assert "processes [2]" in refused(lambda: world.split(0))
        tell("was told")
    MPI.COMM_WORLD.Barrier()


def vanishes(world, how):
    """A process that dies without notice is detected within about a second."""
    total(world)
    if world.rank == 2:
        time.sleep(0.5)
        if how == "exits":
            os._exit(3)
        os.kill(os.getpid(), signal.SIGKILL)
    said = refused(lambda: total(world))
    assert "rank 2 of the world" in said, said
    assert "has died" in refused(lambda: world.split(0))
    go_on_without_the_last(world)
    tell("was told")


def survives_twice(world):
    """Another rank dies while the others agree on the survivors."""
    total(world)
    if world.rank == 2:
        os._exit(3)
    if world.rank == 3:
        threading.Timer(4.0, os._exit, (3,)).start()
    assert "comm.shrink()" in refused(lambda: total(world))
    if world.rank == 1:
        time.sleep(6)  # the others wait for this rank when rank 3 dies
    left = world.shrink()
    assert left.processes == (0, 1), left
    assert total(left)[0] == 2
    tell("was told")


def interrupted(world):
    """Ctrl-C ends a wait for a peer; the errors of other ranks name the interrupted rank."""
    from mpi4py import MPI

    group = world.duplicate("group")
    total(world)
    if world.rank == 1:
        threading.Timer(patience.seconds(0.5), os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            try:
                jax.block_until_ready(total(group))
            except Exception as error:  # noqa: BLE001 - its type is JAX's business
                assert "SIGINT" in str(error), error
                time.sleep(1)  # the interpreter raises KeyboardInterrupt
                raise AssertionError("no KeyboardInterrupt") from None
        except KeyboardInterrupt:
            tell("was interrupted")
        MPI.COMM_WORLD.send(None, dest=0)
    elif world.rank == 0:
        MPI.COMM_WORLD.recv(source=1)
        said = refused(lambda: total(group))
        assert "rank 1 of 'world/group'" in said, said
        tell("was told")
    else:
        said = refused(lambda: total(group))
        assert "rank 1 of 'world/group'" in said, said
    assert total(world)[0] == world.size


def interrupted_in_a_notebook(world):
    """Ctrl-C ends a wait in a cell. As a notebook's kernel, this runs the cell in an event loop.

    A kernel ignores SIGINT between cells, and installs Python's default handler for each cell.
    """
    from mpi4py import MPI

    group = world.duplicate("notebook")
    total(world)

    async def cell():
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Timer(patience.seconds(0.5), os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            jax.block_until_ready(total(group))
            raise AssertionError("no KeyboardInterrupt")
        except KeyboardInterrupt:
            tell("was interrupted")
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    async def kernel():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        await asyncio.create_task(cell())

    if world.rank == 1:
        asyncio.run(kernel())
        signal.signal(signal.SIGINT, signal.default_int_handler)
        MPI.COMM_WORLD.send(None, dest=0)
    else:
        if world.rank == 0:
            MPI.COMM_WORLD.recv(source=1)
        said = refused(lambda: total(group))
        assert "rank 1 of 'world/notebook'" in said, said
    assert total(world)[0] == world.size


def interrupted_between(world):
    """An interrupt that the program handles between two operations ends no later operation."""
    total(world)
    if world.rank == 0:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
            raise AssertionError("no KeyboardInterrupt")
        except KeyboardInterrupt:
            time.sleep(1)
    else:
        time.sleep(patience.seconds(4))  # rank 0 waits
    assert total(world)[0] == world.size


def interrupted_by_choice(world):
    """A program that handles or ignores SIGINT is not affected."""
    from mpi4py import MPI

    def interrupt():
        os.kill(os.getpid(), signal.SIGINT)
        for other in (0, 2):
            MPI.COMM_WORLD.send(None, dest=other)

    came = []
    for number, handler in enumerate((lambda *_: came.append(1), signal.SIG_IGN)):
        signal.signal(signal.SIGINT, handler)
        if world.rank == 1:
            threading.Timer(0.5, interrupt).start()
        else:
            MPI.COMM_WORLD.recv(source=1)
        assert total(world.duplicate(f"group{number}"))[0] == world.size
        assert len(came) == (world.rank == 1)  # the second one is ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)


def forks(world):
    """A forked child cannot communicate, and its end does not affect the parent."""
    x = jnp.ones(2)
    assert jcc.allreduce(x)[0] == world.size
    child = os.fork()
    if child == 0:
        try:
            assert world.rank in range(world.size)
            for use in (lambda: jcc.allreduce(x), jcc.init, lambda: world.split(0)):
                try:
                    use()
                except errors.EngineUnavailableError as error:
                    assert "fork" in str(error), error
                else:
                    os._exit(1)
        except BaseException:  # noqa: BLE001 - the child must not continue as a rank
            os._exit(2)
        leave._leave()  # only this exit handler: JAX's may wait for threads that fork did not copy
        os._exit(5)
    ended = []
    assert patience.wait_for(lambda: is_over(child, ended), 10), "the child hangs"
    assert ended == [5]
    assert jcc.allreduce(x)[0] == world.size
    tell("goes on")


def is_over(child, status):
    """Return whether a child has ended; append its exit status to ``status``."""
    pid, raw = os.waitpid(child, os.WNOHANG)
    status += [os.waitstatus_to_exitcode(raw)] if pid else []
    return pid != 0


def ends_late(world):
    """After an orderly end, other ranks can continue calls without the ended rank."""
    rest = world.split(int(world.rank == 2))
    if world.rank == 2:
        return
    time.sleep(1)
    for count in range(1, 5):
        assert total(rest, count)[0] == 2
    assert "rank 2 of the world" in refused(lambda: total(world))
    tell("goes on")


def sends_before_the_first_operation(world):
    """A rank that has run no operation drops the payload of a send that has failed elsewhere."""
    from mpi4py import MPI

    if world.rank == 0:
        values = jnp.ones(2_500_000)
        with jcc.config.override(timeout_seconds=0.5):
            try:
                jax.block_until_ready(jcc.send(values, dest=1))
            except Exception as error:  # noqa: BLE001 - its type is JAX's business
                assert "which has not called the matching send or receive" in str(error), error
            else:
                raise AssertionError("sent without a receiver")
    done = MPI.COMM_WORLD.Ibarrier()
    while not done.Test():
        time.sleep(0.05)
    tell("goes on")


if __name__ == "__main__":
    for case in sys.argv[1].split(","):
        globals()[case](jcc.init(), *sys.argv[2:])
