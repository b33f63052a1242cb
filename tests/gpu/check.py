"""Runs all checks and measurements on this machine's GPU; writes a JSON file for each part.

    python tests/gpu/check.py BUILD_FOLDER OUTPUT_FOLDER [PART ...] [--seconds S] [--resume]

The parts are the rows of PARTS; without PART all run, within S seconds (default 540). Each part
gets a share of the time; time that it does not need goes to later parts. Its file names device,
versions and clocks, and has the results, the failures, and the cases that did not run, with the
reason. --resume skips parts whose file for the same device, versions and sources is complete.

Exit status: 0, no failures (parts may not have run); 1, failures; 2, invalid arguments; 77, no GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence

import facts
import process
import ranks

NO_DEVICE = ranks.NO_DEVICE
SECONDS = 540
# Only these run under sanitizers, which slow kernels down a hundredfold.
SANITIZED = ("int8", "onebit", "lossless", "stage")
# The limit passed to a script is this much shorter, so that it ends by itself.
_MARGIN_SECONDS = 5

# The commands of a part, or why it cannot run here. "{seconds}" in a command stands for its time
# limit.
Commands = list[list[str]] | str


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of the checks, with a file of its own.

    Attributes:
      what: its description.
      seconds: its limit; to take all of it is a failure.
      commands: makes its commands from the path of the C++ program.
      least: the part does not start with fewer seconds left.
    """

    what: str
    seconds: int
    commands: Callable[[str], Commands]
    least: int = 20


def sanitized(tool: str) -> Callable[[str], Commands]:
    """The kernels under a tool of compute-sanitizer."""

    def commands(program: str) -> Commands:
        sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
        if not pathlib.Path(sanitizer).exists():
            return "no compute-sanitizer is installed"
        return [
            [sanitizer, "--tool", tool, "--error-exitcode", "1", program, "compare", spec]
            for spec in SANITIZED
        ]

    return commands


def nvcomp(program: str) -> Commands:
    """The nvCOMP part, if JAXCCOMP_LIBNVCOMP or a wheel provides the library."""
    return [[program, "all", "nvcomp"]] if facts.nvcomp() else "nvCOMP is not found"


def script(name: str, *arguments: str) -> Callable[[str], Commands]:
    """A script in this folder, which starts its ranks itself."""

    def commands(program: str) -> Commands:
        build = str(pathlib.Path(program).parent)
        return [[*process.python(name), build, *arguments, "--seconds", "{seconds}"]]

    return commands


# In order of risk: a part whose failure would stop or invalidate later parts comes first.
PARTS = {
    "first": Part(
        "lossless and int8: bits, rates",
        100,
        lambda program: [[program, "all", "lossless"], [program, "all", "int8"]],
        least=30,
    ),
    "stage": Part(
        "the stage: parts through pinned memory, bits, rates",
        100,
        lambda program: [[program, "all", "stage"]],
        least=20,
    ),
    "collectives": Part(
        "jitted collectives of 1, 2 and 4 ranks on the GPU",
        500,
        script("collectives.py"),
        least=60,
    ),
    "memcheck": Part("kernels under compute-sanitizer", 150, sanitized("memcheck"), least=40),
    "kernels": Part("all kernels: bits, rates", 180, lambda program: [[program]], least=40),
    "traced": Part(
        "the traced plane's codecs: bits, CUDA graphs, rates",
        240,
        script("traced.py"),
        least=30,
    ),
    "nvcomp": Part("nvCOMP's codecs beside lossless: bits, rates", 120, nvcomp),
    "racecheck": Part("kernels under compute-sanitizer", 150, sanitized("racecheck"), least=40),
    "broadcast": Part(
        "broadcast over a slow link: compressed, raw; overlap",
        300,
        script("broadcast.py"),
        least=60,
    ),
    "accdp": Part(
        "several processes of a training on the GPU, and their rivals",
        500,
        script("accdp.py"),
        least=60,
    ),
}


