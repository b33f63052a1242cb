"""The plan of a testbed: names, addresses and traffic shaping; creates nothing."""

from __future__ import annotations

import dataclasses
import re

from jaxccomp import errors

MAX_HOSTS = 8
SLOWEST, FASTEST = 100_000_000, 5_000_000_000
PREFIX = "jaxccomp"  # names of all namespaces start with it

_UNITS = {"mbit": 1_000_000, "gbit": 1_000_000_000}
_NETWORK = "10.77.0"
# Data bytes and all bytes of an Ethernet frame with a full TCP segment (MTU 1500, time stamps).
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
    """The rate in the format of ``parse_rate``."""
    unit = "gbit" if bits_per_second >= _UNITS["gbit"] else "mbit"
    return f"{bits_per_second / _UNITS[unit]:g}{unit}"


@dataclasses.dataclass(frozen=True)
class Shape:
    """Parameters of a link's token buckets, one per direction.

    Attributes:
      rate: bits per second, including Ethernet headers.
    """

    rate: int

    @property
    def burst(self) -> int:
        """Bytes that pass at full speed after a pause: a millisecond's, at least 16 KiB.

        A smaller bucket would lose bandwidth when a timer is late. A larger one would not delay
        short messages.
        """
        return max(self.rate // 8000, 16 << 10)

    @property
    def packet(self) -> int:
        """The maximum size of a TCP (GSO) packet in bytes.

        The bucket holds two packets. Packets larger than the bucket would be split, at half the
        rate.
        """
        return min(self.burst // 2, 64 << 10)

    @property
    def limit(self) -> int:
        """The length of the queue in bytes: fifty milliseconds, at least 8 MiB.

        The queue holds the packets in flight of seven senders, so that none is dropped. TCP resends
        a packet lost at the end of a message only after 200 ms, which would dominate the result.
        """
        return max(self.rate // 160, 8 << 20)

    @property
    def goodput(self) -> float:
        """The maximum user data of a TCP stream in bytes per second."""
        return self.rate / 8 * _PAYLOAD / _FRAME


@dataclasses.dataclass(frozen=True)
class Host:
    """A host: its name, network namespace and address."""

    name: str
    namespace: str
    address: str


@dataclasses.dataclass(frozen=True)
class Plan:
    """The hosts and links of a testbed.

    Attributes:
      hosts: in rank order.
      switch: connects the hosts' links, and runs mpiexec.
      shape: of every link.
    """

    hosts: tuple[Host, ...]
    switch: Host
    shape: Shape

    @property
    def network(self) -> str:
        """The network of all addresses, as net/prefix."""
        return f"{_NETWORK}.0/24"

    @property
    def hosts_file(self) -> str:
        """The contents of /etc/hosts on every host."""
        rows = [f"{each.address} {each.name}" for each in (*self.hosts, self.switch)]
        return "\n".join(["127.0.0.1 localhost", *rows, ""])


def make(hosts: int, link: str, owner: str) -> Plan:
    """Plans a testbed.

    Args:
      hosts: number of hosts.
      link: the rate of each host's link.
      owner: result of ``owner_name``.
    """
    if not 2 <= hosts <= MAX_HOSTS:
        raise errors.InvalidArgumentError(f"a testbed has 2 to {MAX_HOSTS} hosts, not {hosts}.")

    def host(name: str, number: int) -> Host:
        return Host(name, f"{PREFIX}-{owner}-{name}", f"{_NETWORK}.{number}")

    return Plan(
        tuple(host(f"h{i}", i + 1) for i in range(hosts)),
        host("switch", 254),
        Shape(parse_rate(link)),
    )


def owner_name(pid: int, start_time: int, number: int = 0) -> str:
    """A name for the ``number``-th testbed of a process.

    The start time distinguishes the process from a later one with the same id.
    """
    return f"{pid}.{start_time}.{number}"


def owner_of(namespace: str) -> tuple[int, int] | None:
    """The process (id, start time) that owns a testbed's namespace; None for other namespaces."""
    match = re.fullmatch(rf"{PREFIX}-(\d+)\.(\d+)\.\d+-(?:h\d|switch)", namespace)
    return (int(match[1]), int(match[2])) if match else None
