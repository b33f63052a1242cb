"""A jax.distributed process without MPI: `program_worker.py CASE`. Prints one JSON object."""

import ctypes
import json
import os
import pathlib
import platform
import signal
import struct
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxccomp as jcc
from jaxccomp._native import engine

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import patience  # noqa: E402

ROOT = pathlib.Path(__file__).parents[2]


def styles(rank, ranks):
    """shard_map over the mesh of all processes' devices, and a communicator of processes."""
    mesh = jax.make_mesh((ranks,), ("data",))
    rows = np.stack([np.linspace(-1, 1, 5000, dtype=np.float32) * (r + 1) for r in range(ranks)])
    x = jax.make_array_from_callback(
        rows.shape, NamedSharding(mesh, P("data")), lambda index: rows[index]
    )

    def mapped(function):
        whole = jax.jit(jax.shard_map(function, mesh=mesh, in_specs=P("data"), out_specs=P("data")))
        return np.asarray(whole(x).addressable_shards[0].data)

    coded = mapped(lambda v: jcc.lax.psum(v, "data", codec="int8", backend="native"))
    exact = mapped(lambda v: jcc.lax.psum(v, "data", codec="lossless", backend="native"))
    gathered = mapped(
        lambda v: jcc.allgather(
            jnp.full(1, jax.lax.axis_index("data"), jnp.float32), axis_name="data", backend="native"
        ).reshape(1, ranks)
    )
    total = rows.sum(0)
    return {
        "way": engine.load().describe()["transports"],
        "sum": int(np.asarray(jcc.allreduce(np.int32(rank + 1)))),
        "largest_error": float(np.abs(coded[0] - total).max()),
        "bound": float(np.abs(rows).max()) * ranks * ranks / 127,
        "bits_alike": bool((exact[0] == total).all()),
        "gathered": gathered[0].tolist(),
        "by_rank": int(jcc.allreduce(np.arange(rank + 1, rank + 2), codec="lossless")[0]),
    }


def total_of_ones(names, ranks):
    """Return the documented program's `total` of ones on each device of its `mesh`."""
    rows = np.ones((ranks, 300), np.float32)
    x = jax.make_array_from_callback(
        rows.shape, NamedSharding(names["mesh"], P("data")), lambda index: rows[index]
    )
    total = jax.jit(names["total"])(x).addressable_shards[0].data
    return np.asarray(total).ravel()[:2].tolist()


def joins_by(shown, code, rank, ranks):
    """Return the code with this test's coordinator and ranks."""
    assert shown in code
    coordinator = os.environ["JAXCCOMP_TEST_COORDINATOR"]
    return code.replace(shown, f'initialize("{coordinator}", {ranks}, {rank})')


def documented(rank, ranks):
    """Run the program of docs/jax_distributed.md, which joins implicitly."""
    code = (ROOT / "docs/jax_distributed.md").read_text().split("```python\n")[1].split("```")[0]
    shown = 'initialize("10.0.0.1:1234", num_processes=2, process_id=0)'
    names = {}
    exec(joins_by(shown, code, rank, ranks), names)
    return {"total": total_of_ones(names, ranks), "mine": names["mine"].tolist()}


def readme(rank, ranks):
    """Run the README's program of jax.distributed."""
    code = (ROOT / "README.md").read_text().split("```python\n")[2].split("```")[0]
    names = {"jax": jax, "jcc": jcc}
    exec(joins_by("initialize()", code, rank, ranks), names)
    return {"total": total_of_ones(names, ranks)}


def killed(rank, ranks):
    """Rank 1 dies; the others get an error while they wait, and continue without it."""
    world = jcc.init()
    step = jax.jit(lambda x: jcc.allreduce(x))
    x = jnp.ones(300_000, jnp.float32)
    step(x).block_until_ready()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    found = {"error": "none"}
    try:
        for _ in range(1000):
            step(x).block_until_ready()
    except Exception as error:  # noqa: BLE001 - only its text is used
        found["error"] = str(error)
    found["at_deadline"] = patience.at_deadline(found["error"])
    alive = world.shrink()
    found["survivors"] = list(alive.processes)
    found["sum"] = float(jcc.allreduce(np.float32(1), comm=alive))
    return found


