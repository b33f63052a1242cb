"""What codecs bring to programs that exchange values inside a step, on slow links.

    python -m testbed.exchanges --json docs/results/exchanges.jsonl
    python -m testbed.exchanges --table docs/results/exchanges.jsonl

The programs are the repository's examples, in which a step waits for what the others send, there
and back: a mixture of experts (two `alltoall` a layer, and two for its cotangents) and a
recommendation model (`alltoallv` of rows of tables), each with an `allreduce` of what all ranks
share. Both are larger here than by default. Codecs take turns, each started anew in every round;
the codec is that of exchange and gradients.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
import time
from typing import Any

from testbed import workers

_ROOT = pathlib.Path(__file__).parents[2]
# Each program with options of its own: values that travel are some megabytes a step.
PROGRAMS = {
    "moe_alltoall": ["--features", "256", "--width", "512", "--batch", "32"],
    "dlrm": ["--features", "64", "--tables", "26", "--batch", "128", "--width", "512"],
}
CODECS = ("raw", "lossless", "bf16", "bf16|lossless", "int8", "int4")
_COLUMNS = ("program", "codec", "a step", "of raw", "sent a step", "loss")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m testbed.exchanges", description=__doc__)
    add = parser.add_argument
    add("--hosts", type=int, default=4)
    add("--link", default="1gbit")
    add("--programs", default=",".join(PROGRAMS), help="default: %(default)s")
    add("--codecs", default=",".join(CODECS), help="default: %(default)s")
    add("--rounds", type=int, default=2)
    add("--epochs", type=int, default=4, help="the first, in which all is compiled, does not count")
    add("--json", type=pathlib.Path)
    add("--table", metavar="FILE", help="measure nothing; print such a file as a Markdown table")
    add("--worker", nargs=2, metavar=("PROGRAM", "CODEC"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        return _work(*given.worker, given.epochs)
    if given.table:
        print(
            table([json.loads(line) for line in pathlib.Path(given.table).open(encoding="utf-8")])
        )
        return 0
    return _compare(given)


def _compare(given: argparse.Namespace) -> int:
    from jaxccomp.bench import machine
    from testbed import __main__ as command_line
    from testbed.bed import Testbed

    command_line.exit_on_signals()
    cases = [(p, c) for p in given.programs.split(",") for c in given.codecs.split(",")]
    found: dict[tuple[str, str], list[dict[str, Any]]] = {case: [] for case in cases}
    env = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"}
    with Testbed(given.hosts, given.link) as bed:
        for _ in range(given.rounds):
            for case in cases:
                program = [__file__, "--epochs", str(given.epochs), "--worker", *case]
                try:
                    said = workers.run(program, bed, env=env, timeout_seconds=300).said
                except workers.FailedError as error:
                    print(error, file=sys.stderr)
                    return 1
                found[case] += said
                print(*case, said[0], file=sys.stderr, flush=True)
    rows = [_row(given, *case, said) for case, said in found.items()]
    for row in rows:
        print(json.dumps(row))
    if given.json:
        lines = [{"facts": machine.facts()}, *rows]
        given.json.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return 0


def _row(
    given: argparse.Namespace, program: str, codec: str, said: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "program": program,
        "options": " ".join(PROGRAMS[program]),
        "hosts": given.hosts,
        "link": given.link,
        "codec": codec,
        # All ranks wait for each other in every step.
        "seconds": round(statistics.median(s for each in said for s in each["seconds"]), 5),
        "sent_bytes_per_step": round(statistics.mean(each["sent"] for each in said)),
        "loss": round(statistics.mean(each["loss"] for each in said), 4),
    }


def _work(program: str, codec: str, epochs: int) -> int:
    """Trains, and says what a step took in each epoch, what it sent, and the last loss."""
    sys.path.insert(0, str(_ROOT / "examples"))
    import importlib

    import jaxccomp as jcc

    example = importlib.import_module(program)
    world = jcc.init()
    options = example.parser().parse_args(PROGRAMS[program])
    data = example.load(world, options)
    training = example.train(world, data, options, None if codec == "raw" else codec)
    steps = len(data[0][0])
    float(next(training)["loss"])  # waits for the epoch, or the next one would be timed with it
    before = jcc.stats.get().total
    seconds = []
    for _ in range(1, epochs):
        begun = time.perf_counter()
        loss = float(next(training)["loss"])
        seconds.append((time.perf_counter() - begun) / steps)
    sent = jcc.stats.get().total.remote_bytes - before.remote_bytes
    workers.say({"seconds": seconds, "sent": sent / len(seconds) / steps, "loss": loss})
    return 0


def table(lines: list[dict[str, Any]]) -> str:
    """A Markdown table of a results file."""
    rows = [line for line in lines if "codec" in line]
    raw = {row["program"]: row["seconds"] for row in rows if row["codec"] == "raw"}
    text = [f"| {' | '.join(_COLUMNS)} |", "|---|---|" + "---:|" * (len(_COLUMNS) - 2)]
    for row in rows:
        cells = [
            row["program"],
            row["codec"].replace("|", "\\|"),
            f"{1e3 * row['seconds']:.1f} ms",
            f"{raw[row['program']] / row['seconds']:.2f} x",
            f"{row['sent_bytes_per_step'] / 1e6:.2f} MB",
            f"{row['loss']:.4f}",
        ]
        text.append(f"| {' | '.join(cells)} |")
    return "\n".join(text)


if __name__ == "__main__":
    sys.exit(main())
