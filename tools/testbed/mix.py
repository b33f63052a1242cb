"""Compares a profile's choice per operation with single backends, in programs of many operations.

    python -m testbed.mix --json docs/results/mix.jsonl
    python -m testbed.mix --table docs/results/mix.jsonl

The programs are the repository's examples, larger than by default: a mixture of experts, a
recommendation model, and a dense transformer in tensor and pipeline parallel. Each round starts a
new process per contender. All except "auto" send raw values, and use one backend and one transport
for all operations; "auto" uses a profile of the faster transport.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from jaxccomp import errors
from jaxccomp._runtime import ucx
from testbed import programs, scenario, tuned, workers
from testbed.bed import Testbed


@dataclasses.dataclass(frozen=True)
class Contender:
    """A choice of backend, transport and codec.

    Attributes:
      env: options of this package, as environment variables of all ranks.
      codec: the codec of all exchanges of a program.
      has_profile: whether ranks use a profile, which is measured first.
      is_distributed: whether ranks initialise `jax.distributed`, too.
      on_mesh: whether programs communicate along mesh axes instead of between processes.
      needs_ucx: whether UCX carries the values.
      lacks: by program, an operation that the program needs and this contender lacks.
    """

    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    codec: str = "raw"
    has_profile: bool = False
    is_distributed: bool = False
    on_mesh: bool = False
    needs_ucx: bool = False
    lacks: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def why_not(self, program: str) -> str:
        """Return why this contender cannot run a program; "" if it can."""
        if self.on_mesh and not programs.PROGRAMS[program].on_meshes:
            return "the program communicates between processes, and this backend needs axes"
        if program in self.lacks:
            return f"there is no {self.lacks[program]}"
        return ucx.why_missing() if self.needs_ucx else ""


AUTO = "auto"
CONTENDERS = {
    AUTO: Contender(codec="auto", has_profile=True),
    "engine over MPI": Contender({"JAXCCOMP_BACKEND": "native", "JAXCCOMP_TRANSPORT": "mpi"}),
    "MPI's own": Contender(
        {"JAXCCOMP_BACKEND": "mpi", "JAXCCOMP_TRANSPORT": "mpi"},
        lacks={"tensor_pipeline": "sendrecv"},
    ),
    "engine over UCX": Contender(
        {"JAXCCOMP_BACKEND": "native", "JAXCCOMP_TRANSPORT": "ucx"}, needs_ucx=True
    ),
    "xla over gloo": Contender(
        {"JAXCCOMP_BACKEND": "xla", "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"},
        is_distributed=True,
        on_mesh=True,
    ),
}
_COLUMNS = (
    *("program", "contender", "steps a second"),
    *("of the best alone", "received a step", "loss"),
)


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status of `scenario.run`."""
    parser = argparse.ArgumentParser(prog="python -m testbed.mix", description=__doc__)
    add = parser.add_argument
    add("--hosts", type=int, default=4, help="2 to 8 (%(default)s)")
    add("--link", default="1gbit", help="100mbit to 5gbit (%(default)s)")
    add("--programs", nargs="+", choices=programs.PROGRAMS, default=tuple(programs.PROGRAMS))
    add("--contenders", nargs="+", choices=CONTENDERS, default=tuple(CONTENDERS))
    add("--rounds", type=int, default=3)
    add("--epochs", type=int, default=4, help="the first one compiles and is not counted")
    add("--worker", nargs=2, metavar=("PROGRAM", "CONTENDER"), help=argparse.SUPPRESS)
    return scenario.run(
        parser, _measure, table=table, worker="worker", work=_work, arguments=arguments
    )


def table(lines: list[scenario.Line]) -> str:
    """A Markdown table of a results file, followed by the cases that were left out or failed."""
    lines = [line for line in lines if "contender" in line]
    done = [line for line in lines if "seconds" in line]
    alone: dict[str, float] = {}  # by program: seconds of the fastest single backend
    for line in done:
        if line["contender"] != AUTO:
            best = alone.get(line["program"], line["seconds"])
            alone[line["program"]] = min(best, line["seconds"])
    cells = (
        (
            line["program"],
            line["contender"],
            f"{1 / line['seconds']:.2f}",
            _gain(alone.get(line["program"]), line["seconds"]),
            f"{line['received_bytes_per_step'] / 1e6:.2f} MB",
            f"{line['loss']:.4f}",
        )
        for line in done
    )
    notes = [
        f"{what}: {line['program']}, {line['contender']}: {line[key]}."
        for what, key in (("Left out", "left_out"), ("Failed", "error"))
        for line in lines
        if key in line
    ]
    return "\n".join(
        [scenario.markdown(_COLUMNS, cells, texts=2), *([""] if notes else []), *notes]
    )