def stopped(rank, ranks):
    """Rank 1 is stopped from outside: a rank that waits for it names it at the deadline."""
    world = jcc.init()
    jcc.barrier()
    if rank == 1:
        print("ready", flush=True)
        time.sleep(60)
        return {}
    try:
        with jcc.config.override(timeout_seconds=3.0):
            jax.block_until_ready(jcc.allreduce(np.float32(1), comm=world))
        error = "none"
    except Exception as caught:  # noqa: BLE001 - only its text is used
        error = str(caught)
    return {"error": error, "at_deadline": patience.at_deadline(error)}


def forbid_reads():
    """Forbid this process to read other processes' memory, with seccomp."""
    call, seccomp = {"x86_64": (310, 317), "aarch64": (270, 277)}[platform.machine()]
    # Load the system call's number; return EPERM for process_vm_readv; allow all others.
    rows = (0x20, 0, 0, 0), (0x15, 0, 1, call), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7FFF0000)
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *row) for row in rows))
    program = ctypes.create_string_buffer(struct.pack("HP", len(rows), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # no new privileges
    assert libc.syscall(seccomp, 1, 1, program) == 0, os.strerror(ctypes.get_errno())  # all threads


def large(rank, ranks, what=""):
    """Values of several megabytes, with and without a codec, in one message and in many."""
    if rank == 1 and what == "keeps":
        jcc.config.set("ucx_cma", "off")
    if rank == 1 and what == "refused":
        forbid_reads()
    jcc.init()
    if rank == 1 and what == "later":
        assert "ucx+cma" in engine.load().describe()["transports"]
        forbid_reads()
    rows = np.stack([np.arange(1_500_000, dtype=np.float32) % (97 + r) for r in range(ranks)])
    own, total = jnp.asarray(rows[rank]), rows.sum(0)
    leaves = {str(i): own[1000 * i : 1000 * (i + 1)] for i in range(300)}
    alike = []
    for _ in range(5):
        alike.append(bool((jcc.bcast(own, root=1) == rows[1]).all()))
        alike.append(bool((jcc.allreduce(own) == total).all()))
        alike.append(bool((jcc.allreduce(own, codec="lossless") == total).all()))
        alike.append(bool((jcc.allgather(own) == rows).all()))
        summed = jcc.allreduce(leaves)
        alike.append(all((summed[name][0] == total[1000 * int(name)]) for name in leaves))
    return {"way": engine.load().describe()["transports"], "alike": [bool(each) for each in alike]}


def idle(rank, ranks):
    """Count how often the engine's thread wakes without any calls."""
    jcc.init()
    jax.block_until_ready(jcc.allreduce(np.ones(100_000, np.float32)))
    time.sleep(1)

    def switches():
        """Return how often the engine's thread has slept."""
        found = 0
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/status", encoding="utf-8") as file:
                lines = dict(line.split(":", 1) for line in file if ":" in line)
            if lines["Name"].strip() == "jaxccomp":
                found += int(lines["voluntary_ctxt_switches"])
        assert found > 0
        return found

    before = switches()
    time.sleep(5)
    woken = switches() - before
    jcc.barrier()
    return {"woken": woken}


def shares(rank, ranks):
    """Send small values, and count UCX's mapped shared-memory files."""
    jcc.init()
    total = jcc.allreduce(np.arange(1000.0, dtype=np.float32))
    lines = pathlib.Path("/proc/self/maps").read_text().splitlines()
    return {
        "alike": bool((np.asarray(total) == ranks * np.arange(1000)).all()),
        "mapped": sum("ucx_shm_posix" in line for line in lines),
    }


def lacking(rank, ranks):
    """Report the errors of calls without a usable UCX."""
    found = {}
    with jcc.config.override(transport="ucx"):
        try:
            jcc.init()
        except jcc.errors.InitializationError as error:
            found["asked"] = str(error)
    jcc.init()
    found["way"] = engine.load().describe()["transports"]
    try:
        jcc.allreduce(np.ones(3))
    except jcc.errors.EngineUnavailableError as error:
        found["error"] = str(error)
    return found


def main(case, *details):
    rank, ranks = (int(os.environ[f"JAXCCOMP_TEST_{name}"]) for name in ("RANK", "RANKS"))
    if case not in ("documented", "readme"):
        jax.distributed.initialize(os.environ["JAXCCOMP_TEST_COORDINATOR"], ranks, rank)
    print(json.dumps(globals()[case](rank, ranks, *details)), flush=True)
    if case in ("killed", "stopped"):
        # jax.distributed's exit fails if a process is missing.
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
