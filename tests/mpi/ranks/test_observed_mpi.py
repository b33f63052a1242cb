"""Statistics of ranks' calls, and traces of all ranks on one clock."""

import dataclasses
import pathlib
import shutil
import tempfile
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import patience
import pytest

import jaxccomp as jcc

LATE_SECONDS = 0.2


@pytest.fixture
def folder(ranks):
    """A folder for all ranks, which are on one host."""
    path = ranks.allgather(tempfile.mkdtemp() if ranks.rank == 0 else None)[0]
    yield pathlib.Path(path)
    ranks.barrier()
    if ranks.rank == 0:
        shutil.rmtree(path)


@pytest.fixture
def comm(world, request):
    """A communicator for each test, so that its rows are only the test's."""
    if world.size == 1:
        pytest.skip("needs more than one rank")
    return world.duplicate(request.node.name)


def rows(comm):
    found = [row for row in jcc.stats.log().rows if row.communicator == comm.name]
    return {row.operation: row for row in found}


def test_log_has_a_row_for_each_line_of_eager_calls(comm):
    for _ in range(3):
        jcc.allreduce(jnp.ones(2), comm=comm)
    jcc.allreduce(jnp.ones(2), comm=comm)
    found = [row for row in jcc.stats.log().rows if row.communicator == comm.name]
    assert sorted(row.calls for row in found) == [1, 3]
    assert len({row.where for row in found}) == 2


def test_log_has_a_row_for_each_call_site_of_a_program(comm):
    @jax.jit
    def step(x):
        total = jcc.allreduce(x, op="mean", codec="int8", algorithm="ring", comm=comm)
        return jcc.bcast(total, root=1, comm=comm)

    x = jnp.ones(50_000, jnp.float32)
    calls = 70  # more than the 64 of the median
    for _ in range(calls):
        result = step(x)
    np.testing.assert_allclose(result, 1, atol=0.02)
    found = rows(comm)
    assert found.keys() == {"allreduce", "bcast"}
    total, bcast = found["allreduce"], found["bcast"]
    assert (total.reduce_op, total.operands, total.codec) == ("mean", "float32[50000]", "int8")
    assert (total.algorithm, total.backend, total.ranks) == ("ring", "native", comm.size)
    assert total.where.startswith("test_observed_mpi.py:") and total.where != bcast.where
    assert (total.calls, total.failed, total.operand_bytes) == (calls, 0, calls * x.nbytes)
    # A quarter of raw values, of which each rank sends and receives 2 (n - 1) / n.
    raw = calls * x.nbytes * 2 * (comm.size - 1) / comm.size
    for measured in (total.sent_bytes, total.received_bytes):
        assert 0.2 * raw < measured < 0.4 * raw
    assert total.remote_bytes == total.sent_bytes
    assert (bcast.root, bcast.codec) == (1, "raw")
    assert bcast.sent_bytes > 0 or comm.rank != 1
    assert (bcast.received_bytes == calls * x.nbytes) == (comm.rank != 1)
    for row in found.values():
        assert 0 < row.median_seconds <= row.max_seconds <= row.seconds
        assert 0 <= row.wait_seconds <= row.seconds
    # explain finds measurements only for the same codec and shapes.
    explained = jcc.explain(step)(x)
    assert [each.measured_calls for each in explained.calls] == [calls, calls]
    assert [each.measured_seconds for each in explained.calls] == [
        each.median_seconds for each in (total, bcast)
    ]
    assert str(explained).count(f"({calls} calls)") == 2
    assert "not run" in str(jcc.explain(step)(x[1:]))


def test_sent_and_received_bytes_of_all_ranks_are_equal(comm, ranks):
    for name, algorithm in (("allreduce", "two_shot"), ("allgather", "ring")):
        jax.block_until_ready(getattr(jcc, name)(jnp.ones(999), algorithm=algorithm, comm=comm))
    ranks.barrier()
    found = {name: (row.sent_bytes, row.received_bytes) for name, row in rows(comm).items()}
    everybody = ranks.allgather(found)
    for name in found:
        sent, received = zip(*(each[name] for each in everybody), strict=True)
        assert sum(sent) == sum(received) > 0


