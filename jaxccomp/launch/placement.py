"""Assigns a GPU, a part of its memory, and cores to each rank before its program starts."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Collection, Mapping, Sequence

from jaxccomp import errors
from jaxccomp.launch.gpus import Gpu

# --- Cores of a host, divided among its ranks, near each rank's GPU -------------------------------

_SYS = pathlib.Path("/sys")


def parse_list(text: str) -> set[int]:
    """Return the numbers of a list in sysfs format.

    >>> sorted(parse_list("0-2,8"))
    [0, 1, 2, 8]
    """
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            found |= set(range(int(first), int(last or first) + 1))
    return found


def cores_near(bus: str, sys: pathlib.Path = _SYS) -> set[int]:
    """Return the CPUs of a PCI device's NUMA node; empty if sysfs has none."""
    try:
        node = int((sys / "bus/pci/devices" / bus / "numa_node").read_text())
        if node < 0:
            return set()
        return parse_list((sys / f"devices/system/node/node{node}/cpulist").read_text())
    except (OSError, ValueError):
        return set()


def share_cores(
    allowed: Collection[int], wishes: Sequence[Collection[int]], sys: pathlib.Path = _SYS
) -> list[set[int]]:
    """Return the CPUs of each rank of a host.

    Args:
      allowed: the CPUs that the ranks may use.
      wishes: by local rank, the CPUs near its GPU; empty without a GPU.
      sys: the folder of sysfs.

    Returns:
      By local rank, its CPUs. Ranks with the same wish divide its CPUs evenly and disjointly, by
      whole cores (all hardware threads of one) if there are enough. If there are more ranks than
      CPUs, each rank gets all CPUs.
    """
    known = [frozenset(wish) & frozenset(allowed) for wish in wishes]
    # If a rank has no wish, or different wishes overlap, all ranks divide all CPUs.
    if not all(known) or any(a != b and a & b for a in known for b in known):
        known = [frozenset(allowed)] * len(wishes)
    found: list[set[int]] = [set() for _ in wishes]
    for pool in set(known):
        members = [rank for rank, wish in enumerate(known) if wish == pool]
        for rank, part in zip(members, _split(pool, len(members), sys), strict=True):
            found[rank] = part
    return found


