"""Weights from trainers to actors: `mpiexec -n 4 python sync_worker.py CASE`.

Rank 0, or ranks 0 and 1, are trainers; all others are actors.
"""

import ctypes
import os
import pathlib
import signal
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

import jaxccomp as jcc
from jaxccomp import errors, sync
from jaxccomp.sync._transfer import Transfer

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import patience  # noqa: E402

VERSIONS = 10
SHAPE = (96, 80)


def weights(version):
    """Return a version's weights in several dtypes; few change between versions."""
    start = np.random.default_rng(0).normal(0, 0.02, SHAPE).astype(np.float32)
    changed = np.random.default_rng(1).random(SHAPE) < 0.02
    exact = start * (1 + 0.01 * version * changed)
    return {
        "kernel": jnp.asarray(exact, jnp.bfloat16),
        "exact": jnp.asarray(exact),
        "step": jnp.int32(version),
        "odd": {"values": jnp.asarray([-0.0, np.inf, np.nan, 1e-40, version], jnp.float32)},
        "none": jnp.zeros((0, 3)),
    }


def bits(tree):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def tell(text):
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def refused(kind, call):
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError("not refused")


def publish(world, publisher, first=1, last=VERSIONS, pause=0.05):
    for version in range(first, last + 1):
        assert publisher.publish(weights(version)) == version
        time.sleep(pause)


def receive(receiver, until=VERSIONS):
    """Receive versions, and check that each is complete and right."""
    version = 0
    while version < until:
        found = receiver.wait(version, timeout=patience.seconds(60))
        assert found.version > version
        version = found.version
        assert bits(found.params) == bits(weights(version)), version
    return version


def values(world):
    """All actors get versions, while each side runs its own programs."""
    side = world.split(int(world.rank > 0))
    if world.rank == 0:
        with sync.Publisher(weights(0)) as publisher:
            publish(world, publisher)
            publisher.flush()
            sent = jcc.stats.get().operations["bcast"].sent_bytes
            full = sum(len(each) for each in bits(weights(0)))
            assert 0 < sent < 1.6 * full, (sent, full)  # lossless once, and nine differences
        assert "has been closed" in refused(
            errors.SyncError, lambda: publisher.publish(weights(11))
        )
        return
    receiver = sync.Receiver(weights(0))
    assert receiver.latest() is None and receiver.last is None and not receiver.closed
    work = jax.jit(lambda x: jcc.allreduce(x @ x, comm=side))
    total = jnp.eye(64)
    thread = threading.Thread(target=receive, args=(receiver,), name="receive")
    thread.start()
    waiting = True
    while waiting:  # all ranks leave the loop together
        total = work(total) / side.size
        assert total[0, 0] == 1
        waiting = jcc.allreduce(jnp.int32(thread.is_alive()), comm=side) > 0
    thread.join()
    assert receiver.latest().version == VERSIONS
    assert "asked for" in refused(errors.SyncError, lambda: receiver.wait(VERSIONS))
    assert receiver.closed and receiver.latest().version == VERSIONS
    assert time.time() - receiver.last.published_at < 60
    tell("is right")


def raw(world):
    """Without differences, each version is sent in full."""
    if world.rank == 0:
        with sync.Publisher(weights(0), codec="raw") as publisher:
            publish(world, publisher)
            publisher.flush()
            sent = jcc.stats.get().operations["bcast"].sent_bytes
            full = sum(len(each) for each in bits(weights(0)))
            assert sent >= VERSIONS * full, (sent, full)
        return
    assert receive(sync.Receiver(weights(0), codec="raw")) == VERSIONS
    tell("is right")


