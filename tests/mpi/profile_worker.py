"""Checks of profiles, run on every rank: `mpiexec -n N python profile_worker.py CASE FILE`."""

import json
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np

import jaxccomp as jcc
from jaxccomp import comm, config, errors, ops, plan, schedules
from jaxccomp._native import engine
from jaxccomp._runtime import mpi, peer_info
from jaxccomp.bench import profile
from jaxccomp.cli import main

RANK = mpi.launcher().rank


def on_hosts_of(ranks):
    """Treat each ``ranks`` consecutive ranks as one host."""
    peer_info._host_number = lambda: RANK // ranks


def tuned(path):
    """Ranks of two hosts measure a profile; rank 0 writes it."""
    on_hosts_of(2)
    config.set("profile", "one that is not there, and that is not asked for")
    command = ["tune", "links", "--output", path, "--codecs", "lossless int8", "--within", "60"]
    assert main.main(command) == 0
    if RANK:
        return
    made = json.loads(pathlib.Path(path).read_text())
    (host,) = made["hosts"] if len(made["hosts"]) == 1 else (made["hosts"][0],)
    assert host["ranks"] == 2 and host["up_bytes_per_second"] > 1e6, made
    assert sum(each["count"] * each["ranks"] for each in made["hosts"]) == 4
    assert made["one_machine"] is True
    assert set(made["pairs"]) == {"host", "link"} and set(made["codecs"]) == {"lossless", "int8"}
    assert set(made["codecs"]["int8"]["dtypes"]) == {"bfloat16", "float32"}


def resumed(path):
    """After an interruption, no rank repeats finished measurements."""
    on_hosts_of(1)
    measured, measure = [], profile._measure

    def ends(spec, *how):
        measured.append(spec)
        if spec == "lossless":
            raise KeyboardInterrupt
        return measure(spec, *how)

    # Only the first rank sees the file.
    output = path if RANK == 0 else f"{path}.of_others"
    command = ["tune", "links", "--output", output, "--codecs", "int8 lossless"]
    profile._measure = ends
    try:
        main.main(command)
    except KeyboardInterrupt:
        pass
    else:
        raise AssertionError("not ended")
    assert measured == ["raw", "int8", "int8", "lossless"]
    written = {each.name for each in pathlib.Path(path).parent.iterdir()}
    assert written == {"profile.json.unfinished"}, written
    measured.clear()
    profile._measure = lambda spec, *how: (measured.append(spec), measure(spec, *how))[1]
    profile._rate = profile._latency = None  # not called
    assert main.main(command) == 0
    assert measured == ["lossless", "lossless"], measured
    if RANK == 0:
        cluster = schedules.parse_profile(schedules.read_profile(path), "it")
        assert cluster.ranks == 2 and set(cluster.codecs) == {"int8", "lossless"}


def described(hosts, link=1e8):
    """Return a profile of hosts with one rank each, whose links are slower than any codec."""
    codec = {f"{each}_bytes_per_second": 4e9 for each in ("encode", "decode", "merge")}
    rates = {"up_bytes_per_second": link, "down_bytes_per_second": link}
    return {
        "hosts": [{"count": hosts, "ranks": 1, "cores": 4} | rates],
        "codecs": {"lossless": codec | {"ratio": 1.4}, "int8": codec | {"ratio": 3.7}},
    }


def named(path, profile):
    """Write a profile, and set the option to its path."""
    schedules.write_profile(path, profile)
    config.set("profile", path)


def planned(path):
    """All ranks choose by rank 0's profile; results equal those without a codec."""
    on_hosts_of(1)
    if RANK == 0:
        named(path, described(3))
    world = comm.init()
    assert comm.planner() is not None and comm.hosts() == (0, 1, 2)
    chosen = set()
    for dtype, sizes in ((jnp.float32, (3, 3 << 19)), (jnp.bfloat16, (3 << 16,))):
        for size in sizes:
            x = (jnp.arange(size) % 61 - 30 + world.rank).astype(dtype)
            rows = x.reshape(3, -1)
            for name, value, options in (
                *(("bcast", x, {"root": root}) for root in (0, 2)),
                ("allreduce", x, {"op": "sum"}),
                ("allgather", x, {}),
                ("alltoall", rows, {}),
                ("reduce_scatter", rows, {"op": "max"}),
                ("scan", x, {"op": "sum"}),
            ):
                check(chosen, name, value, options)
    assert {"raw", "lossless"} <= chosen, chosen
    # A lossy codec is used only if it is faster.
    for size, codec in ((8, "raw"), (1 << 20, "int8")):
        call = jax.jit(lambda x: ops.bcast(x, root=0, codec="auto:int8"))
        assert f'codec = "{codec}"' in call.lower(jnp.ones(size)).as_text(), (size, codec)
        assert np.allclose(call(jnp.ones(size)), 1, rtol=0.01)


