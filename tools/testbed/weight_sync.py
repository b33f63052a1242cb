"""Measures weight updates from a trainer to actors over slow links.

    python -m testbed.weight_sync --json docs/results/weight_sync.jsonl

Reports the bytes and seconds of a version, and the slowdown of the actors' steps.

One host emulates a trainer: float32 weights move by steps of known size and are rounded to
bfloat16. The other hosts are actors: they repeat a local step, and take the latest weights.
Three ways to send weights are compared: `jaxccomp.sync` with ``delta``, `jaxccomp.sync` with
``lossless`` for the differences, and a blocking broadcast of all values for each version. With
`jaxccomp.sync` the trainer alternates between publishing and pausing, to compare the actors' steps
with and without new versions. If there are enough cores, each host's rank is pinned to one.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import threading
import time
from typing import Any

from testbed import scenario, workers

WAYS = ("delta", "lossless", "broadcast")
_ON_SECONDS = _OFF_SECONDS = 6.0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m testbed.weight_sync", description=__doc__)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--link", default="100mbit")
    parser.add_argument("--values", type=int, default=20_000_000, help="number of weights")
    parser.add_argument("--versions", type=int, default=100, help="broadcast: a tenth of it")
    parser.add_argument("--period", type=float, default=1.0, help="seconds between versions")
    parser.add_argument("--rate", type=float, default=1e-6, help="the size of a step")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)  # of the worker
    return scenario.run(parser, _measure, worker="way", work=_work)


def _measure(given: argparse.Namespace) -> list[scenario.Line]:
    from testbed.bed import Testbed

    rows = []
    with Testbed(given.hosts, given.link) as bed:
        goodput = statistics.median(bed.measure_goodput().values())
        for way in WAYS:
            program = [__file__, "--way", way]
            program += scenario.options(given, "hosts", "values", "versions", "period", "rate")
            env = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
            found = workers.run(program, bed, env=env, timeout_seconds=900)
            rows.append(_row(way, given, goodput, found))
            print(rows[-1], flush=True)
    return rows


def _row(
    way: str, given: argparse.Namespace, goodput: float, found: workers.Found
) -> dict[str, Any]:
    trainer = next(each for each in found.said if each["trains"])
    actors = [each for each in found.said if not each["trains"]]
    versions = trainer["versions"]
    full, rounded = 2 * given.values, scenario.rounded
    row = {
        "way": way,
        "hosts": given.hosts,
        "link": given.link,
        "values": given.values,
        "versions": versions,
        "changed": rounded(trainer["changed"]),
        "goodput_GBps": rounded(goodput / 1e9),
        # Without the first version, which is sent in full.
        "bytes_per_version": rounded(trainer["sent"] / max(1, versions - 1)),
        "ratio": rounded(full * (versions - 1) / max(1, trainer["sent"])),
        "received_bytes_of_all_versions": found.received_bytes,
        "seconds_per_version": rounded(statistics.median(s for a in actors for s in a["ages"])),
        "publish_seconds": rounded(trainer["publish"]),
        "bit_exact": all(a["right"] for a in actors),
    }
    if way != "broadcast":
        row["step_ms"] = rounded(1e3 * statistics.median(a["off"] for a in actors))
        row["step_ratio_while_versions_come"] = rounded(
            statistics.median(a["on"] / a["off"] for a in actors)
        )
    return row


def _work(given: argparse.Namespace) -> None:
    import jaxccomp as jcc
    from jaxccomp._runtime import mpi

    if given.hosts <= len(cores := sorted(os.sched_getaffinity(0))):
        # Pin before JAX starts its threads, or a step would use other hosts' cores.
        os.sched_setaffinity(0, cores[mpi.launcher().rank :][:1])
    world = jcc.init()
    versions = given.versions if given.way != "broadcast" else max(3, given.versions // 10)
    act = _broadcast if given.way == "broadcast" else _train if world.rank == 0 else _act
    found = act(given, world, versions)
    workers.say(found)


def _updates(given: argparse.Namespace, versions: int) -> Any:
    """Yields each version in bfloat16: the initial weights, then the weights after each step."""
    import ml_dtypes
    import numpy as np

    random = np.random.default_rng(0)
    exact = random.standard_normal(given.values, np.float32) * np.float32(0.02)
    # Like an optimiser's steps: mostly small, some larger (see tools/weight_updates.py).
    steps = given.rate * random.gamma(0.2, 2.1, given.values) * random.choice((-1, 1), given.values)
    steps = steps.astype(np.float32)
    for version in range(versions):
        yield exact.astype(ml_dtypes.bfloat16)
        exact += np.roll(steps, 1013 * version)


def _train(given: argparse.Namespace, world: Any, versions: int) -> dict[str, Any]:
    import numpy as np

    import jaxccomp as jcc
    from jaxccomp import sync

    # Compute all versions first, since actors share the cores.
    updates = list(_updates(given, versions))
    changed = [
        float(np.mean(a.view(np.uint16) != b.view(np.uint16)))
        for a, b in itertools.pairwise(updates)
    ]
    crc = _crc(updates[-1])
    publish, first = [], None
    with sync.Publisher(np.zeros(given.values, _bfloat16()), codec=given.way) as publisher:
        start = time.time()
        for weights in updates:
            while (time.time() - start) % (_ON_SECONDS + _OFF_SECONDS) > _ON_SECONDS:
                time.sleep(0.01)  # in a pause
            begun = time.perf_counter()
            publisher.publish(weights)
            publish.append(time.perf_counter() - begun)
            if first is None:
                publisher.flush()
                first = jcc.stats.get().operations["bcast"].sent_bytes
                start = time.time()
            time.sleep(max(0.0, given.period - (time.perf_counter() - begun)))
        publisher.flush()
        sent = jcc.stats.get().operations["bcast"].sent_bytes - first
    jcc.bcast(np.array([start]).view(np.int32), root=0)
    jcc.bcast(np.uint32(crc), root=0)
    return {
        "trains": True,
        "versions": versions,
        "sent": sent,
        "changed": statistics.median(changed),
        "publish": statistics.median(publish[1:]),
    }


def _act(given: argparse.Namespace, world: Any, versions: int) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp
    import numpy as np

    import jaxccomp as jcc
    from jaxccomp import sync

    ages: list[float] = []
    step = jax.jit(lambda x: jnp.tanh(x @ x))
    x = step(jnp.ones((384, 384)) / 384).block_until_ready()
    steps: list[tuple[float, float]] = []
    with sync.Receiver(
        jax.ShapeDtypeStruct((given.values,), jnp.bfloat16), codec=given.way
    ) as receiver:

        def watch() -> None:
            version = 0
            while version < versions:
                weights = receiver.wait(version, timeout=300)
                version = weights.version
                if version > 1:
                    ages.append(time.time() - weights.published_at)

        watcher = threading.Thread(target=watch, name="watch")
        watcher.start()
        while watcher.is_alive():
            begun = time.time()
            x = step(x).block_until_ready()
            steps.append((begun, time.time() - begun))
            time.sleep(0.02)  # all hosts share the cores
        crc = _crc(np.asarray(receiver.latest().params))
    start = np.asarray(jcc.bcast(np.zeros(2, np.int32), root=0)).view(np.float64)[0]
    wanted = int(jcc.bcast(np.uint32(0), root=0))
    length = _ON_SECONDS + _OFF_SECONDS
    on = [took for at, took in steps if at > start and (at - start) % length < _ON_SECONDS]
    off = [took for at, took in steps if at > start and (at - start) % length > _ON_SECONDS + 1]
    return {
        "trains": False,
        "ages": ages,
        "on": statistics.mean(on),
        "off": statistics.mean(off),
        "right": crc == wanted,
    }


def _broadcast(given: argparse.Namespace, world: Any, versions: int) -> dict[str, Any]:
    import jax
    import numpy as np

    import jaxccomp as jcc

    call = jax.jit(lambda v: jcc.bcast(v, root=0, algorithm="chain"))
    values = np.zeros(given.values, _bfloat16())
    ages, changed, before = [], [], None
    right = True
    sent = 0
    updates = _updates(given, versions) if world.rank == 0 else range(versions)
    for number, weights in enumerate(updates):
        value = jax.device_put(weights if world.rank == 0 else values)
        jcc.barrier()
        begun = time.perf_counter()
        result = call(value).block_until_ready()
        if number > 0:
            ages.append(time.perf_counter() - begun)
        if number == 0:
            sent = -jcc.stats.get().operations["bcast"].sent_bytes
        if world.rank == 0 and before is not None:
            changed.append(float(np.mean(before != weights.view(np.uint16))))
        before = weights.view(np.uint16) if world.rank == 0 else None
        right &= int(jcc.bcast(np.uint32(_crc(np.asarray(result))), root=0)) == _crc(
            np.asarray(result)
        )
    sent += jcc.stats.get().operations["bcast"].sent_bytes
    found = {"trains": world.rank == 0, "ages": ages, "right": right}
    if world.rank == 0:
        publish = statistics.median(ages)
        found |= {"versions": versions, "sent": sent, "publish": publish}
        found["changed"] = statistics.median(changed)
    return found


def _bfloat16() -> Any:
    import ml_dtypes
    import numpy as np

    return np.dtype(ml_dtypes.bfloat16)


def _crc(values: Any) -> int:
    import zlib

    return zlib.crc32(values.tobytes())


if __name__ == "__main__":
    sys.exit(main())
