"""What is compared: places, and at each of them operations and sizes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from jaxccomp import errors
from testbed import plan
from testbed.bed import Testbed

# name: what it is given, one of ``inputs.KINDS``. Sums of half types would leave algorithms out.
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
# What needs least time comes first: what it leaves of its share is for the others.
HOSTS = (2, 4)
LINKS = ("memory", "5gbit", "1gbit", "100mbit")
MEMORY = "memory"
# A pass of the values over a link; larger ones are compared on faster links.
_MOST_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class Place:
    """Where calls are timed.

    Attributes:
      hosts: with a rank each; the ranks of one host where the link is its memory.
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
        """What its links let through at full speed after a pause."""
        return 0 if self.in_memory else plan.Shape(plan.parse_rate(self.link)).burst

    @contextlib.contextmanager
    def opened(self) -> Iterator[Testbed | int]:
        """Where its ranks are started, as `workers.run` takes it."""
        if self.in_memory:
            yield self.hosts
        else:
            with Testbed(self.hosts, self.link) as bed:
                yield bed


@dataclasses.dataclass(frozen=True)
class Point:
    """An operation of values of some size, each rank's in bytes."""

    op: str
    size: int


def places(hosts: Sequence[int], links: Sequence[str]) -> list[Place]:
    """All places.

    Raises:
      InvalidArgumentError: for a number of hosts, or a link, that there cannot be.
    """
    for count in hosts:
        if not 2 <= count <= plan.MOST_HOSTS:
            raise errors.InvalidArgumentError(f"--hosts takes 2 to {plan.MOST_HOSTS}, not {count}.")
    for link in set(links) - {MEMORY}:
        plan.parse_rate(link)
    return [Place(count, link) for count in hosts for link in links]


def points(place: Place, ops: Iterable[str], sizes: Iterable[int]) -> list[Point]:
    """What is compared at a place, small values first; none that its links are too slow for."""
    rate = float("inf") if place.in_memory else plan.parse_rate(place.link) / 8
    return [Point(op, size) for size in sizes if size / rate <= _MOST_SECONDS for op in ops]


def place_of(line: Mapping[str, Any]) -> Place:
    """Of a line of results."""
    return Place(line["hosts"], line["link"])


def to_text(each: Iterable[Point]) -> str:
    """Points as the worker is given them."""
    return json.dumps([dataclasses.astuple(point) for point in each])


def from_text(text: str) -> list[Point]:
    """What `to_text` was given."""
    return [Point(*each) for each in json.loads(text)]