def check(chosen, name, value, options):
    """Check that codec="auto" and no codec give the same bits."""
    function = getattr(ops, name)
    call = jax.jit(lambda x: function(x, codec="auto", **options))
    text = call.lower(value).as_text()
    chosen.update(codec for codec in ("raw", "lossless") if f'codec = "{codec}"' in text)
    assert 'codec = "auto' not in text
    plain = jax.jit(lambda x: function(x, algorithm="auto", **options))(value)
    got = call(value)
    assert got.dtype == plain.dtype
    assert np.asarray(got).tobytes() == np.asarray(plain).tobytes(), (name, value.shape)


def refused(text, option="profile"):
    """Check that joining is refused on this rank, for any option of its own."""
    try:
        comm.init()
    except errors.InitializationError as error:
        assert text in str(error), error
    else:
        raise AssertionError("not refused")
    # As the error says: without the option, ranks can join.
    config.set(option, "")
    assert comm.init().size == 3 and comm.planner() is None and comm.plans() is None


def measured(path):
    """A profile contains the transport it was measured with."""
    on_hosts_of(1)
    config.set("transport", "ucx")
    assert main.main(["tune", "links", "--output", path, "--codecs", "lossless"]) == 0
    if RANK == 0:
        assert json.loads(pathlib.Path(path).read_text())["transport"] == "ucx"


def over_ucx(path):
    """The transport is the one of rank 0's profile; backend="mpi" still works."""
    on_hosts_of(1)
    if RANK == 0:
        config.set("profile", path)
    world = comm.init()
    assert engine.load().describe()["transports"][1].startswith("ucx")
    x = jnp.arange(1 << 18, dtype=jnp.float32)
    for backend in ("native", "mpi"):
        total = jax.jit(lambda x, backend=backend: ops.allreduce(x, backend=backend))(x)
        assert np.array_equal(total, world.size * np.asarray(x)), backend


def differs(path):
    """Different profiles on different ranks are an error on all ranks."""
    on_hosts_of(1)
    named(f"{path}.{RANK}", described(3, link=1e8 if RANK < 2 else 2e8))
    refused("ranks [2] name another profile than rank 0")


def misfits(path):
    """A profile of other hosts is refused on all ranks, also on ranks without the option."""
    on_hosts_of(1)
    if RANK == 0:
        named(path, described(2))
    refused("describes 2 processes on 2 hosts (1, 1), but this world has 3 processes on 3 hosts")


def step(x):
    """Call collectives of all ranks, of half of the ranks, and of pairs."""
    world = comm.init()
    half = world.split(min(RANK, 1))
    total = ops.allreduce(x, codec="auto")
    own = ops.allreduce(total, comm=half, codec="auto")
    rows = ops.allgather(own)
    return ops.sendrecv(rows[0], dest=(RANK + 1) % 3, source=(RANK - 1) % 3)


def records(path):
    """Save rank 0's plans; ranks of other groups have their own calls."""
    on_hosts_of(1)
    if RANK == 0:
        named(f"{path}.profile", described(3))
    made = jcc.explain(step)(jnp.ones(1 << 18)).plans
    assert made.world == (1, 1, 1)
    codecs = [each.codec for each in made.calls.values()]
    assert codecs[0] == "lossless" and "sendrecv" not in {each.collective for each in made.calls}
    # The group of rank 0 has one call, the group of ranks 1 and 2 another one.
    made.missing = "auto"
    if RANK == 0:
        made.save(path)


def pinned(path):
    """All ranks follow rank 0's plan file, without the profile."""
    on_hosts_of(1)
    if RANK == 0:
        config.set("plan", path)
    comm.init()
    assert comm.planner() is None and comm.plans() == plan.load(path)
    x = jnp.ones(1 << 18)
    text = jax.jit(step).lower(x).as_text()
    (first, *_) = comm.plans().calls.values()
    assert f'algorithm = "{first.algorithm}"' in text and 'codec = "lossless"' in text
    # Row 0 is rank 0's: the world's sum, unchanged in its group of one.
    assert np.allclose(jax.jit(step)(x), 3), jax.jit(step)(x)
    # With missing="error", a call that is not in the file is an error on all ranks.
    comm.plans().missing = "error"
    try:
        jax.jit(lambda x: ops.allreduce(x)).lower(jnp.ones(7))
    except errors.InvalidArgumentError as error:
        assert "[7] on 3 ranks" in str(error) and "profile_worker.py:" in str(error)
    else:
        raise AssertionError("not refused")


def unlike_plans(path):
    """Different plans on different ranks are an error on all ranks."""
    on_hosts_of(1)
    if RANK == 2:
        made = plan.load(path)
        made.missing = "error"
        path += ".2"
        made.save(path)
    config.set("plan", path)
    refused("ranks [2] name another plan than rank 0", "plan")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
