"""UCX: selects the library, and connects processes without MPI through it.

Each process opens a worker, and shares its address through the store of ``jax.distributed``.
Process 0 draws a secret, which every message carries (csrc/transport/ucx/). A process that reaches
a UCX port but not the store does not know the secret, so its messages are ignored. Processes that
meet at a coordinator derive the secret from process 0's random salt and from the job's secret.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import fcntl
import functools
import hmac
import os
import pathlib
import secrets
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxccomp import config, errors
from jaxccomp._native import engine, libraries
from jaxccomp._runtime.peer_info import Share, share_bytes
from jaxccomp._runtime.world import World

# The oldest supported UCX 1 (csrc/transport/ucx/ucx_abi.h).
MIN_VERSION = (1, 17)
_SECRET_BYTES = 16
_WORKER = b"worker of UCX"
_SIOCGIFADDR = 0x8915  # linux/sockios.h
Derive = Callable[..., bytes]  # Rendezvous.derive
_NO_GUARD = bytes(16)
_MAX_ADDRESS_BYTES = 1 << 16
_MAX_SECONDS = 20  # to print the version
_PRINT_VERSION = (
    "import ctypes, sys; ucp = ctypes.CDLL(sys.argv[1]); "
    "ucp.ucp_get_version_string.restype = ctypes.c_char_p; "
    "print(ucp.ucp_get_version_string().decode())"
)

INSTALL = "`pip install 'jaxccomp[ucx]'` brings it, or the system's package of UCX 1.17 or newer"


def why_missing() -> str:
    """Return why the engine finds no usable UCX; empty when it does."""
    return _found()[1]


def version() -> str:
    """Return the version of the UCX that the engine uses; empty without one."""
    return "" if why_missing() else _found()[0]


def why_no_reads() -> str:
    """Return why processes of this host cannot read each other's memory; empty if they may."""
    if config.get("ucx_cma") == "off":
        return 'the option ucx_cma is "off"'
    if not engine.available() or not engine.load().reads_memory():
        return "the system does not allow it"
    try:
        scope = pathlib.Path("/proc/sys/kernel/yama/ptrace_scope").read_text(encoding="ascii")
    except OSError:  # without Yama
        return ""
    # 1: a process names its reader (prctl); 2: readers need CAP_SYS_PTRACE; 3: no process may read.
    return "" if int(scope) < 2 else f"kernel.yama.ptrace_scope is {int(scope)}"


@functools.cache
def _found() -> tuple[str, str]:
    if not engine.available():
        return "", "it needs the engine"
    _prefer_system_library()
    return engine.load().ucx()


def _prefer_system_library() -> None:
    """Prefer the system's UCX to a wheel's if it is new enough: it is built for the network."""
    system = ctypes.util.find_library("ucp")
    if not system or not libraries.find("ucp") or libraries.named("ucp"):
        return
    # Get its version in another process: if this process loaded an old UCX, parts of that would
    # replace the wheel's.
    command = [sys.executable, "-I", "-S", "-c", _PRINT_VERSION, system]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_MAX_SECONDS)
        number = tuple(int(each) for each in done.stdout.strip().split(".")[:2])
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return
    if number >= MIN_VERSION:
        engine.load().add_library_path("ucp", system)


def open_worker(*, shares_memory: bool, net_devices: str | None = None) -> tuple[Any | None, str]:
    """Open this process's UCX worker; on failure return None and the reason.

    Args:
      net_devices: names, separated by commas; None: the option.
      shares_memory: whether processes of a host send through shared memory. False for groups that
        must survive a killed process (csrc/transport/ucx/ucx_worker.h).
    """
    if why := why_missing():
        return None, why
    try:
        names = config.get("ucx_net_devices") if net_devices is None else net_devices
        return engine.load().UcxWorker(names, shares_memory), ""
    except RuntimeError as error:
        return None, str(error)


