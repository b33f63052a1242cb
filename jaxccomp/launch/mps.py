"""Runs NVIDIA's Multi-Process Service during a job: kernels of several processes on one GPU.

The job starts its own daemon, with pipes and logs in a private folder, and changes neither the
GPUs' compute mode nor other daemons. If the environment names a running daemon, the job uses that
and does not stop it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence

from jaxccomp import errors
from jaxccomp.launch import leftovers, signals
from jaxccomp.launch.gpus import Gpu

CONTROL = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
_DEFAULT_PIPES = "/tmp/nvidia-mps"
_START_SECONDS = 20.0
_QUIT_SECONDS = 5.0  # for the daemon to end, after its clients have ended
_ASK_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class Service:
    """A running daemon.

    Attributes:
      gpus: the GPUs, with the names that clients must use.
      environment: the variables that clients need.
      pipes: the folder of its pipes.
      own: whether this job started it.
    """

    gpus: tuple[Gpu, ...]
    environment: dict[str, str]
    pipes: str
    own: bool


def why_not(environ: Mapping[str, str] = os.environ) -> str:
    """Return why MPS cannot be used here; "" when it can."""
    if shutil.which(CONTROL, path=environ.get("PATH")):
        return ""
    return (
        f"{CONTROL} is not on PATH (it comes with NVIDIA's driver, in Debian and Ubuntu as "
        "nvidia-compute-utils; a container has it with NVIDIA_DRIVER_CAPABILITIES=compute,utility)"
    )


def state(environ: Mapping[str, str] = os.environ) -> str:
    """Describes MPS on this machine: whether it can be used, and the pipes of a running daemon."""
    if reason := why_not(environ):
        return f"cannot be used: {reason}"
    pipes = _answering(environ)
    return f"a daemon runs, pipes in {pipes}" if pipes else "can be used; no daemon runs"


def _answering(environ: Mapping[str, str]) -> str:
    """Return the folder of pipes of a running daemon; empty if none answers."""
    there = environ.get(PIPES, _DEFAULT_PIPES)
    return there if os.path.isdir(there) and _ask("get_server_list", environ) == 0 else ""


@contextlib.contextmanager
def running(gpus: Sequence[Gpu], environ: Mapping[str, str] = os.environ) -> Iterator[Service]:
    """Yield an MPS service for ``gpus``; stop it afterwards if this call started it.

    Args:
      gpus: the GPUs of the job.
      environ: the environment, for the path of the command and the pipes of a running daemon.

    Raises:
      LaunchError: if the command is missing, or the daemon does not start.
    """
    if reason := why_not(environ):
        raise errors.LaunchError(
            f"MPS cannot be used: {reason}. Leave --mps out to let the ranks take turns on a GPU."
        )
    if there := _answering(environ):
        yield Service(tuple(gpus), {PIPES: there}, there, own=False)
        return
    folder = tempfile.mkdtemp(prefix="jaxccomp-mps-")  # sockets have short names: not under $HOME
    try:
        own = {PIPES: f"{folder}/pipe", LOGS: f"{folder}/log"}
        for path in own.values():
            os.mkdir(path, mode=0o700)
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(gpu.name for gpu in gpus)}
        try:
            _start(dict(environ) | own | visible, own)
            yield Service(_renumbered(gpus), own, own[PIPES], own=True)
        finally:
            with signals.uninterrupted():
                _stop(dict(environ) | own, f"{PIPES}={own[PIPES]}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _renumbered(gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Number the GPUs as a daemon's clients do, from 0; UUIDs do not change."""
    return tuple(
        dataclasses.replace(gpu, name=str(place)) if gpu.name.isdigit() else gpu
        for place, gpu in enumerate(gpus)
    )


def _start(environ: dict[str, str], own: Mapping[str, str]) -> None:
    command = [shutil.which(CONTROL, path=environ.get("PATH")), "-d"]
    said = pathlib.Path(own[LOGS], "start")
    with open(said, "wb") as output:  # no pipe: the daemon would keep it open
        try:
            status = subprocess.run(
                command,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=_START_SECONDS,
                start_new_session=True,  # no Ctrl-C from the terminal
            ).returncode
        except subprocess.TimeoutExpired:
            status = None
    if status == 0 and leftovers.wait(
        lambda: _ask("get_server_list", environ) == 0, _START_SECONDS
    ):
        return
    lines = []
    for path in (said, pathlib.Path(own[LOGS], "control.log")):
        with contextlib.suppress(OSError):
            lines += path.read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
    raise errors.LaunchError(
        f"{' '.join(command)} "
        + ("does not answer" if status in (0, None) else f"ended with status {status}")
        + (": " + " | ".join(lines) if lines else ".")
    )


def _stop(environ: dict[str, str], mark: str) -> None:
    if not leftovers.marked(mark):
        return
    _ask("quit", environ)
    leftovers.wait(lambda: not leftovers.marked(mark), _QUIT_SECONDS)
    leftovers.kill(mark)


def quit(pipes: str, environ: Mapping[str, str] = os.environ) -> None:
    """Stop the daemon with this folder of pipes, even if another process has started it."""
    if not why_not(environ):
        _ask("quit", dict(environ) | {PIPES: pipes})


def _ask(what: str, environ: Mapping[str, str]) -> int | None:
    """Send the daemon a command; return the exit status, or None without an answer in time."""
    control = shutil.which(CONTROL, path=environ.get("PATH"))
    assert control is not None  # why_not() has found it
    try:
        return subprocess.run(
            [control],
            env=dict(environ),
            input=what + "\n",
            text=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_ASK_SECONDS,
        ).returncode
    except subprocess.TimeoutExpired:
        return None


def tell(service: Service, show: Callable[[str], None]) -> None:
    """Report which daemon the job uses."""
    started = "started" if service.own else "running already, used and left alone"
    show(f"MPS: {started}, pipes in {service.pipes}")
