"""Measures how codecs speed up programs that exchange values inside a step, on slow links.

    python -m testbed.exchanges --json docs/results/exchanges.jsonl
    python -m testbed.exchanges --table docs/results/exchanges.jsonl

The programs are two examples of the repository in which a step waits for the other ranks' values in
the forward and in the backward pass: a mixture of experts (two `alltoall` a layer, and two for its
cotangents) and a recommendation model (`alltoallv` of rows of tables), each with an `allreduce` of
the gradients of shared parameters. Both are larger here than by default. Each round starts a new
process per codec; the codec applies to the exchange and to the gradients.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from typing import Any

from testbed import programs, scenario, workers

PROGRAMS = ("moe_alltoall", "dlrm")
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
    add("--epochs", type=int, default=4, help="the first one compiles and is not counted")
    add("--worker", nargs=2, metavar=("PROGRAM", "CODEC"), help=argparse.SUPPRESS)
    return scenario.run(parser, _measure, table=table, worker="worker", work=_work)


def _measure(given: argparse.Namespace) -> list[scenario.Line]:
    from testbed.bed import Testbed

    cases = [(p, c) for p in given.programs.split(",") for c in given.codecs.split(",")]
    found: dict[tuple[str, str], list[dict[str, Any]]] = {case: [] for case in cases}
    with Testbed(given.hosts, given.link) as bed:
        for _ in range(given.rounds):
            for case in cases:
                program = [__file__, "--epochs", str(given.epochs), "--worker", *case]
                said = workers.run(program, bed, env=programs.ENVIRONMENT, timeout_seconds=300).said
                found[case] += said
                print(*case, said[0], file=sys.stderr, flush=True)
    rows = [_row(given, *case, said) for case, said in found.items()]
    for row in rows:
        print(json.dumps(row))
    return rows


def _row(
    given: argparse.Namespace, program: str, codec: str, said: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "program": program,
        "options": " ".join(programs.PROGRAMS[program].options),
        "hosts": given.hosts,
        "link": given.link,
        "codec": codec,
        # Ranks wait for each other in every step, so the median over all ranks is a step's time.
        "seconds": round(statistics.median(s for each in said for s in each["seconds"]), 5),
        "sent_bytes_per_step": round(statistics.mean(each["sent"] for each in said)),
        "loss": round(statistics.mean(each["loss"] for each in said), 4),
    }


def _work(given: argparse.Namespace) -> None:
    program, codec = given.worker
    programs.work(program, None if codec == "raw" else codec, given.epochs)


def table(lines: list[dict[str, Any]]) -> str:
    """A Markdown table of a results file."""
    rows = [line for line in lines if "codec" in line]
    raw = {row["program"]: row["seconds"] for row in rows if row["codec"] == "raw"}
    cells = (
        (
            row["program"],
            row["codec"],
            f"{1e3 * row['seconds']:.1f} ms",
            f"{raw[row['program']] / row['seconds']:.2f} x",
            f"{row['sent_bytes_per_step'] / 1e6:.2f} MB",
            f"{row['loss']:.4f}",
        )
        for row in rows
    )
    return scenario.markdown(_COLUMNS, cells, texts=2)


if __name__ == "__main__":
    sys.exit(main())