def share(name: str, waiting: Sequence[str], left: float) -> float:
    """Seconds for a part, with the parts ``waiting`` still to run.

    Each part gets its ``least``; the rest is divided in proportion to ``seconds - least``.
    """
    part = PARTS[name]
    rest = left - part.least - sum(PARTS[each].least for each in waiting)
    more = part.seconds - part.least
    wanted = more + sum(PARTS[each].seconds - PARTS[each].least for each in waiting)
    given = part.least + (max(rest, 0) * more / wanted if wanted else 0)
    return min(part.seconds, given, left)


def run(
    name: str,
    program: str,
    seconds: float,
    before: Mapping = {},  # noqa: B006 - it is only read
    keep: Callable[[dict], None] = lambda found: None,
) -> tuple[dict, int]:
    """Runs a part; returns the contents of its file, and its exit status.

    Args:
      name: the name of the part.
      program: the path of the C++ program.
      seconds: its time limit.
      before: the contents of its earlier file; commands that succeeded then are skipped.
      keep: called with the results so far after each line, to save them if this process is killed.
    """
    part, clock = PARTS[name], process.Clock(seconds)
    todo = part.commands(program)
    if isinstance(todo, str):
        return {"not_run": todo}, 0
    if seconds < part.least:
        return {"not_run": f"{seconds:.0f} s were left, and it takes at least {part.least}"}, 0
    over = list(before.get("commands", ()))
    # Drop lines of a command that did not end: it runs again.
    lines = list(before.get("lines", ())[: before.get("lines_over", 0)])
    lines_over, status, failures, cut = len(lines), 0, [], []
    library = facts.nvcomp()
    environment = os.environ | ({"JAXCCOMP_LIBNVCOMP": library} if library else {})
    for number, command in enumerate(todo):
        shown, given = _shown(command), clock.left
        if shown in over:
            continue
        if given <= 0:
            cut.append(f"{shown}: no time was left of {seconds:.0f} s")
            continue
        told = max(int(given) - _MARGIN_SECONDS, 1)
        command = [each.replace("{seconds}", str(told)) for each in command]

        def tell(line: str, shown: str = shown, lines_over: int = lines_over) -> None:
            lines.extend(ranks.rows(line))
            state = {"lines": lines, "commands": over, "lines_over": lines_over}
            keep(state | {"not_done": [f"{shown}: was under way"]})

        done = process.run(command, environment, given, "JAXCCOMP_GPU_CHECK", tell)
        if done.status == NO_DEVICE and not done.late:
            return {"not_run": done.said.strip()[-1500:], "lines": lines}, NO_DEVICE
        if done.late and seconds < part.seconds:
            # Not a hang: the total time was too short for the part.
            cut.append(f"{_shown(command)}: not done in its {seconds:.0f} s")
        elif done.wrong:
            status = 1
            failures.append(f"{_shown(command)}: {done.wrong}")
        else:
            over.append(shown)
            lines_over = len(lines)
        if done.late:
            cut += [f"{_shown(each)}: no time was left" for each in todo[number + 1 :]]
            break
    found = {
        "seconds": round(clock.used, 1),
        "failures": failures,
        "lines": lines,
        "commands": over,
        "lines_over": lines_over,
    }
    return found | ({"not_done": cut} if cut else {}), status


def _shown(command: Sequence[str]) -> str:
    return " ".join([pathlib.Path(command[0]).name, *command[1:]])


