"""Programs with a fault on one rank, and the check of its consequences.

Every rank gets an error in time, one error names the rank or the exception, and a new communicator
works. Along an axis only callbacks can fail, and later launches must be right.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxccomp as jcc
from stress.program_cases import Case, Collective, Function
from stress.program_functions import Outcome, Prepared

PERCENT = 20
SECONDS_BEYOND = 2.0
INJECTED = "bad batch"
LAUNCHES = 4
RAISES = ("callback before", "callback between")
MISMATCHES = ("shape", "dtype", "codec", "operation", "root")
FAULTS = {"process": (*RAISES, "callback and gone", *MISMATCHES, "nan"), "axis": RAISES}
# Only the deadline detects this fault, which takes long.
WEIGHTS = {"callback and gone": 0.15}


def maybe_with_fault(case: Case, field: Any) -> Case:
    """Returns the program, or, at random, one with a fault drawn from its seed."""
    rng = np.random.default_rng((*case.seed, 1))
    if rng.random() * 100 >= PERCENT:
        return case
    names = FAULTS[field.style]
    weights = np.array([WEIGHTS.get(name, 1.0) for name in names])
    fault = names[int(rng.choice(len(names), p=weights / weights.sum()))]
    place = f"{field.n}-no_check_vma-straight" if field.style == "axis" else ""
    own = f"fault-{case.seed[0]}-{case.seed[1]}" if field.style == "process" else 0
    layout = case.functions[0].collectives[0].layout
    rows = ["allreduce-sum", str(rng.choice(["bcast", "allreduce-max", "allgather", "scan-sum"]))]
    if fault == "root":
        rows[0] = "bcast"
    collectives = tuple(
        Collective(
            *(row, own, "all", (int(rng.integers(1, 3000)),), "float32", "small", "jit"),
            *("argument", (), layout, int(rng.integers(0, 2**31))),
        )
        for row in rows
    )
    function = Function(place, collectives, "", donated=False)
    return dataclasses.replace(
        case,
        manner="in flight",
        functions=(function,),
        launches=LAUNCHES,
        other_batch=False,
        uneven=False,
        debug_nans=fault == "nan",
        fault=fault,
    )


def run(field: Any, case: Case) -> Outcome:
    return _along_an_axis(field, case) if field.style == "axis" else _between(field, case)


def _fails_at(case: Case) -> int:
    """Returns the faulty launch: any but the last. Mismatches begin there."""
    return case.seed[1] % (LAUNCHES - 1)


def _raising(field: Any, case: Case) -> Callable[..., Any]:
    """Puts a callback before a collective. It raises once, on the chosen rank."""
    at = 1 if case.fault == "callback between" else 0

    def same(x: Any, launch: Any, rank: Any) -> np.ndarray:
        if int(np.asarray(launch)) == _fails_at(case) and int(np.asarray(rank)) == case.chosen:
            raise OSError(INJECTED)
        return np.asarray(x)

    def alter(number: int, launch: Any, x: Any) -> Any:
        if number != at:
            return x
        rank = jnp.int32(field.rank) if field.style == "process" else jax.lax.axis_index("ranks")
        shape = jax.ShapeDtypeStruct((), x.dtype)
        one = jax.pure_callback(same, shape, jnp.ones((), x.dtype), jnp.reshape(launch, ()), rank)
        return x * one

    return alter


# --- along an axis -------------------------------------------------------------------------------


def _along_an_axis(field: Any, case: Case) -> Outcome:
    outcome = Outcome()
    prepared = Prepared(field, case, case.functions[0], _raising(field, case))
    for launch in range(case.launches):
        begun, text = time.monotonic(), ""
        try:
            result = jax.block_until_ready(prepared.launch(*prepared.inputs(launch)))
        except Exception as error:  # noqa: BLE001 - JAX decides its type
            text = str(error)
        seconds = time.monotonic() - begun
        if seconds > _deadline():
            outcome.wrong.append(f"launch {launch} took {seconds:.1f} s")
        if launch != _fails_at(case):
            if text:
                outcome.wrong.append(f"launch {launch} after or before the fault: {text[:400]}")
            else:
                prepared.check(launch, result, outcome)
        elif INJECTED not in text:
            outcome.wrong.append(f"launch {launch} says nothing of the exception: {text[:400]!r}")
    return outcome


def _deadline() -> float:
    return jcc.config.get("timeout_seconds") + SECONDS_BEYOND


# --- between processes ---------------------------------------------------------------------------


@dataclasses.dataclass
class Told:
    """The errors on this rank."""

    texts: list[str] = dataclasses.field(default_factory=list)
    longest: float = 0.0

    def attempt(self, call: Callable[[], Any]) -> Any:
        """Returns the result of the call, or records its error and returns None."""
        begun = time.monotonic()
        try:
            return jax.block_until_ready(call())
        except Exception as error:  # noqa: BLE001 - JAX decides its type
            self.texts.append(f"{type(error).__name__}: {error}")
            return None
        finally:
            self.longest = max(self.longest, time.monotonic() - begun)


def _between(field: Any, case: Case) -> Outcome:
    outcome, told = Outcome(), Told()
    parent = case.functions[0].collectives[0].parent
    before = jax.config.jax_debug_nans
    jax.config.update("jax_debug_nans", case.debug_nans)
    try:
        _launches(field, case, outcome, told)
        if not told.texts:  # a rank that only sends sees no error before this
            comm = field.comm(parent, "all")
            told.attempt(lambda: jax.jit(lambda x: jcc.allreduce(x, comm=comm))(jnp.ones(3)))
    finally:
        jax.config.update("jax_debug_nans", before)
    _judge(field, case, outcome, told)
    field.free(parent)
    return outcome


def _launches(field: Any, case: Case, outcome: Outcome, told: Told) -> None:
    """Launches until the first error that another rank caused."""
    culprit = field.rank == case.chosen
    alter = _raising(field, case) if case.fault.startswith("callback") else None
    right = Prepared(field, case, case.functions[0], alter)
    other = Prepared(field, case, _other(case)) if culprit and _differs(case) else right
    for launch in range(case.launches):
        fails = launch >= _fails_at(case)
        prepared = other if fails else right
        result = told.attempt(lambda p=prepared, k=launch: _call(case, p, k, culprit))
        if result is not None and not (culprit and _differs(case) and fails):
            prepared.check(launch, result, outcome)
        elif result is not None:
            outcome.wrong.append(f"launch {launch} of another program gave values on the culprit")
        own = told.texts and (INJECTED in told.texts[-1] or "FloatingPoint" in told.texts[-1])
        if told.texts and not (own and case.fault != "callback and gone"):
            return


def _call(case: Case, prepared: Prepared, launch: int, culprit: bool) -> Any:
    result = prepared.launch(*prepared.inputs(launch))
    if case.fault == "nan" and culprit and launch == _fails_at(case):
        # JAX finds the NaN in a jitted step, and reruns the step operation by operation.
        comm = case.functions[0].collectives[0].parent
        named = jcc.world().duplicate(comm)
        jax.jit(lambda x: (jcc.allreduce(x, comm=named), jnp.log(x)))(jnp.float32(-1))
    elif case.fault == "nan" and launch == _fails_at(case):
        named = jcc.world().duplicate(case.functions[0].collectives[0].parent)
        jax.jit(lambda x: (jcc.allreduce(x, comm=named), jnp.log(x)))(jnp.float32(1))
    return result


def _differs(case: Case) -> bool:
    return case.fault in MISMATCHES


def _other(case: Case) -> Function:
    """Returns the function that the culprit runs instead."""
    function = case.functions[0]
    first = function.collectives[0]
    changes: dict[str, dict[str, Any]] = {
        "shape": {"trailing": (first.trailing[0] + 1,)},
        "dtype": {"dtype": "int32"},
        "codec": {"options": (("codec", "lossless"),)},
        "operation": {"row": "allreduce-max"},
        "root": {"layout": dataclasses.replace(first.layout, root=first.layout.root + 1)},
    }
    changed = dataclasses.replace(first, **changes[case.fault])
    return dataclasses.replace(function, collectives=(changed, *function.collectives[1:]))


def _judge(field: Any, case: Case, outcome: Outcome, told: Told) -> None:
    """Compares the errors of all ranks by a new communicator, which must work."""
    named = any(f"rank {case.chosen} " in text or INJECTED in text for text in told.texts)
    late = told.longest > _deadline()
    fresh = field.world.split(0, field.rank) if case.seed[1] % 2 else None
    color = case.seed[1] + 1
    fresh = fresh or field.world.split(color)
    flags = np.array([bool(told.texts), named, late, 1], np.int32)
    sums = np.asarray(jcc.allreduce(flags, comm=fresh)).tolist()
    if sums[3] != field.n:
        outcome.wrong.append(f"a new communicator counts {sums[3]} ranks of {field.n}")
    if sums[0] < field.n and not told.texts:
        outcome.wrong.append("this rank got no error")
    if not sums[1]:
        outcome.wrong.append(f"no error names rank {case.chosen}; here: {told.texts[-1:]}")
    if late:
        outcome.wrong.append(f"the error took {told.longest:.1f} s: {told.texts[-1:]}")
    fresh.free()
