"""Starts the processes of a program of ``jax.distributed``, without a launcher."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from jaxccomp.launch import ports

# What is left of a program of which one process has failed.
GRACE_SECONDS = 20


_reserved = contextlib.ExitStack()  # until this process ends


def free_port() -> int:
    """For processes to meet at."""
    return _reserved.enter_context(ports.reserved())


def environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """What a process finds of the others (tests/contract/meeting.py)."""
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
    """Processes of this Python with these arguments; `before` is a command that runs each."""
    port = free_port()
    return [
        subprocess.Popen(
            [*before, sys.executable, "-P", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(rank, ranks, port) | dict(env or {}),
        )
        for rank in range(ranks)
    ]


def finish(started: Sequence[subprocess.Popen[str]], timeout_seconds: float) -> list[str]:
    """What each printed, once all have ended or are killed; see their `returncode`."""
    deadline = time.monotonic() + timeout_seconds
    while any(each.poll() is None for each in started) and time.monotonic() < deadline:
        if any(each.poll() for each in started):
            deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
            break
        time.sleep(0.1)
    texts = []
    for each in started:
        try:
            texts.append(each.communicate(timeout=max(deadline - time.monotonic(), 0.1))[0])
        except subprocess.TimeoutExpired:
            each.kill()
            texts.append(each.communicate()[0] + "\n(killed: it did not end in time)")
    return texts


def answer(text: str) -> Any:
    """The JSON object that a process has printed last."""
    lines = [line for line in text.splitlines() if line.startswith("{")]
    assert lines, text
    return json.loads(lines[-1])
