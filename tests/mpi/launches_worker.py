"""Programs whose launches may be mismatched: `mpiexec -n 2 python launches_worker.py CASE...`.

Each prints "right" if all values were right, or the error that it got. After a wrong value the
exit status is 1.
"""

import os
import pathlib
import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np

import jaxccomp as jcc

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import patience  # noqa: E402

LAUNCHES = 300
ORDERS = "may run them in different orders"
STEPS = 8


def expect(got, right):
    if not np.allclose(got, right):
        print(f"WRONG: {got} where {right} is right", flush=True)
        raise SystemExit(1)


def told(error):
    print(f"rank {jcc.world().rank} was told: {error}", flush=True)


def threads_of_one_communicator(rank):
    """Threads compile and run programs of equal shape."""
    done = []

    def run(factor):
        step = jax.jit(lambda x: jcc.allreduce(x * factor))
        for k in range(LAUNCHES):
            expect(step(jnp.float32(k)), 2 * k * factor)
        done.append(factor)

    threads = [threading.Thread(target=run, args=(factor,)) for factor in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expect(sorted(done), [1, 2, 3])


def threads_with_one_program(rank):
    """Threads launch one compiled program, in an order that differs by rank: refused."""
    step = jax.jit(jcc.allreduce)
    expect(step(jnp.float32(1)), 2)
    errors = []

    def run(factor):
        try:
            for k in range(LAUNCHES):
                expect(step(jnp.float32(k * factor)), 2 * k * factor)
        except Exception as error:
            errors.append(str(error))

    # Launches match only while threads run in the same order on both ranks; later ones are refused.
    threads = [threading.Thread(target=run, args=(factor,)) for factor in (1, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        told(error)


def threads_that_compile(rank):
    """A thread compiles local functions, while others compile collectives ahead of time."""
    stop = threading.Event()

    def local():
        i = 0
        while not stop.is_set():
            jax.jit(lambda x, i=i: x * 2 + i + rank)(1.0)
            i += 1

    compiled = {}

    def ahead(i):
        def step(x):
            return [jcc.allreduce(x + j) for j in range(8)]

        compiled[i] = jax.jit(step).lower(jnp.zeros(i + 1)).compile()

    background = threading.Thread(target=local, daemon=True)
    background.start()
    try:
        for _ in range(4):

            @jax.jit
            def program(x):
                out = []
                for _ in range(12):
                    x = jnp.cumsum(jnp.sort(x)) * 0.1
                    out.append((x, jcc.allreduce(x)))
                return out

            for own, total in program(jnp.arange(8.0)):
                expect(total, 2 * own)
        compilers = [threading.Thread(target=ahead, args=(i,)) for i in range(4)]
        for thread in compilers:
            thread.start()
        for thread in compilers:
            thread.join()
        for i in range(4):
            for j, total in enumerate(compiled[i](jnp.full(i + 1, float(rank)))):
                expect(total, 1 + 2 * j)
    finally:
        stop.set()
        background.join()


def threads_with_v_variants(rank):
    """Operations matched in program order are matched within each thread."""
    bad = []

    def run(factor):
        step = jax.jit(lambda x: jcc.allgatherv(jcc.barrier(x) * factor, [1, 1]))
        for k in range(LAUNCHES):
            if not np.array_equal(step(jnp.full(1, float(k + rank))), (np.arange(2) + k) * factor):
                bad.append((factor, k))

    threads = [threading.Thread(target=run, args=(factor,)) for factor in (1.0, 2.0, 3.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expect(len(bad), 0)


def threads_that_compile_one_name(rank):
    """Threads repeatedly compile programs of the same name at the same time."""
    reductions = ("sum", "max", "min")
    bad = []

    def work(part, comm, size):
        def program(x):
            first, second = reductions[part], reductions[(part + 1) % 3]
            return jcc.allreduce(x, first, comm=comm), jcc.allreduce(2 * x, second, comm=comm)

        step = jax.jit(program)
        try:
            for _ in range(2):
                jax.block_until_ready(step(jnp.ones(size)))
        except Exception as error:
            bad.append(str(error))

    for size in range(1, 21):
        comm = jcc.world().duplicate(f"round{size}")
        threads = [threading.Thread(target=work, args=(part, comm, size)) for part in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if bad:
        raise AssertionError(f"{len(bad)} of 60: {bad[0]}")


def programs_from_a_cache(rank):
    """With a shared folder for JAX's compilation cache: some ranks compile, others load."""
    folder = os.environ["JAXCCOMP_TEST_FOLDER"]
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)

    def make(comm):
        def program(x):
            inner = jax.jit(lambda x: jcc.allreduce(x, comm=comm))
            return inner(x), inner(x)

        return jax.jit(program)

    for i in range(6):
        comm = jcc.world().duplicate(f"c{i}")
        earlier = []
        for _ in range(3):
            # Executables with the same fingerprint, launched alternately.
            earlier.append(make(comm))
            for step in earlier:
                for got in step(jnp.full(i + 1, 3.0)):
                    expect(got, 6)


def debug_nans(rank):
    """JAX reruns a step operation by operation, on the rank that finds a NaN."""
    jax.config.update("jax_debug_nans", True)
    step = jax.jit(lambda x: jcc.allreduce(jnp.log(x), op="max"))
    for k in range(STEPS):
        x = jnp.float32(-1.0 if rank == 0 and k == 1 else np.exp(10.0 * k + rank))
        try:
            got = float(step(x))
        except FloatingPointError:
            continue
        if k != 1:
            expect(got, 10 * k + 1)


def _raises_in_callback(first):
    rank = jcc.world().rank

    def load(x):
        if rank == 1 and x == first:
            raise OSError("bad batch")
        return x

    def callback(x):
        return jax.pure_callback(load, jax.ShapeDtypeStruct((), jnp.float32), x)

    return callback


def callback_before(rank, first=2):
    """A callback raises on one rank before the only collective; the program continues."""
    callback = _raises_in_callback(first)
    step = jax.jit(lambda x: jcc.allreduce(callback(x)))
    for k in range(STEPS):
        try:
            expect(step(jnp.float32(k)), 2 * k)
        except Exception as error:
            if "bad batch" not in str(error):
                raise


def callback_before_the_first(rank):
    """The same in the program's first launch."""
    callback_before(rank, first=0)


def callback_between(rank):
    """A callback raises on one rank between two collectives."""
    callback = _raises_in_callback(2)
    step = jax.jit(lambda x: jcc.allreduce(callback(jcc.allreduce(x) / 2)))
    for k in range(STEPS):
        try:
            expect(step(jnp.float32(k)), 2 * k)
        except Exception as error:
            if "bad batch" not in str(error):
                raise


def left_out_of_lines(rank):
    """One rank skips one of several equal launches (with JAXCCOMP_CHECK_LAUNCHES=1)."""
    step = jax.jit(jcc.allreduce)
    expect(step(jnp.float32(0)), 0)
    if rank == 0:
        expect(step(jnp.float32(1)), 2)
    expect(step(jnp.float32(2)), 4)
    expect(step(jnp.float32(3)), 6)


def left_out_of_steps(rank):
    """The same in a loop (with JAXCCOMP_CHECK_LAUNCHES=1)."""
    step, k = jax.jit(jcc.allreduce), 0
    while k < STEPS:
        if rank == 1 and k == 3:
            k += 1
        jcc.step(k)
        expect(step(jnp.float32(k)), 2 * k)
        k += 1


def left_out_of_ordered_steps(rank):
    """A rank skips a message of an ordered communicator (with JAXCCOMP_CHECK_LAUNCHES=1)."""
    ordered = jcc.world().ordered()
    if rank == 0:
        step = jax.jit(lambda x: jcc.send(x, dest=1, comm=ordered))
    else:
        step = jax.jit(lambda x: jcc.recv(x, source=0, comm=ordered))
    for k in range(STEPS):
        if rank == 0 and k == 3:
            continue
        jcc.step(k)
        expect(step(jnp.float32(k)), k)
    jcc.allreduce(1.0, comm=ordered)


def other_orders_of_xla(rank):
    """A constant on one rank makes XLA start independent collectives in another order there."""
    arguments = jnp.ones(2), jnp.ones(3), True
    for quiet_seconds in (1.5, 6, 24):
        comm = jcc.world().duplicate(f"{quiet_seconds}")

        @jax.jit
        def step(x, rows, flag, comm=comm):
            y = jcc.alltoall(jnp.stack([x, 2 * x]), comm=comm)
            rows = jnp.where(flag, rows, 0) if rank == 0 else jnp.zeros(3)
            return y, jcc.allreduce(rows, comm=comm)

        compiled = step.lower(*arguments).compile()  # takes different times on the ranks
        jcc.barrier()
        with jcc.config.override(timeout_seconds=patience.seconds(quiet_seconds)):
            try:
                return jax.block_until_ready(compiled(*arguments))
            except Exception as error:
                # On a busy machine the other rank may start only after the deadline. Then both
                # ranks rightly get this error, without a hint about orders.
                if "They did not come to this operation" not in str(error) or ORDERS in str(error):
                    raise
    raise AssertionError("a rank has not begun within the longest deadline")


def stands_still(rank):
    """A rank is stopped in an operation until after the deadline; its message arrives meanwhile."""
    step = jax.jit(jcc.allreduce)
    expect(step(jnp.float32(1)), 2)
    seconds = patience.seconds(1)
    with jcc.config.override(timeout_seconds=seconds):
        jcc.barrier()
        if rank == 1:
            stops = f"sleep {seconds / 4}; kill -STOP {os.getpid()}"
            goes_on = f"sleep {2 * seconds}; kill -CONT {os.getpid()}"
            subprocess.Popen(["sh", "-c", f"{stops}; {goes_on}"])
        else:
            time.sleep(seconds / 2)
        expect(step(jnp.float32(2)), 4)


def uneven_batches(rank):
    """One rank recompiles for its last, smaller batch: it still counts as the same program."""
    step = jax.jit(lambda batch: jcc.allreduce(batch.sum()))
    for k in range(3 * STEPS):
        batch = jnp.full(3 if rank == 1 and k % 4 == 3 else 6, float(k))
        expect(step(batch), k * (6 + (3 if k % 4 == 3 else 6)))


def collectives_in_branches(rank):
    """In some launches a condition skips the collectives, equally on all ranks."""
    step = jax.jit(lambda k, x: jax.lax.cond(k % 3 == 0, lambda: jcc.allreduce(x), lambda: x * 0))
    for k in range(3 * STEPS):
        expect(step(k, jnp.float32(k)), 2 * k if k % 3 == 0 else 0)


def main(*cases):
    rank = jcc.init().rank
    for case in cases:
        try:
            globals()[case](rank)
        except SystemExit:
            raise
        except Exception as error:
            told(error)
        else:
            print(f"rank {rank}, {case}: right", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