def earlier(path: pathlib.Path, device: dict, software: dict) -> dict:
    """A part's file, if it is of this device and these versions; else empty."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    same = found.get("device") == device and found.get("software") == software
    return found if same else {}


def is_complete(found: dict) -> bool:
    """Whether a part need not run again."""
    gaps = ("failures", "not_run", "not_done")
    return bool(found) and not any(found.get(each) for each in gaps)


def _write(path: pathlib.Path, found: dict) -> None:
    """Writes atomically: a killed process leaves no partial file."""
    partly = path.with_suffix(".partly")
    with partly.open("w", encoding="utf-8") as file:
        file.write(json.dumps(found, indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    partly.replace(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the chosen parts, by default all; returns the exit status."""
    asked = _arguments(arguments)
    chosen = asked.parts or list(PARTS)
    if unknown := sorted(set(chosen) - set(PARTS)):
        print(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
        return 2
    if asked.seconds <= 0:
        print(f"--seconds must be positive, not {asked.seconds:g}")
        return 2
    if why := ranks.no_gpu("cuda"):
        print(why)
        return NO_DEVICE
    clock = process.Clock(asked.seconds)
    program = str(pathlib.Path(asked.build, "jaxccomp_gpu_tests").resolve())
    device, software = facts.of_device(), facts.of_software()
    folder = pathlib.Path(asked.output)
    folder.mkdir(parents=True, exist_ok=True)
    known: dict[str, dict] = {}
    if asked.resume:
        known = {each: earlier(folder / f"{each}.json", device, software) for each in chosen}
        done = [each for each in chosen if is_complete(known[each])]
        chosen = [each for each in chosen if each not in done]
        for each in done:
            print(f"{each}: left out, its file is complete")
    statuses = []
    for number, name in enumerate(chosen):
        before = facts.of_moment()
        row = {"part": name, "what": PARTS[name].what, "device": device, "software": software}
        row |= {"moments": [before]}

        def keep(
            found: dict, row: dict = row, path: pathlib.Path = folder / f"{name}.json"
        ) -> None:
            _write(path, row | found)

        seconds = share(name, chosen[number + 1 :], clock.left)
        found, status = run(name, program, seconds, known.get(name, {}), keep)
        row |= {"moments": [before, facts.of_moment()]}
        if changed := _changed(device):
            found["failures"] = [*found.get("failures", []), changed]
            status = 1
        keep(found)
        print(f"{name}: {summary(found)}", flush=True)
        statuses.append(status)
    print(f"{clock.used:.0f} of {asked.seconds:g} s; written to {folder}")
    if statuses and set(statuses) == {NO_DEVICE}:
        return NO_DEVICE
    return int(1 in statuses)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("build", help="the folder with jaxccomp_gpu_tests (`make cuda`)")
    parser.add_argument("output", help="where the files go")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="for all of it (default: %(default)s)"
    )
    parser.add_argument("--resume", action="store_true", help="skip completed steps")
    return parser.parse_args(arguments)


def _changed(before: dict) -> str:
    """A message that names changed settings of the GPU; empty if there are none."""
    now = facts.of_device()
    changed = [
        f"{each} was {before[each]} and is {now[each]}"
        for each in facts.SETTINGS
        if each in before and each in now and before[each] != now[each]
    ]
    return f"the GPU's settings have changed: {', '.join(changed)}" if changed else ""


def summary(found: dict) -> str:
    """The result of a part in a line."""
    if "not_run" in found and not found.get("failures"):
        return f"not run: {_line(found['not_run'])}"
    said = [f"WRONG: {_line(each)}" for each in found["failures"]] or ["good"]
    lines = found.get("lines", [])
    said += [
        f"{row['not_run']} not run: {_line(row.get('reason', ''))}"
        for row in lines
        if "not_run" in row
    ]
    said += [_line(each) for each in found.get("not_done", ())]
    return f"{'; '.join(said)} ({found.get('seconds', 0)} s, {len(lines)} results)"


def _line(text: str, most: int = 300) -> str:
    """Joins the lines of a text, and cuts it to ``most`` characters."""
    line = " | ".join(filter(None, (each.strip() for each in text.splitlines())))
    return line if len(line) <= most else f"{line[: most - 3]}..."


if __name__ == "__main__":
    process.end_on_signals()
    sys.exit(main())