def _gain(alone: float | None, seconds: float) -> str:
    return "" if alone is None else f"{alone / seconds - 1:+z.0%}"


def _measure(given: argparse.Namespace) -> list[scenario.Line]:
    if given.rounds < 1 or given.epochs < 2:
        raise errors.InvalidArgumentError("--rounds must be at least 1, --epochs at least 2.")
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for program in given.programs:
        for name in given.contenders:
            reason = CONTENDERS[name].why_not(program)
            rows[program, name] = {"left_out": reason} if reason else {"found": []}
    with Testbed(given.hosts, given.link) as bed, tempfile.TemporaryDirectory() as folder:
        profile = pathlib.Path(folder, "profile.json")
        if any(CONTENDERS[name].has_profile for name in given.contenders):
            scenario.say(tuned.fastest_profile(bed, profile, ["random"], programs.ENVIRONMENT))
        for number in range(given.rounds):
            for case, row in rows.items():
                if "found" in row and "error" not in row:
                    scenario.say(f"round {number + 1} of {given.rounds}: {', '.join(case)}")
                    _run(given, bed, profile, case, row)
                    if given.json:  # keep results so far, in case the run is killed
                        scenario.write(given.json, _lines(given, rows))
    print(table(_lines(given, rows)))
    return _lines(given, rows)


def _run(
    given: argparse.Namespace,
    bed: Testbed,
    profile: pathlib.Path,
    case: tuple[str, str],
    row: dict[str, Any],
) -> None:
    contender = CONTENDERS[case[1]]
    env = programs.ENVIRONMENT | dict(contender.env)
    if contender.has_profile:
        env["JAXCCOMP_PROFILE"] = str(profile)
    program = [__file__, *scenario.options(given, "epochs"), "--worker", *case]
    try:
        row["found"].append(workers.run(program, bed, env=env, timeout_seconds=600))
    except workers.FailedError as error:
        scenario.say(str(error))
        row["error"] = str(error)[-500:]


def _lines(
    given: argparse.Namespace, rows: Mapping[tuple[str, str], dict[str, Any]]
) -> list[scenario.Line]:
    """A line for each case that has run or cannot run."""
    return [_line(given, *case, row) for case, row in rows.items() if row != {"found": []}]


def _line(
    given: argparse.Namespace, program: str, contender: str, row: dict[str, Any]
) -> scenario.Line:
    line = {
        "program": program,
        "options": " ".join(programs.PROGRAMS[program].options),
        "hosts": given.hosts,
        "link": given.link,
        "contender": contender,
        "codec": CONTENDERS[contender].codec,
    }
    for name in ("left_out", "error"):
        if name in row:
            return line | {name: row[name]}
    found: list[workers.Found] = row["found"]
    said = [each for one in found for each in one.said]
    steps = sum(one.said[0]["steps"] for one in found)
    return line | {
        # Ranks wait for each other in every step, so the median over all ranks is a step's time.
        "seconds": scenario.rounded(statistics.median(s for each in said for s in each["seconds"])),
        # Mean per host, including the traffic of compilation and evaluation.
        "received_bytes_per_step": round(
            sum(one.received_bytes for one in found) / given.hosts / steps
        ),
        "loss": scenario.rounded(statistics.mean(each["loss"] for each in said)),
    }


def _work(given: argparse.Namespace) -> None:
    program, name = given.worker
    contender = CONTENDERS[name]
    if contender.is_distributed:
        workers.join_distributed()
    codec = None if contender.codec == "raw" else contender.codec
    programs.work(program, codec, given.epochs, on_mesh=contender.on_mesh)


if __name__ == "__main__":
    sys.exit(main())