def _split(pool: Collection[int], parts: int, sys: pathlib.Path) -> list[set[int]]:
    units = _whole_cores(pool, sys)
    if len(units) < parts:
        units = [{cpu} for cpu in sorted(pool)]
    if len(units) < parts:
        return [set(pool) for _ in range(parts)]
    bounds = [part * len(units) // parts for part in range(parts + 1)]
    return [set().union(*units[a:b]) for a, b in zip(bounds, bounds[1:], strict=False)]


def _whole_cores(pool: Collection[int], sys: pathlib.Path) -> list[set[int]]:
    cores: dict[int, set[int]] = {}
    for cpu in sorted(pool):
        path = sys / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        try:
            siblings = parse_list(path.read_text())
        except (OSError, ValueError):
            siblings = {cpu}
        cores.setdefault(min(siblings | {cpu}), set()).add(cpu)
    return [cores[first] for first in sorted(cores)]


# --- Placement of ranks ---------------------------------------------------------------------------

# The maximum fraction of a GPU's memory that its ranks reserve together; contexts and libraries
# need the rest. JAX's own default, for one process per GPU, is 0.75.
MAX_MEMORY = 0.9
_JAX_MEMORY = 0.75
# JAX does not start if both are set; the second is the older name.
MEMORY_VARIABLES = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")


@dataclasses.dataclass(frozen=True)
class Settings:
    """The placement settings, the same for all ranks.

    Attributes:
      gpus: the GPUs of each host; None: each host searches its own.
      ranks_per_gpu: the number of ranks that share a GPU; None: the minimum.
      memory_fraction: the fraction of a GPU's memory for each rank; None: the smaller of
        `max_memory` and JAX's default.
      thread_percentage: the maximum percentage of a GPU's threads for a rank, under MPS.
      bind_cores: whether each rank is bound to its own cores.
      environment: variables for all ranks.
    """

    gpus: tuple[Gpu, ...] | None = ()
    ranks_per_gpu: int | None = None
    memory_fraction: float | None = None
    thread_percentage: float | None = None
    bind_cores: bool = True
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def to_json(self) -> str:
        """Serialise for a rank's command line."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Parse the text of `to_json`."""
        values = json.loads(text)
        if values["gpus"] is not None:
            values["gpus"] = tuple(Gpu(**each) for each in values["gpus"])
        return cls(**values)


@dataclasses.dataclass(frozen=True)
class Place:
    """The resources of one rank; ``cores`` is empty when it is not bound."""

    environment: dict[str, str]
    cores: frozenset[int]


def with_service(
    settings: Settings, gpus: tuple[Gpu, ...], environment: Mapping[str, str]
) -> Settings:
    """Return settings with the GPU names and variables of an MPS service."""
    return dataclasses.replace(
        settings, gpus=gpus, environment={**settings.environment, **environment}
    )


def max_memory(ranks_per_gpu: int) -> float:
    """Return the maximum fraction of a GPU's memory that each of its ranks may reserve."""
    return MAX_MEMORY / ranks_per_gpu


def ranks_per_gpu(settings: Settings, gpus: int, ranks: int) -> int:
    """Return how many ranks share a GPU on a host with these GPUs and ranks; 0 without a GPU.

    Raises:
      InvalidArgumentError: if the host cannot satisfy the settings.
    """
    wanted = settings.ranks_per_gpu
    if wanted is not None and wanted < 1:
        raise errors.InvalidArgumentError(f"ranks per GPU must be at least 1, not {wanted}.")
    if not gpus:
        if wanted is not None:
            raise errors.InvalidArgumentError(
                f"{wanted} ranks per GPU were asked for, but there is no GPU: leave "
                "--ranks-per-gpu out to run on the CPU."
            )
        return 0
    shared = wanted or math.ceil(ranks / gpus)
    if ranks > gpus * shared:
        raise errors.InvalidArgumentError(
            f"{ranks} ranks do not fit on {gpus} GPU(s) with {shared} rank(s) each: raise "
            f"--ranks-per-gpu to {math.ceil(ranks / gpus)}, or give fewer ranks (-n)."
        )
    given, maximum = settings.memory_fraction, max_memory(shared)
    if given is not None and not 0 < given <= maximum + 1e-9:
        raise errors.InvalidArgumentError(
            f"a memory fraction of {given:g} for each of {shared} rank(s) on a GPU: it must be "
            f"more than 0 and at most {MAX_MEMORY}/{shared} = {maximum:.3g}, since the ranks "
            "reserve their parts at once and CUDA needs the rest."
        )
    percentage = settings.thread_percentage
    if percentage is not None and not 0 < percentage <= 100:
        raise errors.InvalidArgumentError(
            f"a thread percentage is more than 0 and at most 100, not {percentage:g}."
        )
    return shared


def place(
    settings: Settings,
    gpus: tuple[Gpu, ...],
    local_rank: int,
    local_size: int,
    environ: Mapping[str, str] = os.environ,
    sys: pathlib.Path = pathlib.Path("/sys"),
) -> Place:
    """Return the resources of rank ``local_rank`` of ``local_size`` on a host.

    Neighbours share a GPU: rank ``r`` uses GPU ``r // ranks_per_gpu``.

    Raises:
      InvalidArgumentError: if this host cannot satisfy the settings.
    """
    shared = ranks_per_gpu(settings, len(gpus), local_size)
    given = dict(settings.environment)
    wishes: list[set[int]] = [set()] * local_size
    if shared:
        given["CUDA_VISIBLE_DEVICES"] = gpus[local_rank // shared].name
        fraction = settings.memory_fraction
        if fraction is None and shared > 1:
            fraction = min(_JAX_MEMORY, max_memory(shared))
        if fraction is not None:
            given[MEMORY_VARIABLES[0]] = f"{fraction:.4g}"
        if settings.thread_percentage is not None:
            given["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = f"{settings.thread_percentage:g}"
        nodes = [cores_near(gpu.bus, sys) for gpu in gpus]
        wishes = [nodes[rank // shared] for rank in range(local_size)]
    bound: set[int] = set()
    if settings.bind_cores:
        # XLA and the engine choose their number of threads by the cores of the process.
        bound = share_cores(os.sched_getaffinity(0), wishes, sys)[local_rank]
        if "OMP_NUM_THREADS" not in environ:
            given["OMP_NUM_THREADS"] = str(len(bound))
    return Place(given, frozenset(bound))
