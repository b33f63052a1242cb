"""What a testbed is made of, worked out before anything is touched: names, addresses, shaping."""

from __future__ import annotations

import dataclasses
import re

from jaxccomp import errors

MOST_HOSTS = 8
SLOWEST, FASTEST = 100_000_000, 5_000_000_000
PREFIX = "jaxccomp"  # of the names of all namespaces

_UNITS = {"mbit": 1_000_000, "gbit": 1_000_000_000}
_NETWORK = "10.77.0"
# Of an Ethernet frame with a full TCP segment (MTU 1500, time stamps): what carries data.
_PAYLOAD, _FRAME = 1448, 1514


def parse_rate(text: str) -> int:
    """Bits per second of a rate such as "1gbit" or "2.5gbit" or "100mbit"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(mbit|gbit)", text.strip().lower())
    rate = round(float(match[1]) * _UNITS[match[2]]) if match else 0
    if not SLOWEST <= rate <= FASTEST:
        raise errors.InvalidArgumentError(
            f"a link reads like 500mbit or 2.5gbit, from {format_rate(SLOWEST)} to "
            f"{format_rate(FASTEST)}, not {text!r}."
        )
    return rate


def format_rate(bits_per_second: int) -> str:
    """The rate as ``parse_rate`` reads it."""
    unit = "gbit" if bits_per_second >= _UNITS["gbit"] else "mbit"
    return f"{bits_per_second / _UNITS[unit]:g}{unit}"


@dataclasses.dataclass(frozen=True)
class Shape:
    """A link's token buckets, one for each direction.

    Attributes:
      rate: bits per second, Ethernet headers included.
    """

    rate: int

    @property
    def burst(self) -> int:
        """Bytes that pass at full speed after a pause.

        What a millisecond lets through, so that a timer that comes late costs no bandwidth, and no
        more, so that short messages are held back too.
        """
        return max(self.rate // 8000, 16 << 10)

    @property
    def packet(self) -> int:
        """The most bytes that TCP hands over at once.

        The bucket holds two: packets that it could not hold would be cut up, at half the rate.
        """
        return min(self.burst // 2, 64 << 10)

    @property
    def limit(self) -> int:
        """Bytes that wait in the queue: fifty milliseconds.

        What seven senders at once have under way fits, so that nothing is dropped: TCP sends what
        was dropped at the end of a message again after 200 ms, which is all that would be measured.
        """
        return max(self.rate // 160, 8 << 20)

    @property
    def goodput(self) -> float:
        """Bytes per second of user data that a TCP stream can carry at most."""
        return self.rate / 8 * _PAYLOAD / _FRAME


@dataclasses.dataclass(frozen=True)
class Host:
    """One host: its name, the namespace that it is, its address."""

    name: str
    namespace: str
    address: str


@dataclasses.dataclass(frozen=True)
class Plan:
    """All of a testbed.

    Attributes:
      hosts: rank order.
      switch: where the hosts' links meet, and where mpiexec runs.
      shape: of every link.
    """

    hosts: tuple[Host, ...]
    switch: Host
    shape: Shape

    @property
    def network(self) -> str:
        """All addresses, as net/prefix."""
        return f"{_NETWORK}.0/24"

    @property
    def hosts_file(self) -> str:
        """Text of /etc/hosts on every host."""
        rows = [f"{each.address} {each.name}" for each in (*self.hosts, self.switch)]
        return "\n".join(["127.0.0.1 localhost", *rows, ""])


def make(hosts: int, link: str, owner: str) -> Plan:
    """Plans a testbed.

    Args:
      hosts: how many.
      link: the rate of each one's link.
      owner: the process that it belongs to, as ``owner_name`` names it.
    """
    if not 2 <= hosts <= MOST_HOSTS:
        raise errors.InvalidArgumentError(f"a testbed has 2 to {MOST_HOSTS} hosts, not {hosts}.")

    def host(name: str, number: int) -> Host:
        return Host(name, f"{PREFIX}-{owner}-{name}", f"{_NETWORK}.{number}")

    return Plan(
        tuple(host(f"h{i}", i + 1) for i in range(hosts)),
        host("switch", 254),
        Shape(parse_rate(link)),
    )


def owner_name(pid: int, start_time: int, number: int = 0) -> str:
    """A name for a testbed of a process, ``number`` of its own.

    With the start time it is the name of no later process that gets the same number.
    """
    return f"{pid}.{start_time}.{number}"


def owner_of(namespace: str) -> tuple[int, int] | None:
    """The process (number, start time) that a testbed's namespace belongs to; None for others."""
    match = re.fullmatch(rf"{PREFIX}-(\d+)\.(\d+)\.\d+-(?:h\d|switch)", namespace)
    return (int(match[1]), int(match[2])) if match else None
