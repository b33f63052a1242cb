"""Compares random programs with NumPy: `program_draws` describes them.

    mpiexec -n 4 python tests/stress/random_programs.py --programs 10000 [--faults]
    python tests/stress/random_programs.py --devices 8 --programs 10000 [--faults]

Every rank draws program i from (base seed, i). Errors are printed with their seed, and ``--only
BASE:I`` runs that program again; ``--first`` starts at an earlier program.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import faulthandler
import importlib.metadata
import json
import logging
import os
import pathlib
import shutil
import sys
import threading
import time
import warnings
from typing import Any

# Programs between two checks of the time limit by all ranks.
AGREE_EVERY = 20
# JAX keeps compiled programs; thousands would fill the memory.
FORGET_EVERY = 500
# Deadline of operations on a quiet machine: a rank may compile while the others wait.
DEADLINE_SECONDS = 10.0
# A program hangs if it takes more than this number of deadlines.
HANG_DEADLINES = 12


def _hang_seconds() -> float:
    deadline = float(os.environ.get("JAXCCOMP_TIMEOUT_SECONDS", DEADLINE_SECONDS))
    return HANG_DEADLINES * max(deadline, DEADLINE_SECONDS)


@dataclasses.dataclass
class Summary:
    """The totals of a job."""

    place: str
    base_seed: int
    first: int = 0
    programs: int = 0
    launches: int = 0
    values: int = 0
    wrong: int = 0
    errors: int = 0
    hangs: int = 0
    seconds: float = 0.0
    faults: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def line(self) -> str:
        faults = "".join(f", {kind}: {count}" for kind, count in sorted(self.faults.items()))
        return (
            f"{self.place}, base seed {self.base_seed}: {self.programs} programs, {self.launches} "
            f"launches, {self.values} values compared, {self.wrong} wrong, {self.errors} errors, "
            f"{self.hangs} hangs, {self.seconds:.1f} s; faults: {self.faults.total()}{faults}"
        )

    def write(self, path: str) -> None:
        from jaxccomp.bench import machine

        row = dataclasses.asdict(self) | {
            "processor": machine.processor(),
            "faults": dict(self.faults),
        }
        pathlib.Path(path).write_text(json.dumps(row) + "\n")


class Watch:
    """Reports a program that hangs, and ends the process."""

    def __init__(self, summary: Summary, output: str):
        self._summary, self._output = summary, output
        self._program, self._begun = "", time.monotonic()
        threading.Thread(target=self._look, name="watch", daemon=True).start()

    def begin(self, program: str) -> None:
        """Notes the start of a program; "": none is running."""
        self._program, self._begun = program, time.monotonic()
        # In case the interpreter's lock is never released: then the thread cannot run.
        if program:
            faulthandler.dump_traceback_later(_hang_seconds() + 15, exit=True)
        else:
            faulthandler.cancel_dump_traceback_later()

    def _look(self) -> None:
        while not self._program or time.monotonic() - self._begun < _hang_seconds():
            time.sleep(1)
        say(f"HANG in {self._program}")
        self._summary.hangs += 1
        if self._output:
            self._summary.write(self._output)
        faulthandler.dump_traceback(all_threads=True)
        time.sleep(3)  # time for other ranks to report, before the launcher kills them
        os._exit(1)


def say(text: str) -> None:
    """Writes in one call, because several ranks write to one terminal."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def run(field: Any, summary: Summary, indices: Any, watch: Watch | None, arguments: Any) -> None:
    """Runs programs. Stops at the first unexpected exception."""
    import jax

    from stress import program_faults, program_run
    from stress.program_draws import Draw

    begun = time.monotonic()
    for count, index in enumerate(indices):
        if count % AGREE_EVERY == 0 and _time_is_up(field, begun, arguments.minutes):
            break
        case = Draw((summary.base_seed, index), field.n, field.style, arguments.mixed).case()
        if arguments.faults:
            case = program_faults.maybe_with_fault(case, field)
        if case.manner in arguments.without:
            continue
        text = str(case)
        if arguments.verbose and field.rank == 0:
            say(text)
        if watch is not None:
            watch.begin(text)
        try:
            do = program_faults.run if case.fault else program_run.run
            outcome = do(field, case)
        except Exception:
            summary.errors += 1
            say(f"ERROR on rank {field.rank} in {text}")
            raise
        summary.programs += 1
        summary.launches += outcome.launches
        summary.values += outcome.values
        summary.wrong += len(outcome.wrong)
        summary.faults.update([case.fault] if case.fault else [])
        for wrong in outcome.wrong[:3]:
            say(f"WRONG on rank {field.rank} in {text}\n    {wrong}")
        if count % FORGET_EVERY == FORGET_EVERY - 1:
            jax.clear_caches()
            if field.rank == 0:
                summary.seconds = time.monotonic() - begun
                say(summary.line())
    if watch is not None:
        watch.begin("")
    summary.seconds = time.monotonic() - begun


