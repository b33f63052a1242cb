"""Creates and removes network namespaces and shaped links with ``ip`` and ``tc``."""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence

from jaxccomp import errors
from testbed import plan as plans

_numbers = itertools.count()
_NAMESPACES = pathlib.Path("/var/run/netns")
_TOOLS = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux", "unshare": "util-linux"}
# TCP reno, since every kernel has it and lets namespaces choose it. No IPv6, since the plan has no
# IPv6 addresses. In a container /proc/sys may be read-only: then the system's settings apply.
_SETTINGS = """
cd /proc/sys/net
set_to() { ! [ -e $1 ] || echo $2 > $1; } 2> /dev/null
set_to ipv4/tcp_congestion_control reno
set_to ipv6/conf/all/disable_ipv6 1
set_to ipv6/conf/default/disable_ipv6 1
true
"""


class TestbedError(errors.JaxccompError, RuntimeError):
    """This machine cannot run a testbed, or a command in one failed."""


def why_not() -> str:
    """Return why this process cannot create a testbed; "" if it can."""
    missing = {package: tool for tool, package in _TOOLS.items() if not shutil.which(tool)}
    if missing:
        tools, packages = " and ".join(missing.values()), " and ".join(missing)
        return (
            f"a testbed needs the command {tools}, which is not on the PATH: install {packages} "
            f"(Debian: `apt-get install {' '.join(missing)}`)."
        )
    if os.geteuid() != 0:
        return (
            "a testbed needs root, to make network namespaces: run it with sudo, or in a "
            "container started with `--privileged`."
        )
    trial = subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, text=True)
    if trial.returncode:
        return (
            f"this system permits no network namespaces ({trial.stderr.strip()}): in a container, "
            "start it with `--privileged`."
        )
    return ""


def own_name() -> str:
    """A new owner name for the namespaces of a testbed of this process."""
    return plans.owner_name(os.getpid(), _start_time(os.getpid()) or 0, next(_numbers))


def _start_time(pid: int) -> int | None:
    """Return the start time of a process in clock ticks; None if it has ended."""
    try:
        status = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *fields = status.rpartition(")")[2].split()
    return None if state in "ZX" else int(fields[18])


def make(plan: plans.Plan) -> None:
    """Creates the namespaces and links of ``plan``; after a failure, call ``remove``."""
    switch = plan.switch.namespace
    _call(["ip", "-batch", "-"], [f"netns add {h.namespace}" for h in (*plan.hosts, plan.switch)])
    lines = [
        "link set lo up",
        "link add br0 type bridge",
        f"address add {plan.switch.address}/24 dev br0",
        "link set br0 up",
    ]
    for host in plan.hosts:
        lines += [
            f"link add {host.name} type veth peer name eth0 netns {host.namespace}",
            f"link set {host.name} master br0 up",
        ]
    _call(["ip", "-n", switch, "-batch", "-"], lines)
    queue = f"root tbf rate {plan.shape.rate}bit burst {plan.shape.burst} limit {plan.shape.limit}"
    for host in plan.hosts:
        lines = [
            "link set lo up",
            f"address add {host.address}/24 dev eth0",
            f"link set eth0 up gso_max_size {plan.shape.packet}",
        ]
        _call(["ip", "netns", "exec", host.namespace, "sh", "-c", _SETTINGS])
        _call(["ip", "-n", host.namespace, "-batch", "-"], lines)
        # Shape outgoing traffic at the host's end, incoming traffic at the switch's end.
        _call(["tc", "-n", host.namespace, "qdisc", "add", "dev", "eth0", *queue.split()])
        _call(["tc", "-n", switch, "qdisc", "add", "dev", host.name, *queue.split()])


def received_bytes(plan: plans.Plan) -> int:
    """Bytes that all hosts have received over their links."""
    total = 0
    for host in plan.hosts:
        text = _call(["ip", "netns", "exec", host.namespace, "cat", "/proc/net/dev"])
        total += sum(int(row.split()[1]) for row in text.splitlines() if "eth0:" in row)
    return total


def remove(namespaces: Iterable[str]) -> None:
    """Kills all processes in ``namespaces`` and deletes the existing namespaces."""
    namespaces = [each for each in namespaces if (_NAMESPACES / each).exists()]
    kill(namespaces)
    for each in namespaces:
        # Deleting a namespace deletes its ends of the links, and with each end the end's peer.
        subprocess.run(["ip", "netns", "delete", each], capture_output=True)


def remove_stale() -> None:
    """Removes namespaces and folders of testbeds whose process has ended."""

    def is_stale(name: str) -> bool:
        owner = plans.owner_of(name)
        return owner is not None and _start_time(owner[0]) != owner[1]

    if _NAMESPACES.is_dir():
        remove([path.name for path in _NAMESPACES.iterdir() if is_stale(path.name)])
    for path in pathlib.Path(tempfile.gettempdir()).glob(f"{plans.PREFIX}-*-switch-*"):
        if is_stale(path.name.rpartition("-")[0]):
            shutil.rmtree(path, ignore_errors=True)


def kill(namespaces: Sequence[str], wait_seconds: float = 10.0) -> None:
    """Kills every process in ``namespaces`` and waits until all have ended."""
    deadline = time.monotonic() + wait_seconds
    while pids := processes(namespaces):
        if time.monotonic() > deadline:
            raise TestbedError(f"processes {pids} of a testbed do not end.")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def processes(namespaces: Sequence[str]) -> list[int]:
    """The ids of the processes in ``namespaces``."""
    found = set()
    for path in (_NAMESPACES / each for each in namespaces):
        with contextlib.suppress(OSError):
            found.add(path.stat().st_ino)
    pids = []
    for entry in os.scandir("/proc"):
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and os.stat(f"/proc/{entry.name}/ns/net").st_ino in found:
                pids.append(int(entry.name))
    return pids


def _call(command: Sequence[str], lines: Sequence[str] = ()) -> str:
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip() or f"exit status {done.returncode}"
        raise TestbedError(f"`{' '.join(command[:8])}` failed: {said}")
    return done.stdout