def seal(address: bytes, derive: Derive) -> dict[str, str]:
    """Add this UCX's version and an HMAC to a worker address.

    Args:
      address: a worker's address, of this process or returned by `unseal`.
      derive: `Rendezvous.derive`.
    """
    by = version()
    return {
        "ucx": by,
        "address": address.hex(),
        "mac": derive(_WORKER, by.encode(), address).hex(),
    }


def unseal(sealed: Any, derive: Derive) -> bytes:
    """Check and return a worker address: ``ucp_ep_create`` aborts on a malformed address.

    Raises:
      InitializationError: when version, length or HMAC is wrong.
    """
    try:
        by, address = str(sealed["ucx"]), bytes.fromhex(sealed["address"])
        code = bytes.fromhex(sealed["mac"])
    except (KeyError, TypeError, ValueError):
        raise errors.InitializationError("the address of its UCX worker cannot be read") from None
    if by.split(".")[:2] != version().split(".")[:2]:
        raise errors.InitializationError(
            f"it has UCX {by}, and this process {version()}: use the same minor version on all"
        )
    if not 0 < len(address) <= _MAX_ADDRESS_BYTES:
        raise errors.InitializationError(
            f"the address of its UCX worker has {len(address)} bytes, not 1 to {_MAX_ADDRESS_BYTES}"
        )
    if not hmac.compare_digest(code, derive(_WORKER, by.encode(), address)):
        raise errors.InitializationError("the address of its UCX worker has a wrong HMAC")
    return address


def secret_of(salt: bytes, derive: Derive) -> bytes:
    """Derive the secret of UCX messages from the job's secret; only the salt is sent to members."""
    return derive(b"secret of UCX", salt)[:_SECRET_BYTES]


def net_devices(address: str) -> str:
    """Return the network devices for a group, from this host's address towards the coordinator.

    They are the option's or UCX_NET_DEVICES, if set. Otherwise they are the network interface with
    the address, and all InfiniBand devices, which do not listen for TCP connections.
    """
    if config.get("ucx_net_devices") or os.environ.get("UCX_NET_DEVICES"):
        return str(config.get("ucx_net_devices"))
    name = _interface(address)
    if not name:
        return ""
    ports = pathlib.Path("/sys/class/infiniband").glob("*/ports/*")
    return ",".join([name, *sorted(f"{port.parts[-3]}:{port.name}" for port in ports)])


def _interface(address: str) -> str:
    """Return the network interface with that address; empty if unknown."""
    if ":" in address:
        packed = socket.inet_pton(socket.AF_INET6, address.partition("%")[0]).hex()
        with contextlib.suppress(OSError):
            for line in pathlib.Path("/proc/net/if_inet6").read_text().splitlines():
                if line.split()[0] == packed:
                    return line.split()[-1]
        return ""
    if address.startswith("127."):
        return "lo"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                request = struct.pack("256s", name.encode()[:15])
                found = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24]
                if socket.inet_ntoa(found) == address:
                    return name
    return ""


def connect(
    share: Share, process: int, worker: Any, pids: Sequence[int]
) -> tuple[bytes, list[bytes], list[bool]]:
    """Exchange the job's secret, the worker addresses, and which processes read this one's memory.

    Each process sends the address and value of a word in its memory, and the others on its host try
    to read the word. This shows which pairs can read each other, and that a pid means the same
    process to both.

    Args:
      share: an allgather of rows of integers.
      process: this process's number.
      worker: this process's worker.
      pids: by process, its pid if this process can see it; 0 for itself and the others.

    Returns:
      The job's secret, the worker addresses, and by process whether it reads this one's memory.
    """
    address = worker.address
    guard = worker.let_read() if config.get("ucx_cma") != "off" else _NO_GUARD
    secret = secrets.token_bytes(_SECRET_BYTES) if process == 0 else bytes(_SECRET_BYTES)
    sizes = [int(row[0]) for row in share((len(address),))]
    longest = max(sizes)
    if min(sizes) <= 0 or longest > _MAX_ADDRESS_BYTES:
        raise errors.InitializationError(
            f"UCX addresses of {sizes} bytes are invalid; 1 to {_MAX_ADDRESS_BYTES} bytes are "
            "allowed. An entry in jax.distributed's store was not written by jaxccomp."
        )
    rows = share_bytes(share, secret + guard + address + bytes(longest - len(address)))
    secret = rows[0][:_SECRET_BYTES]
    begin = _SECRET_BYTES + len(guard)
    guards = [row[_SECRET_BYTES:begin] for row in rows]
    addresses = [row[begin : begin + size] for row, size in zip(rows, sizes, strict=True)]
    return secret, addresses, _readers(share, process, worker, pids, guards)


