r"""Compares random programs of `jit` with shardings with NumPy: XLA adds their collectives.

    mpiexec -n 4 python -m jaxccomp run --xla tests/stress/sharded_programs.py --minutes 5
    mpiexec -n 2 python -m jaxccomp run --xla --policy "* lossless" \
        tests/stress/sharded_programs.py --devices 2

All processes draw program i from (seed, i): up to three chains of steps, on a mesh of four devices,
2 x 2 or 4 x 1. After each step the array gets a random sharding. Values are small integers, so that
sums are exact in any order. ``--first I --programs 1`` runs program I again. XLA warns of shardings
that it reaches by replication; TF_CPP_MIN_LOG_LEVEL=2 hides these warnings.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import faulthandler
import itertools
import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

# Programs between two checks of the time limit by all processes.
AGREE_EVERY = 10
# JAX keeps compiled programs; thousands would fill the memory.
FORGET_EVERY = 200
HANG_SECONDS = 600
RUNS = 3
# Values stay below it, so that a sum of products is exact in float32.
BOUND = 13
LENGTHS = (8, 16, 64, 256)
DTYPES = ("float32", "float64", "int32")
SHAPES = ((2, 2), (4, 1))
ORDERS = ((0, 1, 2, 3), (3, 2, 1, 0), (1, 2, 3, 0))
SPECS = tuple(
    (a, b)
    for a, b in itertools.product((None, "x", "y", ("x", "y"), ("y", "x")), repeat=2)
    if not set(a or ()) & set(b or ())  # an axis divides one dimension only
)

# Of an array namespace, a matrix, another matrix and a number. Results are integers from 0.
Step = Callable[[Any, Any, Any, int], Any]
STEPS: dict[str, Step] = {
    "reshard": lambda xp, x, y, n: x + n,
    "product": lambda xp, x, y, n: xp.einsum("ij,jk->ik", x, y),
    "sum": lambda xp, x, y, n: x + xp.sum(x, axis=n % 2, keepdims=True) % 7,
    "max": lambda xp, x, y, n: xp.max(x, axis=n % 2, keepdims=True) - x,
    "roll": lambda xp, x, y, n: xp.roll(x, n, axis=n % 2),
    "flip": lambda xp, x, y, n: xp.flip(x, axis=n % 2),
    "transpose": lambda xp, x, y, n: x.T,
}


@dataclasses.dataclass(frozen=True)
class Chain:
    """A matrix, and the steps on it: name, number and sharding of the result of each."""

    dtype: str
    shape: tuple[int, int]
    spec: Any
    other_spec: Any  # of the second factor of products
    steps: tuple[tuple[str, int, Any], ...]


@dataclasses.dataclass(frozen=True)
class Program:
    """Chains of steps that do not depend on each other, on a mesh."""

    mesh: tuple[int, int]
    order: tuple[int, ...]
    chains: tuple[Chain, ...]


def draw(seed: int, number: int) -> Program:
    rng = random.Random(f"{seed} {number}")

    def chain() -> Chain:
        steps = [
            (rng.choice(list(STEPS)), rng.randrange(1, 8), rng.choice(SPECS))
            for _ in range(rng.randint(1, 5))
        ]
        shape = (rng.choice(LENGTHS), rng.choice(LENGTHS))
        return Chain(rng.choice(DTYPES), shape, rng.choice(SPECS), rng.choice(SPECS), tuple(steps))

    chains = tuple(chain() for _ in range(rng.randint(1, 3)))
    return Program(rng.choice(SHAPES), rng.choice(ORDERS), chains)


def results(xp: Any, chain: Chain, x: Any, place: Callable[[Any, Any], Any]) -> list[Any]:
    """Return the array after each step; ``place`` gives an array a sharding."""
    found = []
    for name, number, spec in chain.steps:
        length = x.shape[1]
        y = xp.arange(length * length).reshape(length, length) % 5
        y = place(y.astype(chain.dtype), chain.other_spec)
        x = place(STEPS[name](xp, x, y, number) % BOUND, spec)
        found.append(x)
    return found


class Runner:
    """Runs programs on the devices of all processes, and counts."""

    def __init__(self) -> None:
        self.counts: collections.Counter[str] = collections.Counter()

    def run(self, program: Program, seed: int) -> list[str]:
        """Run a program several times; return descriptions of wrong values."""
        import jax
        import jax.numpy as jnp
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        devices = np.array(jax.devices())[list(program.order)].reshape(program.mesh)
        mesh = Mesh(devices, ("x", "y"))

        def sharding(spec: Any) -> Any:
            return NamedSharding(mesh, PartitionSpec(*spec))

        def place(x: Any, spec: Any) -> Any:
            return jax.lax.with_sharding_constraint(x, sharding(spec))

        @jax.jit
        def whole(operands: list[Any]) -> list[list[Any]]:
            pairs = zip(program.chains, operands, strict=True)
            return [results(jnp, chain, x, place) for chain, x in pairs]

        inputs, outputs = [], []
        for launch in range(RUNS):
            rng = np.random.default_rng([seed, launch])
            values = [rng.integers(0, BOUND, c.shape).astype(c.dtype) for c in program.chains]
            inputs.append(values)
            outputs.append(
                whole(
                    [
                        jax.make_array_from_callback(
                            x.shape, sharding(chain.spec), lambda index, x=x: x[index]
                        )
                        for chain, x in zip(program.chains, values, strict=True)
                    ]
                )
            )
        wrong = []
        for launch, (values, found) in enumerate(zip(inputs, outputs, strict=True)):
            for chain, x, arrays in zip(program.chains, values, found, strict=True):
                expected = results(np, chain, x, lambda x, spec: x)
                for step, (array, right) in enumerate(zip(arrays, expected, strict=True)):
                    for shard in array.addressable_shards:
                        self.counts["shards"] += 1
                        if not np.array_equal(shard.data, right[shard.index]):
                            where = f"launch {launch}, step {step}, device {shard.device.id}"
                            wrong.append(f"{where} of {chain}")
        self.counts["programs"] += 1
        self.counts["wrong"] += len(wrong)
        return wrong


def say(text: str) -> None:
    """Write in one call, because several processes write to one terminal."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first program")
    parser.add_argument("--minutes", type=float, default=0, help="stop then; 0: never")
    parser.add_argument("--devices", type=int, default=1, help="of each process")
    parser.add_argument("--verbose", action="store_true", help="print each program before it runs")
    arguments = parser.parse_args()
    # LLVM's optimisation is most of the cost, and irrelevant to collectives.
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0"
    os.environ["XLA_FLAGS"] = flags

    import jax
    from jax.experimental import multihost_utils

    jax.config.update("jax_num_cpu_devices", arguments.devices)
    jax.config.update("jax_enable_x64", True)
    jax.distributed.initialize(cluster_detection_method="mpi4py")
    if jax.device_count() != 4:
        parser.error(f"the meshes have 4 devices, and the processes {jax.device_count()}")

    import jaxccomp

    runner, begun = Runner(), time.monotonic()
    for count in range(arguments.programs):
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        if arguments.minutes and count % AGREE_EVERY == 0:
            is_up = time.monotonic() - begun > 60 * arguments.minutes
            if multihost_utils.broadcast_one_to_all(np.int32(is_up)):
                break
        number = arguments.first + count
        program = draw(arguments.seed, number)
        if arguments.verbose and jax.process_index() == 0:
            say(f"{number}: {program}")
        try:
            wrong = runner.run(program, number)
        except Exception:
            say(f"ERROR on process {jax.process_index()} in {number}: {program}")
            raise
        for each in wrong[:3]:
            say(f"WRONG on process {jax.process_index()} in {number}: {each}")
        if count % FORGET_EVERY == FORGET_EVERY - 1:
            jax.clear_caches()
    faulthandler.cancel_dump_traceback_later()
    own = [runner.counts[name] for name in ("shards", "wrong")]
    shards, wrong_shards = multihost_utils.process_allgather(np.array(own)).sum(axis=0)
    if jax.process_index() == 0:
        calls: collections.Counter[str] = collections.Counter()
        for row in jaxccomp.stats.log().rows:
            calls[f"{row.operation} {row.codec}"] += row.calls
        seconds = time.monotonic() - begun
        say(
            f"{jax.process_count()} processes, seed {arguments.seed}: {runner.counts['programs']} "
            f"programs, {shards} shards compared, {wrong_shards} wrong, {seconds:.1f} s; calls of "
            f"process 0: {', '.join(f'{name} {n}' for name, n in sorted(calls.items()))}"
        )
    return int(wrong_shards > 0)


if __name__ == "__main__":
    sys.exit(main())