def checked(world):
    """The program's JAX and jaxccomp settings do not affect the transfer of weights."""

    def plain(version):
        return {"values": np.array([np.nan, np.inf, version], np.float32)}

    jax.config.update("jax_debug_nans", True)
    jax.config.update("jax_transfer_guard", "disallow_explicit")
    jcc.step(world.rank)  # the option check_launches compares it
    if world.rank == 0:
        with sync.Publisher(plain(0)) as publisher:
            for version in range(1, VERSIONS + 1):
                publisher.publish(plain(version))
        return
    receiver = sync.Receiver(plain(0))
    found = receiver.wait(VERSIONS - 1, timeout=patience.seconds(60))
    with jax.transfer_guard("allow"):
        assert bits(found.params) == bits(plain(VERSIONS))
    tell("is right")


def local(tree, specs, mesh, index):
    """Return the shards of rank ``index``."""
    coordinates = dict(zip(mesh, np.unravel_index(index, tuple(mesh.values())), strict=True))

    def cut(leaf, spec):
        for dimension, names in enumerate(spec):
            names = (names,) if isinstance(names, str) else names or ()
            for name in names:
                leaf = jnp.split(leaf, mesh[name], dimension)[coordinates[name]]
        return leaf

    return jax.tree.map(cut, tree, specs, is_leaf=lambda x: x is None)


def sharded(world):
    """Trainers and actors shard the weights differently."""
    trains = world.rank < 2
    index = world.rank if trains else world.rank - 2
    at = {True: ({"model": 2}, "model", None), False: ({"x": 2, "y": 1}, None, ("x", "y"))}
    mesh, rows, columns = at[trains]
    specs = {
        "kernel": PartitionSpec(rows, columns),
        "exact": PartitionSpec(columns, rows),
        "step": PartitionSpec(),
        "odd": {"values": PartitionSpec()},
        "none": PartitionSpec(),
    }

    def mine(version):
        return local(weights(version), specs, mesh, index)

    assert mine(0)["kernel"].size == SHAPE[0] * SHAPE[1] // 2
    if trains:
        with sync.Publisher(mine(0), specs=specs, mesh=mesh) as publisher:
            for version in range(1, VERSIONS + 1):
                publisher.publish(mine(version))
        return
    with sync.Receiver(mine(0), specs=specs, mesh=mesh) as receiver:
        version = 0
        while version < VERSIONS:
            found = receiver.wait(version, timeout=patience.seconds(60))
            version = found.version
            assert bits(found.params) == bits(mine(version)), version
    tell("is right")


def rounded(world):
    """Publishers round, skip versions and donate; idle receivers do not delay others."""
    if world.rank == 0:
        step = jax.jit(lambda x: x + 1, donate_argnums=0)
        x = jnp.full(1000, 1.0)
        with sync.Publisher({"x": x}, dtype=jnp.bfloat16) as publisher:
            for version in (3, 5, 9):
                publisher.publish({"x": x}, version=version)
                x = step(x)
        return
    receiver = sync.Receiver({"x": jax.ShapeDtypeStruct((1000,), jnp.bfloat16)})
    if world.rank == 1:
        time.sleep(2)
    found = receiver.wait(8, timeout=patience.seconds(60))
    assert found.version == 9 and found.params["x"].dtype == jnp.bfloat16
    assert set(np.asarray(found.params["x"], np.float32)) == {3.0}
    tell("is right")


def leaves(world):
    """Receivers that close or end do not delay others; a publisher can continue alone."""
    if world.rank == 0:
        with sync.Publisher(weights(0)) as publisher:
            publish(world, publisher, pause=0.2)
            publish(world, publisher, first=VERSIONS + 1, last=VERSIONS + 10, pause=0.1)
        tell("is right")
        return
    receiver = sync.Receiver(weights(0))
    if world.rank < 3:
        receive(receiver, until=4)
        if world.rank == 2:
            receiver.close()
            assert receiver.closed and receiver.latest().version >= 4
        return
    receive(receiver)
    receiver.close()
    tell("is right")


