"""One rank of a comparison: times the profile's choice and all alternatives, in turns."""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import jaxccomp as jcc
from jaxccomp import codecs, comm, schedules
from testbed import collectives, own, workers
from testbed.planner import points
from testbed.scenario import rounded

CODECS = ("raw", "lossless")
AUTO = ("auto", "auto")  # algorithm and codec
# Calls that are not timed: first touches of memory may take several times as long as an operation.
_WARMUPS = 6
# After _TURNS_OF_ALL turns, only plans within _NEAR times the fastest continue.
_TURNS_OF_ALL, _NEAR = 2, 1.5
# Short calls take more turns: as many as fit into _SECONDS, up to _MAX_TURNS.
_MAX_TURNS, _SECONDS = 300, 1.0


def main() -> None:
    """The command line of a rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--points", required=True, type=points.from_text)
    add("--inputs", required=True, type=json.loads, help="files of values, by their kind")
    add("--place", required=True, type=json.loads, help="the fields of `points.Place`")
    add("--turns", required=True, type=int)
    add("--within", required=True, type=float, help="seconds")
    add("--out", required=True, help="the file to which to append a line for each point")
    given = parser.parse_args()
    until = time.monotonic() + given.within

    from mpi4py import MPI

    world = MPI.COMM_WORLD
    jcc.init()
    place = points.Place(**given.place)
    for point in given.points:
        values = given.inputs[points.OPERATIONS[point.op]]
        compared = Comparison(world, place, point, values)
        # Rank 0 decides for all ranks, as clocks differ.
        if world.bcast(time.monotonic() + compared.min_seconds(given.turns) > until):
            continue
        line = given.place | compared.measured(given.turns)
        if world.rank == 0:
            with open(given.out, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
    workers.say({"rank": world.rank})


class Comparison:
    """The plans of a point: the profile's choice, and every algorithm with every codec.

    Args:
      world: the MPI communicator of all ranks.
      place: the place of the ranks.
      point: the operation and size.
      file: the file of values.
    """

    def __init__(
        self,
        world: Any,
        place: points.Place,
        point: points.Point,
        file: str,
    ):
        self._world, self._point = world, point
        self._burst = tuple(np.zeros(2 * place.burst_bytes, np.uint8) for _ in range(2))
        values = collectives.values(file, "", point.size, world.rank, world.size)
        self._operand = own.operand(point.op, values)
        self._plans = [AUTO] + [
            (name, codec) for name in schedules.algorithms(point.op) for codec in CODECS
        ]
        chosen = self._option(*AUTO)
        if (plan := (_name(chosen), chosen.codec)) not in self._plans:  # with another chunk size
            self._plans.append(plan)
        self._options = {plan: self._option(*plan) for plan in self._plans}

    def _option(self, algorithm: str, codec: str) -> schedules.Option:
        """The plan that runs and its predicted cost; asks the planner as lowering does."""
        choice = comm.planner().choose(
            self._point.op,
            algorithm=algorithm,
            codecs=codecs.choices(codec),
            sizes=((self._operand.dtype.name, self._operand.nbytes),),
            groups=(jcc.world().processes,),
        )
        if choice is None:
            raise RuntimeError(
                f"The planner predicts no cost of {self._point}: {algorithm}, {codec}."
            )
        return choice.chosen

    def min_seconds(self, turns: int) -> float:
        """Predicted seconds of all turns, if only the chosen plan continues after the first."""
        each = [option.seconds for option in self._options.values()]
        return (1 + _TURNS_OF_ALL) * sum(each) + (_WARMUPS + turns) * each[0]

    def measured(self, turns: int) -> dict[str, Any]:
        """Times all plans; returns the point's line of results, the same on every rank."""
        steps = self._steps()
        for _ in range(_WARMUPS):
            self._seconds(steps[AUTO])
        seconds: dict[tuple[str, str], list[float]] = {plan: [] for plan in steps}
        begun = time.monotonic()
        first = list(steps) * min(turns, _TURNS_OF_ALL)
        for plan in first:
            seconds[plan].append(self._seconds(steps[plan]))
        each = max(self._world.allgather(time.monotonic() - begun)) / len(first)
        fastest = {plan: min(took) for plan, took in seconds.items()}
        limit = _NEAR * min(fastest.values())
        going = [plan for plan in steps if plan == AUTO or fastest[plan] <= limit]
        more = min(int(_SECONDS / (each * len(going))), _MAX_TURNS)
        for turn in range(max(turns - _TURNS_OF_ALL, more)):
            begin = turn % len(going)  # vary which plan runs first
            for plan in going[begin:] + going[:begin]:
                seconds[plan].append(self._seconds(steps[plan]))
        plans = [self._plan(plan, took) for plan, took in seconds.items()]
        chosen = self._options[AUTO]
        best = min(plans[1:], key=lambda each: each["seconds"])
        return {
            "op": self._point.op,
            "size": self._point.size,
            "input": self._operand.dtype.name,
            "auto": plans[0] | {"algorithm": _name(chosen), "codec": chosen.codec},
            "best": best,
            "ratio": rounded(plans[0]["seconds"] / best["seconds"]),
            "plans": plans[1:],
        }

    def _seconds(self, step: Callable[[], Any]) -> float:
        """Seconds of a call on the slowest rank, right after a burst that empties the buckets.

        After a pause the emulated links pass a millisecond's bytes at full speed: maybe all bytes
        of a short call. Real links do not.
        """
        world = self._world
        world.Barrier()
        sent, received = self._burst
        if sent.size:
            right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
            world.Sendrecv(sent, right, recvbuf=received, source=left)
        begun = time.perf_counter()
        step()
        return max(world.allgather(time.perf_counter() - begun))

    def _plan(self, plan: tuple[str, str], took: list[float]) -> dict[str, Any]:
        seconds = statistics.median_low(took)  # for two calls, the faster one
        predicted = self._options[plan].seconds
        return {
            "algorithm": plan[0],
            "codec": plan[1],
            "seconds": rounded(seconds),
            "calls": len(took),
            "predicted": rounded(predicted),
            "error": rounded(predicted / seconds - 1),
        }

    def _steps(self) -> dict[tuple[str, str], Callable[[], Any]]:
        """Compiles calls of all plans, and checks that their results are equal."""
        steps, first = {}, None
        for algorithm, codec in self._plans:
            run = own.OPERATIONS[self._point.op][0]
            call = jax.jit(functools.partial(run, algorithm=algorithm, codec=codec))
            step = steps[algorithm, codec] = functools.partial(_run, call, self._operand)
            result = np.asarray(step())
            first = result if first is None else first
            if not all(self._world.allgather(_alike(result, first))):
                raise RuntimeError(
                    f"{self._point}: {algorithm}, {codec} returns another result than auto."
                )
        return steps


def _run(call: Callable[[Any], Any], operand: Any) -> Any:
    return call(operand).block_until_ready()


def _alike(result: np.ndarray, first: np.ndarray) -> bool:
    """Whether two results are equal; float32 (a sum) within rounding."""
    if result.dtype == np.float32:
        return np.allclose(result, first, rtol=1e-5, atol=1e-6)
    return np.array_equal(result.view(np.uint16), first.view(np.uint16))


def _name(chosen: schedules.Option) -> str:
    return chosen.runs if chosen.algorithm == "auto" else chosen.algorithm


if __name__ == "__main__":
    main()
