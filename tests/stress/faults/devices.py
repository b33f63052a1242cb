"""Injects one kind of fault repeatedly into eight devices of one process.

    python tests/stress/faults/devices.py FAULT FIRST RUNS SEED

In each run four threads run one operation each, and device 3 causes the fault in all of them. A
fault that ends the process is injected once.
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
import numpy as np

import jaxccomp as jcc
from stress.faults import operations, record
from stress.faults.table import BY_NAME, OPERATIONS

DEVICES = 8
VICTIM = 3
COUNT = 64
LAUNCHES = 8
HANG_SECONDS = 60


def collective(operation, x):
    """Calls the operation on each device."""
    along = {"axis_name": "ranks"}
    if operation == "bcast":
        return jcc.bcast(x, root=VICTIM, **along)
    if operation == "allreduce":
        return jcc.allreduce(x, **along)
    if operation == "alltoall":
        return jcc.alltoall(x.reshape(DEVICES, -1), **along).reshape(-1)
    to = [(rank + 1) % DEVICES for rank in range(DEVICES)]
    return jcc.sendrecv(x, dest=to, source=[to.index(r) for r in range(DEVICES)], **along)


def expected(operation, values):
    """Returns the results of all devices."""
    if operation == "bcast":
        return np.broadcast_to(values[VICTIM], values.shape)
    if operation == "allreduce":
        return np.broadcast_to(values.sum(0), values.shape)
    if operation == "alltoall":
        return values.reshape(DEVICES, DEVICES, -1).swapaxes(0, 1).reshape(values.shape)
    return np.roll(values, 1, 0)


class Attempt:
    """One operation of one run."""

    def __init__(self, fault, operation, number):
        self.fault, self.operation, self.number = fault, operation, number
        self.text = self.wrong = ""
        self.seconds = 0.0

    def program(self, callback):
        mesh = jax.sharding.Mesh(jax.devices(), ("ranks",))

        def step(x):
            x = jax.pure_callback(
                callback,
                jax.ShapeDtypeStruct(x.shape, x.dtype),
                x,
                jax.lax.axis_index("ranks"),
            )
            return collective(self.operation, x[0])[None]

        specs = jax.sharding.PartitionSpec("ranks")
        return jax.jit(
            jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=specs, check_vma=False)
        )

    def launch(self, step, k):
        values = np.stack([operations.values(rank, k, COUNT) for rank in range(DEVICES)])
        begun = time.monotonic()
        try:
            got = np.asarray(step(values))
        finally:
            self.seconds = max(self.seconds, time.monotonic() - begun)
        if not np.array_equal(got, expected(self.operation, values)):
            self.wrong = f"launch {k}: {got[:, :2]}"

    def run(self, last=LAUNCHES):
        """Launches the program until the fault. Launches before and after it must succeed."""

        def load(x, rank):
            k = int(x[0, 0] - 10_000 * int(rank)) // 100
            if rank == VICTIM and k == 2:
                if self.fault.name.startswith("exception, caught"):
                    raise OSError("bad batch")
                if self.fault.name == "Ctrl-C":
                    disturb(self.fault, 0.2)
                    time.sleep(1.0)
            return x

        step = self.program(load)
        for k in range(last):
            try:
                self.launch(step, k)
            except Exception as error:
                self.text = f"{type(error).__name__}: {error}"
                if k != 2:
                    break
            if not self.fault.others:
                time.sleep(0.05)

    def record(self):
        # All devices run one program, so they share its error.
        for rank in range(DEVICES):
            record.write(
                rank,
                run=self.number,
                operation=self.operation,
                victim=rank if self.fault.name == "Ctrl-C" else VICTIM,
                seconds=round(self.seconds, 3),
                text=self.text,
                wrong=self.wrong,
            )


def disturb(fault, after):
    """Starts a process that interrupts or stops this one."""
    pid = os.getpid()
    signals = f"kill -INT {pid}"
    if "SIGSTOP" in fault.name:
        signals = f"kill -STOP {pid}; sleep 0.6; kill -CONT {pid}"
    return subprocess.Popen(["sh", "-c", f"sleep {after}; {signals}"])


def run_in_threads(attempts, **options):
    threads = [
        threading.Thread(target=each.run, name=each.operation, kwargs=options, daemon=True)
        for each in attempts
    ]
    for thread in threads:
        thread.start()
    return threads


def end(fault):
    record.write(0, died_at=time.time())
    if fault.name.startswith("SIGKILL"):
        os.kill(os.getpid(), signal.SIGKILL)
    if fault.name in ("exit status 3", "early exit"):
        os._exit(3)
    raise RuntimeError("boom")


def main(name, first, runs, seed):
    fault = BY_NAME[name]
    jcc.config.set("timeout_seconds", fault.seconds)
    for number in range(int(first), int(first) + int(runs)):
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        moment = random.Random(f"{seed}-{number}").uniform(0.05, 0.5)
        attempts = [
            Attempt(fault, each, number) for each in OPERATIONS if each not in fault.not_for
        ]
        if fault.ends_process:
            if not name.startswith("early"):
                run_in_threads(attempts, last=10_000)
                time.sleep(moment)
            end(fault)
        if fault.name == "Ctrl-C":
            run_interrupted(attempts)
        else:
            helper = disturb(fault, round(moment, 3)) if "SIGSTOP" in name else None
            for thread in run_in_threads(attempts):
                thread.join()
            if helper is not None:
                helper.wait()
        for attempt in attempts:
            attempt.record()
        after = Attempt(BY_NAME["SIGSTOP, SIGCONT in time"], "allreduce", number)
        after.run(last=1)
        if not after.text and not after.wrong:
            for rank in range(DEVICES):
                record.write(rank, run=number, usable=True)


def run_interrupted(attempts):
    """Runs one after the other, because only the main thread is interrupted."""
    for attempt in attempts:
        try:
            attempt.run(last=3)
            time.sleep(1.0)
        except KeyboardInterrupt:
            attempt.text = attempt.text or "KeyboardInterrupt"
        else:
            attempt.wrong = "no KeyboardInterrupt"


if __name__ == "__main__":
    # Background jobs of a shell ignore SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main(*sys.argv[1:])
