"""Runs a random program in its manner."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import compilation_cache

from stress.program_cases import Case
from stress.program_functions import Outcome, Prepared


def run(field: Any, case: Case) -> Outcome:
    """Runs a program without a fault."""
    outcome = Outcome()
    pause = _pauses(field, case)
    functions = [Prepared(field, case, f, number=i) for i, f in enumerate(case.functions)]
    before = jax.config.jax_debug_nans
    jax.config.update("jax_debug_nans", case.debug_nans)
    try:
        if case.manner.startswith("threads"):
            _in_threads(case, functions, pause, outcome)
        elif case.manner.startswith("persistent cache"):
            _from_the_cache(field, functions[0], case, pause, outcome)
        else:
            _in_flight(field, case, functions, pause, outcome)
    finally:
        jax.config.update("jax_debug_nans", before)
    for parent in _fresh(case):
        field.free(parent)
    return outcome


def _fresh(case: Case) -> list[str]:
    """Returns the communicators that only this program uses."""
    parents = {c.parent for f in case.functions for c in f.collectives}
    return sorted(p for p in parents if isinstance(p, str))


def _pauses(field: Any, case: Case) -> Callable[[], None]:
    """Returns a function to be called before each launch. In slow cases it sleeps at random."""
    rng = np.random.default_rng((*case.seed, field.rank))

    def pause() -> None:
        if case.slow and rng.random() < 0.5:
            time.sleep(0.01 * rng.random())

    return pause


def _in_flight(
    field: Any, case: Case, functions: list[Prepared], pause: Any, outcome: Outcome
) -> None:
    """Launches all functions in turn, and checks results only after the last launch."""
    calls = [_callable(case, each) for each in functions]
    pending = []
    first = 0
    if case.manner == "first launched in another thread":
        _in_threads(dataclasses.replace(case, launches=1), functions, pause, outcome)
        first = 1
    for launch in range(first, case.launches):
        for each, call in zip(functions, calls, strict=True):
            pause()
            pending.append((each, launch, call(*each.inputs(launch))))
        if case.manner == "one rank forgets" and field.rank == case.chosen:
            jax.clear_caches()
    for each, launch, result in pending:
        each.check(launch, result, outcome)


def _callable(case: Case, prepared: Prepared) -> Callable[..., Any]:
    if case.manner == "ahead of time":
        return prepared.launch.lower(*prepared.inputs(0)).compile()
    if case.manner == "compiled in another thread":
        compiled: list[Any] = []

        def compile_it() -> None:
            compiled.append(prepared.launch.lower(*prepared.inputs(0)).compile())

        _join([threading.Thread(target=compile_it, name="compiles")], [])
        return compiled[0]
    return prepared.launch


def _join(threads: list[threading.Thread], failed: list[BaseException]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def _in_threads(case: Case, functions: list[Prepared], pause: Any, outcome: Outcome) -> None:
    """Runs each function in its own thread; devices of one process may also share one."""
    if case.manner == "threads with one function":
        functions = [functions[0]] * 3
    failed: list[BaseException] = []
    outcomes = [Outcome() for _ in functions]

    def work(part: int) -> None:
        try:
            pending = []
            for launch in range(case.launches):
                pause()
                pending.append(functions[part].launch(*functions[part].inputs(launch)))
            for launch, result in enumerate(pending):
                functions[part].check(launch, result, outcomes[part])
        except BaseException as error:  # noqa: BLE001 - raised again after the join
            failed.append(error)

    names = [f"works-{'abc'[part]}" for part in range(len(functions))]
    _join(
        [threading.Thread(target=work, args=(i,), name=name) for i, name in enumerate(names)],
        failed,
    )
    for each in outcomes:
        outcome.launches += each.launches
        outcome.values += each.values
        outcome.wrong += each.wrong


def _from_the_cache(
    field: Any, prepared: Prepared, case: Case, pause: Any, outcome: Outcome
) -> None:
    """Compiles a function with JAX's persistent cache, and again, which loads it from there."""
    own = "" if case.manner == "persistent cache of all ranks" else f"-{field.rank}"
    jax.config.update("jax_compilation_cache_dir", field.cache_folder + own)
    compilation_cache.compilation_cache.reset_cache()
    try:
        for call in (prepared.launch, prepared.fresh()):
            pending = []
            for launch in range(case.launches):
                pause()
                pending.append(call(*prepared.inputs(launch)))
            for launch, result in enumerate(pending):
                prepared.check(launch, result, outcome)
    finally:
        jax.config.update("jax_compilation_cache_dir", None)
        compilation_cache.compilation_cache.reset_cache()
