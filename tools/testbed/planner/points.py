"""The points of a comparison: places, operations and sizes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from jaxccomp import errors
from testbed import plan
from testbed.bed import Testbed

# name: its input, one of ``inputs.KINDS``. Sums are float32, since sums of half types lack some
# algorithms.
OPERATIONS = {
    "bcast": "bfloat16",
    "allreduce": "float32",
    "allgather": "bfloat16",
    "reduce_scatter": "float32",
    "alltoall": "bfloat16",
    "gather": "bfloat16",
    "scatter": "bfloat16",
    "reduce": "float32",
}
SIZES = ("64KiB", "1MiB", "16MiB")
# Fast places first: the other places share the time that these do not use.
HOSTS = (2, 4)
LINKS = ("memory", "5gbit", "1gbit", "100mbit")
MEMORY = "memory"
# Skip points whose values take longer than this to pass over a link once.
_MAX_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class Place:
    """A testbed or one host, on which calls are timed.

    Attributes:
      hosts: number of hosts with a rank each; with link "memory", the number of ranks of one host.
      link: the rate of each host's link, or "memory".
    """

    hosts: int
    link: str

    @property
    def in_memory(self) -> bool:
        """Whether all ranks share a host."""
        return self.link == MEMORY

    @property
    def burst_bytes(self) -> int:
        """Bytes that pass its links at full speed after a pause."""
        return 0 if self.in_memory else plan.Shape(plan.parse_rate(self.link)).burst

    @contextlib.contextmanager
    def opened(self) -> Iterator[Testbed | int]:
        """The argument ``where`` of `workers.run`."""
        if self.in_memory:
            yield self.hosts
        else:
            with Testbed(self.hosts, self.link) as bed:
                yield bed


@dataclasses.dataclass(frozen=True)
class Point:
    """An operation and the size of each rank's input in bytes."""

    op: str
    size: int


def places(hosts: Sequence[int], links: Sequence[str]) -> list[Place]:
    """All combinations of hosts and links.

    Raises:
      InvalidArgumentError: for an invalid number of hosts or an invalid link.
    """
    for count in hosts:
        if not 2 <= count <= plan.MAX_HOSTS:
            raise errors.InvalidArgumentError(f"--hosts takes 2 to {plan.MAX_HOSTS}, not {count}.")
    for link in set(links) - {MEMORY}:
        plan.parse_rate(link)
    return [Place(count, link) for count in hosts for link in links]


def points(place: Place, ops: Iterable[str], sizes: Iterable[int]) -> list[Point]:
    """The points of a place, small values first, without sizes that its links are too slow for."""
    rate = float("inf") if place.in_memory else plan.parse_rate(place.link) / 8
    return [Point(op, size) for size in sizes if size / rate <= _MAX_SECONDS for op in ops]


def place_of(line: Mapping[str, Any]) -> Place:
    """The place of a line of results."""
    return Place(line["hosts"], line["link"])


def to_text(each: Iterable[Point]) -> str:
    """Points as an argument of the worker."""
    return json.dumps([dataclasses.astuple(point) for point in each])


def from_text(text: str) -> list[Point]:
    """The inverse of `to_text`."""
    return [Point(*each) for each in json.loads(text)]
