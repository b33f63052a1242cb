"""Command lines that start MPI ranks on a testbed's hosts, with each MPI's fastest settings."""

from __future__ import annotations

import dataclasses
import pathlib
import shlex
from collections.abc import Sequence

from jaxccomp import errors
from jaxccomp.bench import launch
from testbed.plan import Plan


@dataclasses.dataclass(frozen=True)
class Settings:
    """The fastest settings of an MPI that make it use the emulated links.

    Attributes:
      vendor: the MPI's name in mpi4py.
      environment: variables of mpiexec and all ranks.
      alone: additional variables for one rank per host.
      flags: options of mpiexec; ``{network}`` is the network of the hosts.
    """

    vendor: str
    environment: dict[str, str]
    alone: dict[str, str]
    flags: tuple[str, ...]


TABLE = {
    "mpich": Settings(
        "MPICH",
        # libfabric over TCP sockets. UCX, the wheel's other netmod, does a rendezvous per message
        # and took up to twice as long; by default it would use shared memory between hosts.
        {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp", "FI_TCP_IFACE": "eth0"},
        {"MPIR_CVAR_NOLOCAL": "1"},
        ("-launcher", "ssh"),
    ),
    "openmpi": Settings(
        "Open MPI",
        # Hosts share this machine's cores, which Open MPI cannot know: waiting ranks must yield to
        # busy ones (without it, a chain was six times slower).
        {"OMPI_MCA_mpi_yield_when_idle": "1"},
        {},
        (
            *("--prtemca", "prte_if_include", "{network}"),
            *("--map-by", "slot", "--bind-to", "none"),
            *("--mca", "pml", "ob1", "--mca", "btl", "tcp,self,sm"),
            *("--mca", "btl_tcp_if_include", "eth0"),
        ),
    ),
}

# Replaces ssh: runs a command line with a host's own network, host name and shared memory.
# `ip netns exec` also mounts the host's own /sys.
_AGENT = """#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
host=$1
shift
exec ip netns exec {prefix}$host unshare --uts --ipc sh -ec '
  hostname "$0"
  mount --bind {hosts_file} /etc/hosts
  mount -t tmpfs tmpfs /dev/shm
  exec sh -c "$1"
' "$host" "$*"
"""


def find(name: str | None, python: str) -> str:
    """The MPI of ``python``'s mpi4py; raises if ``name`` is another one."""
    if name is not None and name not in TABLE:
        raise errors.unknown("MPI", name, TABLE)
    try:
        vendor, _ = launch.vendor(python)
        launch.mpiexec(python)
    except (RuntimeError, OSError) as error:
        raise errors.EngineUnavailableError(f"a testbed runs MPI programs: {error}.") from None
    for found, settings in TABLE.items():
        if settings.vendor == vendor:
            if name in (None, found):
                return found
            raise errors.InvalidArgumentError(
                f"--mpi {name}: the mpi4py of {python} loads {vendor}; give the interpreter of an "
                f"environment with {TABLE[name].vendor} (--python PATH)."
            )
    raise errors.InvalidArgumentError(
        f"the mpi4py of {python} loads {vendor}; a testbed can start "
        f"{errors.listed(row.vendor for row in TABLE.values())}."
    )


def write_agent(plan: Plan, folder: pathlib.Path) -> pathlib.Path:
    """Writes the script that replaces ssh, and returns its path."""
    hosts_file = folder / "hosts"
    hosts_file.write_text(plan.hosts_file, encoding="utf-8")
    agent = folder / "agent"
    prefix = plan.switch.namespace.removesuffix(plan.switch.name)
    quoted = shlex.quote(str(hosts_file))
    agent.write_text(_AGENT.format(prefix=prefix, hosts_file=quoted), encoding="utf-8")
    agent.chmod(0o755)
    return agent


def command(
    name: str,
    plan: Plan,
    agent: pathlib.Path,
    program: Sequence[str],
    *,
    python: str,
    ranks_per_host: int = 1,
    flags: Sequence[str] = (),
) -> list[str]:
    """The mpiexec command line that runs ``program`` on all hosts, to be run on the switch."""
    hosts, ranks = [each.name for each in plan.hosts], len(plan.hosts) * ranks_per_host
    fixed = [each.format(network=plan.network) for each in TABLE[name].flags]
    if name == "mpich":
        fixed += ["-launcher-exec", str(agent), "-localhost", plan.switch.address]
        fixed += ["-hosts", ",".join(hosts), "-ppn", str(ranks_per_host)]
    else:
        slots = [f"{each}:{ranks_per_host}" for each in hosts]
        fixed += ["--prtemca", "plm_ssh_agent", str(agent), "-H", ",".join(slots)]
    return [launch.mpiexec(python), *fixed, *flags, "-n", str(ranks), *program]


# Each host sees all cores of the machine, but shares them with the other hosts.
_SHARED_CORES = {"JAXCCOMP_CODER_THREADS": "0"}
# UCX sees that the hosts are one machine, and would use shared memory between them.
BY_LINKS = {"UCX_POSIX_ERROR_HANDLING": "n"}


def environment(name: str, ranks_per_host: int) -> dict[str, str]:
    """Environment variables of an MPI's ranks."""
    settings = TABLE[name]
    alone = settings.alone if ranks_per_host == 1 else {}
    return BY_LINKS | _SHARED_CORES | settings.environment | alone
