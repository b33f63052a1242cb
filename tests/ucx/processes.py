"""Starts the processes of a program of ``jax.distributed``, without a launcher."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import patience

from jaxccomp.launch.processes import reserved_port

# Time for the other processes to end after one has failed.
GRACE_SECONDS = 20


_reserved = contextlib.ExitStack()  # until this process ends


def free_port() -> int:
    """Reserve a port for the coordinator."""
    return _reserved.enter_context(reserved_port())


def environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """Return the variables by which processes find each other (tests/contract/meeting.py)."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "OMPI_COMM"))}
    return env | {
        "JAX_PLATFORMS": "cpu",
        "JAXCCOMP_TEST_COORDINATOR": f"127.0.0.1:{port}",
        "JAXCCOMP_TEST_RANK": str(rank),
        "JAXCCOMP_TEST_RANKS": str(ranks),
    }


def start(
    ranks: int,
    arguments: Sequence[str],
    env: Mapping[str, str] | None = None,
    before: Sequence[str] = (),
) -> list[subprocess.Popen[str]]:
    """Start processes of this Python with these arguments.

    Args:
      env: more variables; ``{rank}`` in a value is replaced by the process's rank.
      before: a wrapper command.
    """
    port = free_port()
    more = [
        {name: value.replace("{rank}", str(rank)) for name, value in (env or {}).items()}
        for rank in range(ranks)
    ]
    return [
        subprocess.Popen(
            [*before, sys.executable, "-P", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(rank, ranks, port) | more[rank],
        )
        for rank in range(ranks)
    ]


def finish(started: Sequence[subprocess.Popen[str]], timeout_seconds: float) -> list[str]:
    """Wait for all processes, kill the remaining ones, and return all outputs."""
    patience.wait_for(
        lambda: any(each.poll() for each in started) or all_ended(started), timeout_seconds
    )
    patience.wait_for(lambda: all_ended(started), GRACE_SECONDS)
    texts = []
    for each in started:
        if each.poll() is None:
            each.kill()
            texts.append(each.communicate()[0] + "\n(killed: it did not end in time)")
        else:
            texts.append(each.communicate()[0])
    return texts


def all_ended(started: Sequence[subprocess.Popen[str]]) -> bool:
    return all(each.poll() is not None for each in started)


def answer(text: str) -> Any:
    """Return the last JSON object that a process printed."""
    lines = [line for line in text.splitlines() if line.startswith("{")]
    assert lines, text
    return json.loads(lines[-1])
