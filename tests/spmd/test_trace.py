"""Timelines: recorded tasks, and their report."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxccomp as jcc
from jaxccomp.trace import Task, Timeline, _timeline


def task(kind, begin, end):
    return Task(begin, end, 0, "bcast", kind, -1, 0, 8)


def test_overlap_is_coding_time_during_transfers():
    timeline = Timeline([task("encode", 0, 2), task("send", 1, 5), task("decode", 4, 6)])
    assert timeline.seconds == 6
    assert timeline.busy(("encode", "decode")) == 4
    assert timeline.overlapped() == 0.5
    text = str(timeline)
    assert "6000.00 ms" in text and "50% of the coding" in text
    encode = next(line for line in text.splitlines() if line.startswith("encode"))
    assert encode.split("|")[1] == "#" * 24 + " " * 48


def test_empty_timeline_reports_no_tasks():
    assert Timeline().seconds == 0 and "no tasks" in str(Timeline())


def test_timeline_records_the_tasks_of_a_collective(tmp_path):
    mesh = jax.sharding.Mesh(jax.devices()[:2], ("i",))
    step = jax.jit(
        jax.shard_map(
            lambda x: jcc.allreduce(x, codec="lossless", algorithm="two_shot", axis_name="i"),
            mesh=mesh,
            in_specs=P("i"),
            out_specs=P(),
            check_vma=False,
        )
    )
    x = jnp.arange(1 << 20, dtype=jnp.float32)
    with jcc.trace.record() as timeline:
        result = step(x).block_until_ready()
    np.testing.assert_array_equal(result, x[: 1 << 19] + x[1 << 19 :])
    step(x).block_until_ready()  # after the recording
    kinds = {each.kind for each in timeline.tasks}
    assert kinds == {"encode", "send", "recv", "decode", "merge"}
    assert {each.operation for each in timeline.tasks} == {0, 1}  # one on each device
    merged = sum(each.value_bytes for each in timeline.tasks if each.kind == "merge")
    assert merged == 2 << 20  # each half once
    assert all(0 <= each.begin <= each.end for each in timeline.tasks)
    sends = [each for each in timeline.tasks if each.kind == "send"]
    received = sum(each.payload_bytes for each in timeline.tasks if each.kind == "recv")
    assert 0 < sum(each.payload_bytes for each in sends) == received
    assert sum(each.payload_bytes for each in sends) < sum(each.value_bytes for each in sends)
    for each in timeline.tasks:
        assert each.codec == "lossless" and each.where.startswith("test_trace.py:")
        assert (each.payload_bytes > 0) == (each.kind in ("send", "recv"))
    timeline.save(tmp_path / "t.json")
    assert _timeline.read(tmp_path / "t.json").tasks[0].codec == "lossless"
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert len(events) == len(jcc.trace.KINDS) + len(timeline.tasks)


def test_xla_operations_are_on_the_same_clock(tmp_path):
    mesh = jax.sharding.Mesh(jax.devices()[:2], ("i",))

    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=False)
    def step(x):
        return jnp.sin(jcc.allreduce(jnp.cumsum(x), axis_name="i"))

    x = jnp.arange(1 << 18, dtype=jnp.float32)
    step(x).block_until_ready()
    with jcc.trace.record(xla=True) as timeline:
        step(x).block_until_ready()
    calls = [each for each in timeline.tasks if each.kind == "call"]
    assert len(calls) == 2 and {each.kind for each in timeline.tasks} > {"compute", "send", "merge"}
    # The engine works for a call while the call runs; 1 ms: the profile's clock is set by an event.
    begin, end = min(each.begin for each in calls), max(each.end for each in calls)
    engine = [each for each in timeline.tasks if each.operation >= 0]
    assert all(begin - 1e-3 <= each.begin and each.end <= end + 1e-3 for each in engine)
    timeline.save(tmp_path / "t.json")
    assert _timeline.read(tmp_path / "t.json").tasks[-1].kind == timeline.tasks[-1].kind
    assert "compute|" in str(timeline)


def test_recording_ended_by_an_exception_keeps_earlier_tasks():
    with pytest.raises(ZeroDivisionError), jcc.trace.record() as timeline:
        _ = 1 / 0
    assert timeline.tasks == []


def test_stats_count_calls_of_the_xla_backend():
    mesh = jax.sharding.Mesh(jax.devices()[:2], ("i",))

    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=P("i"), out_specs=P(), check_vma=False)
    def step(x):
        return jcc.allreduce(x, op="mean", codec="bf16", axis_name="i", backend="xla")

    x = jnp.ones((8, 100), jnp.float32)
    jcc.stats.reset()
    for _ in range(3):
        step(x)
    found = jcc.stats.get(wait=True).operations["allreduce"]
    assert (found.calls, found.value_bytes) == (6, 6 * x.nbytes // 2)  # on two devices
    (row,) = jcc.stats.log().rows
    assert (row.operation, row.reduce_op, row.backend) == ("allreduce", "mean", "xla")
    assert (row.calls, row.failed, row.operand_bytes) == (6, 0, 6 * x.nbytes // 2)
    assert (row.codec, row.operands, row.ranks) == ("bf16", "float32[4,100]", 2)
    assert row.where.startswith("test_trace.py:") and row.seconds == 0
    (explained,) = jcc.explain(step)(x).calls
    assert explained.measured_calls == 0 and explained.measured_seconds is None
    jcc.stats.reset()
    assert jcc.stats.log().rows == ()


def test_stats_of_exported_programs_stay_zero():
    """An exported program runs where this package is not loaded."""

    def step(x):
        return jcc.allreduce(x, axis_name="i", backend="xla")

    mesh = jax.sharding.Mesh(jax.devices()[:2], ("i",))
    mapped = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=P("i"), out_specs=P()))
    exported = jax.export.export(mapped)(jnp.ones(4))
    assert "jaxccomp" not in exported.mlir_module()
    assert "jaxccomp_count" in mapped.lower(jnp.ones(4)).as_text()


def test_stats_get_waits_for_running_operations():
    mesh = jax.sharding.Mesh(jax.devices()[:2], ("i",))

    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=False)
    def step(x):
        for _ in range(20):
            x = jcc.allreduce(jnp.cumsum(x), op="mean", axis_name="i")
        return x

    x = jnp.ones(1 << 18, jnp.float32)
    step(x).block_until_ready()
    jcc.stats.reset()
    step(x)
    assert jcc.stats.get(wait=True).operations["allreduce"].calls == 40
