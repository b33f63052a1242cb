"""Injects one kind of fault repeatedly into three ranks, which survive.

    mpiexec -n 3 python tests/stress/faults/rank.py FAULT FIRST RUNS SEED

In each run four threads run one operation each, with their own communicators, and rank 1 causes the
fault in all of them.
"""

from __future__ import annotations

import faulthandler
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

import jax
import jax.numpy as jnp
import numpy as np

import jaxccomp as jcc
from stress.faults import operations, record
from stress.faults.table import BY_NAME, OPERATIONS

VICTIM = 1
COUNT = 64
LARGE = 4 << 20  # 16 MiB
LAUNCHES = 8
HANG_SECONDS = 60


class Wrong(Exception):
    """A wrong value."""


class Attempt:
    """One operation of one run."""

    def __init__(self, fault, operation, world, number):
        self.fault, self.operation, self.number = fault, operation, number
        self.comm = operations.communicator(
            operation, world.duplicate(f"{operation.replace('/', '_')}{number}")
        )
        self.is_victim = world.rank == VICTIM
        self.text = self.wrong = ""
        self.seconds = 0.0

    def program(self, count=COUNT, dtype=np.float32, codec=None, callback=None, root=VICTIM):
        """Returns a launch of a new program: it takes the launch number, and checks the results."""

        @jax.jit
        def step(x):
            if callback is not None:
                x = jax.pure_callback(callback, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
            return operations.run(self.operation, x, self.comm, root, codec)

        def launch(k):
            rank = self.comm.rank
            inputs = [operations.values(r, k, count) for r in range(self.comm.size)]
            x = jnp.asarray(inputs[rank], dtype)
            self.begun = time.monotonic()
            got = np.asarray(step(x))
            right = operations.expected(self.operation, inputs, rank, root)
            if not np.array_equal(got, right):
                raise Wrong(f"launch {k}: {got.ravel()[:3]} for {right.ravel()[:3]}")

        return launch

    # --- The faults: all ranks' action, and the victim's -------------------------------------

    def differs(self, **others):
        self.program(**(others if self.is_victim else {}))(0)

    def shape(self):
        self.differs(count=COUNT + 1)

    def dtype(self):
        self.differs(dtype=np.int32)

    def codec(self):
        self.differs(codec="lossless")

    def order(self):
        first, second = self.program(), self.program(count=COUNT - 1)
        for launch in (second, first) if self.is_victim else (first, second):
            launch(0)

    def exception(self):
        calls = []

        def load(x):
            calls.append(x)
            if self.is_victim and len(calls) == 3:
                raise OSError("bad batch")
            return x

        launch = self.program(callback=load)
        caught = None
        for k in range(LAUNCHES):
            jcc.step(k)
            try:
                launch(k)
            except Exception as error:
                # The program continues after the error.
                if "bad batch" not in str(error):
                    raise
                caught = error
        if caught is not None:
            raise caught

    def skip(self):
        launch = self.program()
        for k in range(LAUNCHES):
            if self.is_victim and k == 2:
                continue
            jcc.step(k)
            launch(k)
        self.meet()

    def rerun(self):
        launch = self.program()
        for k in range(LAUNCHES):
            jcc.step(k)
            launch(k)
            if self.is_victim and k == 2:
                launch(k)
        self.meet()

    def interrupt(self):
        # The victim waits for another rank.
        launch = self.program(root=(VICTIM + 1) % self.comm.size)
        launch(0)
        self.begun = time.monotonic()
        if self.is_victim:
            disturb(self.fault, 0.2)
        else:
            time.sleep(0.8)
        launch(1)
        self.meet()

    def meet(self):
        """Ranks that only send or only receive get the other ranks' error here."""
        jax.block_until_ready(jax.jit(lambda x: jcc.allreduce(x, comm=self.comm))(1.0))

    def stopped(self):
        launch = self.program(LARGE if self.fault.name == "late payload" else COUNT)
        end = time.monotonic() + 1.0 + 2 * self.fault.seconds
        k = 0
        # If the deadline is not reached, all ranks do the same number of launches.
        while k < 100 if not self.fault.others else time.monotonic() < end:
            launch(k)
            if not self.fault.others:
                time.sleep(0.01)
            k += 1

    FAULTS = {
        "exception, caught": exception,
        "exception, caught, check_launches": exception,
        "shape": shape,
        "dtype": dtype,
        "codec": codec,
        "order": order,
        "skip": skip,
        "re-run": rerun,
        "Ctrl-C": interrupt,
        "SIGSTOP, SIGCONT in time": stopped,
        "SIGSTOP, SIGCONT too late": stopped,
        "late payload": stopped,
    }

    def run(self):
        """Runs it, and records the result."""
        self.begun = time.monotonic()
        try:
            self.FAULTS[self.fault.name](self)
        except Wrong as error:
            self.wrong = str(error)
        except Exception as error:
            self.text = f"{type(error).__name__}: {error}"
        self.seconds = time.monotonic() - self.begun

    def record(self):
        record.write(
            self.comm.rank,
            run=self.number,
            operation=self.operation,
            victim=VICTIM,
            seconds=round(self.seconds, 3),
            text=self.text,
            wrong=self.wrong,
        )


def disturb(fault, after):
    """Starts a process that interrupts or stops the victim."""
    pid = os.getpid()
    if fault.name == "Ctrl-C":
        script = f"sleep {after}; kill -INT {pid}"
    elif "SIGSTOP" in fault.name or fault.name == "late payload":
        stopped = 0.6 if not fault.others else 2 * fault.seconds + 1
        script = f"sleep {after}; kill -STOP {pid}; sleep {stopped}; kill -CONT {pid}"
    else:
        return None
    return subprocess.Popen(["sh", "-c", script])


def run_in_threads(attempts):
    threads = [threading.Thread(target=each.run, name=each.operation) for each in attempts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def run_interrupted(attempts, is_victim):
    """Runs one after the other, because only the main thread is interrupted."""
    for attempt in attempts:
        came = not is_victim
        try:
            attempt.run()
            # The operation has failed; wait until Python raises the interrupt.
            time.sleep(1.0 if is_victim else 0.0)
        except KeyboardInterrupt:
            came = True
            attempt.text = attempt.text or "KeyboardInterrupt"
        if not came:
            attempt.wrong = "no KeyboardInterrupt"


def check_memory(seconds):
    """Returns whether released memory stays unchanged.

    The new arrays reuse the memory of failed operations.
    """
    mine = [np.full(LARGE, 7.0, np.float32) for _ in range(16)]
    time.sleep(seconds)
    return all((each == 7.0).all() for each in mine)


def main(name, first, runs, seed):
    fault = BY_NAME[name]
    world = jcc.init()
    for number in range(int(first), int(first) + int(runs)):
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        jcc.config.set("timeout_seconds", 30)
        sync = world.duplicate(f"sync{number}")
        total = jcc.allreduce(jnp.float32(world.rank), comm=sync)
        if float(total) != sum(range(world.size)):
            raise Wrong(f"a sum of {total} after a fault")
        if number > int(first):
            record.write(world.rank, run=number - 1, usable=True)
        sync.free()
        jcc.config.set("timeout_seconds", fault.seconds)
        attempts = [
            Attempt(fault, operation, world, number)
            for operation in OPERATIONS
            if operation not in fault.not_for
        ]
        moment = random.Random(f"{seed}-{number}").uniform(0.05, 0.5)
        is_victim = world.rank == VICTIM
        if fault.name == "Ctrl-C":
            run_interrupted(attempts, is_victim)
            helper = None
        else:
            helper = disturb(fault, round(moment, 3)) if is_victim else None
            run_in_threads(attempts)
        for attempt in attempts:
            attempt.record()
        if fault.name == "late payload" and not is_victim:
            intact = check_memory(fault.seconds + 2)
            record.write(world.rank, run=number, intact=intact)
        if helper is not None:
            helper.wait()
        for each in attempts:
            each.comm.free()
    jcc.config.set("timeout_seconds", 30)
    total = jcc.allreduce(jnp.float32(world.rank), comm=world.duplicate("last"))
    if float(total) == sum(range(world.size)):
        record.write(world.rank, run=int(first) + int(runs) - 1, usable=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main(*sys.argv[1:])