def fails(world, fail):
    """A failed actor does not affect the other ranks."""
    if world.rank == 0:
        with sync.Publisher(weights(0)) as publisher:
            publish(world, publisher, pause=0.2)
        tell("is right")
        return
    receiver = sync.Receiver(weights(0))
    if world.rank == 2:
        receive(receiver, until=4)
        fail()
    receive(receiver)
    tell("is right")


def boom():
    raise RuntimeError("boom")


def raises(world):
    """An actor ends with an exception."""
    fails(world, boom)


def dies(world):
    """An actor exits without notice."""
    fails(world, lambda: os._exit(3))


def publisher_raises(world):
    """Actors get the publisher's exception, and keep the last version."""
    if world.rank == 0:
        publisher = sync.Publisher(weights(0))
        publish(world, publisher, last=4)
        publisher.flush()
        raise RuntimeError("boom")
    receiver = sync.Receiver(weights(0))
    receive(receiver, until=4)
    said = refused(errors.SyncError, lambda: receiver.wait(4, timeout=patience.seconds(30)))
    # If the sync was closed in time, the orderly end arrives before the exception.
    assert "boom" in said or "closed" in said, said
    assert receiver.last.version == 4 and bits(receiver.last.params) == bits(weights(4))
    tell("was told")


def publisher_dies(world):
    """The same for a killed publisher, probably in the middle of a version."""
    if world.rank == 0:
        publisher = sync.Publisher(weights(0))
        publish(world, publisher, last=4, pause=0)
        os._exit(3)
    receiver = sync.Receiver(weights(0))
    version = 0
    try:
        while True:
            found = receiver.wait(version, timeout=patience.seconds(30))
            version = found.version
            assert bits(found.params) == bits(weights(version))
    except errors.SyncError as error:
        assert "rank 0 of the world" in str(error), error
    assert version >= 3 and bits(receiver.last.params) == bits(weights(version))
    assert "has died" in refused(errors.SyncError, receiver.latest)
    tell("was told")


def corrupted(world):
    """After one receiver's delta base is corrupted, all get the next version in full."""
    if world.rank == 0:
        with sync.Publisher(weights(0)) as publisher:
            publish(world, publisher, pause=0.2)
        return
    receiver = sync.Receiver(weights(0))
    receive(receiver, until=4)
    if world.rank == 2:
        array = receiver.last.params["exact"]
        ctypes.memset(array.unsafe_buffer_pointer() + 1000, 0x55, 16)
        assert bits(receiver.last.params) != bits(weights(receiver.last.version))
    version = receiver.latest().version
    while version < VERSIONS:
        found = receiver.wait(version, timeout=patience.seconds(60))
        version = found.version
        assert bits(found.params) == bits(weights(version)), version
    tell("is right")


def fails_once(world):
    """If a rank finds a corrupted frame, the version is sent again in full."""
    if world.rank == 0:
        with sync.Publisher(weights(0)) as publisher:
            publish(world, publisher)
        return
    if world.rank == 2:
        run, calls = Transfer.run, []

        def corrupted_once(self, source, base):
            received = run(self, source, base)
            calls.append(base is not None)
            if len(calls) == 4:
                raise errors.CorruptDataError("a checksum is wrong")
            return received

        Transfer.run = corrupted_once
    receiver = sync.Receiver(weights(0))
    receive(receiver)
    receiver.close()
    if world.rank == 2:
        # The first in full, three differences, the last one again in full.
        assert calls[:6] == [False, True, True, True, False, True], calls
    tell("is right")


def stopped(world):
    """A stopped rank delays versions; nothing is lost when it continues."""
    if world.rank == 0:
        with sync.Publisher(weights(0)) as publisher:
            publish(world, publisher)
        return
    receiver = sync.Receiver(weights(0))
    if world.rank == 2:
        receive(receiver, until=3)
        if os.fork() == 0:
            time.sleep(3)
            os.kill(os.getppid(), signal.SIGCONT)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGSTOP)
    receive(receiver)
    tell("is right")