def test_log_shows_the_wait_for_a_late_rank(comm, ranks):
    step = jax.jit(lambda x: jcc.bcast(x, root=0, comm=comm))
    jax.block_until_ready(step(jnp.ones(8)))
    before = rows(comm)["bcast"]
    ranks.barrier()
    if comm.rank == 0:
        time.sleep(patience.seconds(LATE_SECONDS))
    jax.block_until_ready(step(jnp.ones(8)))
    after = rows(comm)["bcast"]
    waited = after.wait_seconds - before.wait_seconds
    assert after.calls == before.calls + 1
    if comm.rank == 0:
        assert waited == 0
    else:
        assert LATE_SECONDS < waited <= after.seconds - before.seconds


def test_failed_calls_have_no_seconds(comm, ranks):
    x = jnp.ones(4 + (comm.rank == 0))
    jax.block_until_ready(jcc.barrier(comm=comm))
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError)):
        jax.block_until_ready(jcc.allreduce(x, comm=comm))
    ranks.barrier()
    row = rows(comm)["allreduce"]
    assert (row.calls, row.failed, row.seconds, row.median_seconds) == (1, 1, 0, 0)


def test_reset_clears_the_log(comm, ranks):
    jax.block_until_ready(jcc.allreduce(jnp.ones(4), comm=comm))
    before = jcc.stats.log()
    ranks.barrier()
    jcc.stats.reset()
    after = jcc.stats.log()
    assert after.rows == () and after.since >= before.since > 0
    jax.block_until_ready(jcc.allreduce(jnp.ones(4), comm=comm))
    assert sum(row.calls for row in jcc.stats.log().rows) == 1


def test_log_rows_are_consistent_while_threads_communicate(comm):
    """Rows are consistent at any time: a call and its bytes are counted together."""
    step = jax.jit(lambda x: jcc.allgather(x, comm=comm))
    x = jnp.ones(100, jnp.float32)
    running = threading.Event()
    seen = []

    def read():
        while not running.is_set():
            seen.extend(rows(comm).values())

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(50):
        jax.block_until_ready(step(x))
    running.set()
    reader.join()
    assert all(row.operand_bytes == row.calls * x.nbytes for row in seen)
    assert rows(comm)["allgather"].calls == 50


def test_traces_of_all_ranks_merge_on_one_clock(comm, ranks, folder):
    """Rank 1 is treated as on another host, whose clock is known to be ahead."""

    @jax.jit
    def step(x):
        total = jcc.allreduce(x, codec="lossless", comm=comm)
        return jcc.bcast(total, comm=comm)

    ordered = comm.ordered()
    x = jnp.ones(40_000, jnp.float32)
    with jcc.trace.record() as timeline:
        for _ in range(3):
            result = step(x)
        following, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        came = jcc.sendrecv(result, dest=following, source=before, comm=ordered)
        jax.block_until_ready(came)
    ahead_seconds = 1000.0
    if comm.rank == 1:
        timeline.origin = dataclasses.replace(
            timeline.origin,
            clock="another",
            begin_ns=timeline.origin.begin_ns + round(ahead_seconds * 1e9),
        )
    timeline.save(folder / f"{comm.rank}.json")
    transfers = ranks.allgather(
        [(task.kind, task.message) for task in timeline.tasks if task.kind in ("send", "recv")]
    )
    sent = [number for each in transfers for kind, number in each if kind == "send"]
    received = [number for each in transfers for kind, number in each if kind == "recv"]
    assert len(set(sent)) == len(sent) and sorted(sent) == sorted(received) and 0 not in sent
    if comm.rank == 0:
        paths = [folder / f"{rank}.json" for rank in range(comm.size)]
        merged = jcc.trace.merge(folder / "all.json", *paths)
        assert merged.messages == len(sent)
        reference, other = merged.clocks
        assert (reference.by, other.by, other.ranks) == ("reference", "messages", (1,))
        assert other.uncertainty_seconds < 0.5
        assert abs(other.seconds + ahead_seconds) <= other.uncertainty_seconds + 1e-6
