"""Compares times predicted by `jaxccomp.schedules.simulate` with times measured on the testbed.

    python -m testbed.prices --output docs/results/prices.jsonl

The simulated cluster is the testbed: hosts with links of the measured goodput, which share the two
cores of one machine. Codecs have the ratios and single-core rates of docs/results/codecs.jsonl. All
inputs of a prediction were measured elsewhere; none is fitted to a row.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
from collections.abc import Iterable
from typing import Any

from jaxccomp import codecs, schedules
from jaxccomp._native import json_files

Line = dict[str, Any]

_CORES = 2
# CPU time of TCP through MPICH and libfabric at each end. In a raw broadcast of 64 MiB on four
# hosts a rank sends and receives 112 MiB, with 0.108 s of CPU time (docs/testbed.md).
_LINK = {"processor_seconds": 2e-5, "processor_seconds_per_byte": 9e-10}
# The tensor of docs/results/codecs.jsonl that resembles an input.
_TENSORS = {"bfloat16": "weights", "float32": "gradients"}
_SUFFIX = ", mpich"
ERRORS = ("median_error", "worst_error", "calls")  # fields of a summary


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m testbed.prices", description=__doc__)
    parser.add_argument(
        "--measured", type=pathlib.Path, default="docs/results/testbed.jsonl", help="%(default)s"
    )
    parser.add_argument("--codecs", type=pathlib.Path, default="docs/results/codecs.jsonl")
    parser.add_argument("--output", type=pathlib.Path)
    given = parser.parse_args()
    rows = prices(read(given.measured), read(given.codecs))
    for row in rows:
        print(json.dumps(row))
    print(json.dumps(summary(rows)))
    if given.output:
        text = "".join(json.dumps(row) + "\n" for row in [*rows, summary(rows)])
        given.output.write_text(text, encoding="utf-8")
    return 0


def read(path: pathlib.Path) -> list[Line]:
    """The lines of a results file."""
    return json_files.lines(path)


def prices(measured: Iterable[Line], codecs: Iterable[Line]) -> list[Line]:
    """Predicted and measured seconds and the error of each call that `simulate` can predict."""
    rates = {
        (line["tensor"], line["dtype"], line["codec"]): line
        for line in codecs
        if line.get("working_set") == "streaming"
    }
    found = []
    for line in measured:
        name = line.get("contender", "").removesuffix(_SUFFIX).removeprefix("jaxccomp ")
        codec = name.partition(":block=")[0]
        dtype = line.get("input", "")
        rate = rates.get((_TENSORS.get(dtype), dtype, codec))
        known = line.get("op") in schedules.COLLECTIVES and (codec == "raw" or rate)
        if not line.get("contender", "").startswith("jaxccomp") or not known:
            continue
        price = schedules.simulate(
            line["op"],
            line["setting"],
            cluster=_cluster(line),
            size_bytes=line["size"],
            codec=_codec(codec, rate),
            dtype=line["input"],
        )
        found.append(
            {
                "op": line["op"],
                "hosts": line["hosts"],
                "link": line["link"],
                "size": line["size"],
                "codec": name,
                "setting": line["setting"],
                "algorithm": price.algorithm,
                "measured_seconds": line["seconds"],
                "predicted_seconds": round(price.seconds, 5),
                "error": round(price.seconds / line["seconds"] - 1, 4),
            }
        )
    return found


def summary(rows: list[Line]) -> Line:
    """The median and largest absolute error, of all calls and by operation."""

    def of(errors: list[float]) -> Line:
        return {
            "median_error": round(statistics.median(map(abs, errors)), 4),
            "worst_error": round(max(map(abs, errors)), 4),
            "calls": len(errors),
        }

    by_operation: dict[str, list[float]] = {}
    for row in rows:
        by_operation.setdefault(row["op"], []).append(row["error"])
    return of([row["error"] for row in rows]) | {
        "by_operation": {op: of(errors) for op, errors in by_operation.items()}
    }


def _cluster(line: Line) -> Line:
    rate = line["goodput_GBps"] * 1e9
    hosts = {"count": line["hosts"], "ranks": 1, "cores": _CORES}
    return {
        "version": 1,
        "hosts": [hosts | {"up_bytes_per_second": rate, "down_bytes_per_second": rate}],
        "one_machine": True,
        "pairs": {"link": _LINK},
    }


def _codec(name: str, line: Line | None) -> Line | None:
    if line is None or name == "raw":
        return None
    return {
        "ratio": line["ratio"],
        "encode_bytes_per_second": line["encode_GBps"] * 1e9,
        "decode_bytes_per_second": line["decode_GBps"] * 1e9,
        "merge_bytes_per_second": line["merge_GBps"] * 1e9,
        "lossless": codecs.is_lossless(name),
    }


if __name__ == "__main__":
    sys.exit(main())