def refusals(world):
    """Mismatched arguments are named on all ranks; afterwards a sync can be created."""

    def zeros(rows, columns, dtype=jnp.float32):
        return jnp.zeros((rows, columns), dtype)

    def make(tree, **options):
        kind = sync.Publisher if world.rank == 0 else sync.Receiver
        return lambda: kind(tree, **options)

    right = {"w": zeros(4, 6)}
    for trees, options, said in [
        ([right, {"w": zeros(4, 7)}], {}, "['w'] float32[4, 6] on rank 0, ['w'] float32[4,"),
        ([right, {"v": zeros(4, 6)}], {}, "['v'] float32[4, 6] on rank"),
        ([right, {}], {}, "no more array"),
        ([right, {"w": zeros(4, 6, jnp.int8)}], {}, "int8[4, 6] on rank"),
        ([right, {"w": 3}], {}, "must be an array, not int"),
        ([{"w": jax.random.key(0)}] * 2, {}, "jax.random.key_data"),
        ([right] * 2, {"mesh": {"x": 7}}, "for 7 ranks"),
        ([right] * 2, {"mesh": {"x": "y"}}, "the size of each axis"),
        ([right] * 2, {"specs": PartitionSpec("x")}, "'x'"),
        ([right] * 2, {"specs": {"w": 5}}, "PartitionSpec"),
        ([right] * 2, {"specs": {"v": None}}, "a tree"),
        ([right] * 2, {"specs": PartitionSpec(None, None, None)}, "3 dimensions"),
    ]:
        tree = trees[min(world.rank, 1)]
        told = refused(errors.InvalidArgumentError, make(tree, **options))
        assert said in told, (said, told)
    for codec, said in [("int8", "bit-exact codec"), ("delt", "'delta'")]:
        told = refused(errors.InvalidArgumentError, make(right, codec=codec))
        assert said in told, told
    told = refused(errors.InvalidArgumentError, lambda: sync.Receiver(right))
    assert "Publisher" in told, told
    codec = "delta" if world.rank else "lossless"
    told = refused(errors.InvalidArgumentError, make(right, codec=codec))
    assert "delta" in told and "lossless" in told, told

    side = make(right)()
    if world.rank == 0:
        for bad, said in [
            ({"w": zeros(4, 7)}, "['w'] is float32[4, 7]"),
            ({"w": zeros(4, 6, jnp.float16)}, "['w'] is float16[4, 6]"),
            ([zeros(4, 6)], "another tree"),
        ]:
            told = refused(errors.InvalidArgumentError, lambda bad=bad: side.publish(bad))
            assert said in told, told
        side.publish(right, version=7)
        for version, said in [
            (7, "after version 7"),
            (6, "after"),
            (2**31, "less than"),
            ("a", ""),
        ]:
            told = refused(
                errors.InvalidArgumentError, lambda v=version: side.publish(right, version=v)
            )
            assert said in told, told
    else:
        assert side.wait(timeout=patience.seconds(30)).version == 7
        told = refused(TimeoutError, lambda: side.wait(7, timeout=0.2))
        assert "version newer than 7" in told and "0.2 s" in told, told
    jcc.barrier()  # before the publisher ends the sync
    side.close()
    side.close()
    tell("is right")


def apart(world):
    """Publishers with different versions are an error on publishers and actors."""
    if world.rank < 2:
        publisher = sync.Publisher(weights(0), mesh={"x": 2})
        publisher.publish(weights(1), version=1 + world.rank)
        said = refused(errors.SyncError, publisher.flush)
    else:
        receiver = sync.Receiver(weights(0))
        said = refused(errors.SyncError, lambda: receiver.wait(timeout=patience.seconds(60)))
        assert receiver.last is None
    assert "rank 1 of the world" in said and "version 2" in said, said
    tell("was told")


if __name__ == "__main__":
    globals()[sys.argv[1]](jcc.init(), *sys.argv[2:])
