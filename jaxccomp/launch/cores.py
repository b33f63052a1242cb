"""Divides the cores of a host among its ranks, near each rank's GPU."""

from __future__ import annotations

import pathlib
from collections.abc import Collection, Sequence

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


def near(bus: str, sys: pathlib.Path = _SYS) -> set[int]:
    """Return the CPUs of a PCI device's NUMA node; empty if sysfs has none."""
    try:
        node = int((sys / "bus/pci/devices" / bus / "numa_node").read_text())
        if node < 0:
            return set()
        return parse_list((sys / f"devices/system/node/node{node}/cpulist").read_text())
    except (OSError, ValueError):
        return set()


def share(
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