def _readers(
    share: Share, process: int, worker: Any, pids: Sequence[int], guards: Sequence[bytes]
) -> list[bool]:
    """Return for each process whether it reads this one's memory."""
    if all(guard == _NO_GUARD for guard in guards):
        return [False] * len(guards)
    reads = config.get("ucx_cma") != "off"
    seen = [(pid if reads else 0, guard) for pid, guard in zip(pids, guards, strict=True)]
    found = np.packbits(worker.find_readable(seen))
    rows = share_bytes(share, found.tobytes())
    return [bool(np.unpackbits(np.frombuffer(row, np.uint8))[process]) for row in rows]


def who_lacks(has: Sequence[int], why_here: str) -> str:
    """Return which processes cannot use UCX, and why; empty when all can.

    Args:
      has: by process, whether it can use UCX.
      why_here: why this process cannot use UCX; empty if it can.
    """
    lacking = [process for process, can in enumerate(has) if not can]
    if not lacking:
        return ""
    why = why_here or "`python -m jaxccomp doctor` shows the reason there"
    return f"process {', '.join(map(str, lacking))} cannot use UCX ({why})"


# --- Choice of the transport: MPI or UCX ----------------------------------------------------------


def agree_on_ucx(state: World, share: Share) -> Any | None:
    """Return this process's UCX worker; None if the transport is MPI, or there is none.

    With several processes and no transport, sets ``state.unreachable`` to the reason.

    Args:
      state: of this process, with the agreed planner.
      share: an allgather of rows of integers.

    Raises:
      InitializationError: on all ranks, if the option or profile needs UCX, and a rank lacks it.
    """
    option = config.get("transport")
    if state.processes == 1 or (
        state.mpi is not None and _transport_with_mpi(state, option) == "mpi"
    ):
        return None
    worker, why_not = None, 'the option transport is "mpi"'
    if option != "mpi":
        worker, why_not = open_worker(shares_memory=True)
    opened = [int(row[0]) for row in share((int(worker is not None),))]
    lacking = who_lacks(opened, why_not)
    if not lacking:
        state.unreachable = ""
        return worker
    if option == "ucx":
        raise errors.InitializationError(
            f'the option transport is "ucx", but {lacking}. {INSTALL}.'
        )
    if state.mpi is not None:
        raise errors.InitializationError(
            f"the profile was measured over UCX, but {lacking}. {INSTALL}. The option "
            'transport="mpi" also uses the profile, over MPI.'
        )
    state.unreachable = why_unreachable(state.processes, lacking)
    return None


def _transport_with_mpi(state: World, option: str) -> str:
    """Resolve the option for processes that have joined by MPI."""
    if option != "auto":
        return option
    return "ucx" if state.planner is not None and state.planner.transport == "ucx" else "mpi"


def why_unreachable(processes: int, why: str) -> str:
    """Return the error text for processes of ``jax.distributed`` without a transport."""
    return (
        f"jax.distributed has joined {processes} processes, but the engine has no transport "
        f"between them: {why}. Install UCX for each of them (`pip install 'jaxccomp[ucx]'`; it "
        "needs no MPI), or install MPI (`pip install 'jaxccomp[mpich]'`) and start the program "
        f"with `mpiexec -n {processes} python ...`. Or use axis_name= with "
        'backend="xla", which needs neither.'
    )