def _time_is_up(field: Any, begun: float, minutes: float) -> bool:
    """Whether rank 0's time is over, so that all ranks stop after the same program."""
    if not minutes:
        return False
    up = time.monotonic() - begun > 60 * minutes
    return bool(field.agree(up))


def quiet() -> None:
    """Suppresses tracebacks of callbacks that raise on purpose, and warnings about donation."""
    warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
    for name in ("jax._src.callback", "jax._src.debugging"):
        logging.getLogger(name).addHandler(logging.NullHandler())
        logging.getLogger(name).propagate = False


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="base seed")
    parser.add_argument("--first", type=int, default=0, help="number of the first program")
    parser.add_argument("--minutes", type=float, default=0, help="stop then; 0: never")
    parser.add_argument("--faults", action="store_true", help="one program in five goes wrong")
    parser.add_argument("--only", metavar="BASE:I", help="one program, as it was printed")
    parser.add_argument(
        "--devices", type=int, default=0, help="of one process, not mpiexec's ranks"
    )
    parser.add_argument("--without", action="append", default=[], help="a manner to leave out")
    parser.add_argument(
        "--mixed", action="store_true", help="v-variants and messages beside other collectives, too"
    )
    parser.add_argument("--output", default="", help="where the last line goes, as JSON")
    parser.add_argument("--verbose", action="store_true", help="print each program before it runs")
    return parser.parse_args(arguments)


def prepare(devices: int) -> None:
    """Sets the environment, before JAX is imported."""
    tests = pathlib.Path(__file__).parents[1]
    # The plugin package is found by its metadata.
    sys.path[:0] = [str(tests), str(tests / "plugin")]
    import patience

    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("JAX_ENABLE_X64", "1")
    deadline = patience.seconds(DEADLINE_SECONDS)
    os.environ.setdefault("JAXCCOMP_TIMEOUT_SECONDS", str(deadline))
    # A rank whose callback has failed waits in a split for the others, which reach their deadline.
    os.environ.setdefault("JAXCCOMP_INIT_TIMEOUT_SECONDS", str(60 + 3 * deadline))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    # LLVM's optimisation of fusions is most of the cost, and irrelevant to collectives.
    flags = [os.environ.get("XLA_FLAGS", ""), "--xla_backend_optimization_level=0"]
    if importlib.metadata.version("jaxlib").startswith("0.10."):  # later versions reject the flag
        flags.append("--xla_cpu_use_fusion_emitters=false")
    if devices:
        flags.append(f"--xla_force_host_platform_device_count={devices}")
    os.environ["XLA_FLAGS"] = " ".join(flags)


def check(arguments: list[str]) -> Summary:
    """Runs programs on devices of this process, for tests. JAX is already configured."""
    from stress.program_teams import Devices

    parsed = parse(arguments)
    field = Devices(parsed.devices)
    summary = Summary(f"{field!r}", parsed.seed, parsed.first)
    try:
        run(field, summary, range(parsed.first, parsed.first + parsed.programs), None, parsed)
    finally:
        _remove(field)
    return summary


def _remove(field: Any) -> None:
    for folder in (field.cache_folder, f"{field.cache_folder}-{field.rank}"):
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    arguments = parse()
    prepare(arguments.devices)
    from stress.program_teams import Devices, Processes

    quiet()
    base, indices = arguments.seed, range(arguments.first, arguments.first + arguments.programs)
    if arguments.only:
        base, index = map(int, arguments.only.split(":"))
        indices = range(index, index + 1)
    field: Any = Devices(arguments.devices) if arguments.devices else Processes()
    summary = Summary(f"{field!r}", base, indices.start)
    output = arguments.output if field.rank == 0 else ""
    try:
        run(field, summary, indices, Watch(summary, output), arguments)
        field.add_up(summary)
    finally:
        _remove(field)
        if field.rank == 0:
            say(summary.line())
            if output:
                summary.write(output)
    return bool(summary.wrong)


if __name__ == "__main__":
    sys.exit(main())
