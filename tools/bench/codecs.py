"""Measures the speed of codecs, memcpy and ZipNN, and prints tables of it."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from testbed import scenario

from jaxccomp.bench import codecs as bench
from jaxccomp.bench.files import Tensor
from jaxccomp.cli import bench as command


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line.

    Returns:
      The exit status of `scenario.run`.
    """
    parser = argparse.ArgumentParser(prog="python -m bench.codecs", description=__doc__)
    command.add_plan(parser)
    return scenario.run(
        parser,
        _measure,
        table=lambda lines: bench.markdown(parse(lines)),
        arguments=arguments,
    )


def parse(lines: Iterable[scenario.Line]) -> list[bench.Row]:
    """The codec rows of a results file."""
    return [bench.Row(**line) for line in lines if "codec" in line]


def _measure(given: argparse.Namespace) -> list[scenario.Line]:
    plan, tensors = command.plan_of(given)
    rows = []
    for tensor in tensors:
        rows += bench.run(plan, [tensor], command.say)
        rows += _zipnn(plan, tensor)
    print(bench.markdown(rows), end="")
    return [bench.line(row) for row in rows]


# Names of dtypes in ZipNN.
_ZIPNN = {"bfloat16": "bfloat16", "float16": "float16", "float32": "float32"}


def _zipnn(plan: bench.Plan, tensor: Tensor) -> Iterator[bench.Row]:
    """Measure ZipNN with one thread, like all codecs here, at its fastest input length."""
    if tensor.ref is not None or tensor.values.dtype.name not in _ZIPNN:
        return
    try:
        importlib.import_module("zipnn")
    except ImportError as error:
        command.say(f"left out: zipnn: {error}")
        return
    lengths = {min(tensor.values.nbytes, 1 << shift) for shift in (18, 20, 22, 24)}
    rows = [_measure_zipnn_at(length, plan, tensor) for length in sorted(lengths)]
    best = max(rows, key=lambda row: row.encode_GBps)
    yield dataclasses.replace(best, decode_GBps=max(row.decode_GBps for row in rows))


def _measure_zipnn_at(length: int, plan: bench.Plan, tensor: Tensor) -> bench.Row:
    zipnn = importlib.import_module("zipnn")
    dtype = tensor.values.dtype.name
    coder = zipnn.ZipNN(
        input_format="byte", bytearray_dtype=_ZIPNN[dtype], threads=1, is_streaming=False
    )
    raw = bytearray(tensor.values.view(np.uint8)[:length].tobytes())
    packed = coder.compress(bytearray(raw))
    if bytes(coder.decompress(packed)) != bytes(raw):
        raise RuntimeError("zipnn's decoded bytes differ from its input")
    times: dict[str, list[float]] = {"encode": [], "decode": [], "copy": []}
    target = bytearray(length)
    end = time.perf_counter() + plan.seconds
    while time.perf_counter() < end or len(times["copy"]) < 3:
        given = bytearray(raw)  # compress may write into its argument
        for name, call in (
            ("encode", lambda given=given: coder.compress(given)),
            ("decode", lambda: coder.decompress(packed)),
            ("copy", lambda: target.__setitem__(slice(None), raw)),
        ):
            begun = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - begun)
    rates = {name: length / statistics.median(taken) / 1e9 for name, taken in times.items()}
    return bench.Row(
        tensor.name, "peer: zipnn", dtype, "cached", length, length / len(packed),
        rates["encode"], rates["decode"], 0.0, rates["copy"], 0.0, 0.0,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
