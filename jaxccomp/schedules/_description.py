"""What a described cluster has: hosts, links, cores and codecs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Pair:
    """Messages between two ranks of one class.

    Attributes:
      latency_seconds: from the first byte's leaving to its arrival.
      bytes_per_second: of one message; between hosts the rates of their links hold instead.
      processor_seconds: of a core at either end, for each message.
      processor_seconds_per_byte: likewise, for each byte.
    """

    latency_seconds: float
    bytes_per_second: float
    processor_seconds: float
    processor_seconds_per_byte: float


@dataclasses.dataclass(frozen=True)
class Hosts:
    """Hosts that are alike.

    Attributes:
      count: how many.
      ranks: on each.
      cores: of each.
      up_bytes_per_second: what a host's link sends.
      down_bytes_per_second: what it receives, at the same time.
    """

    count: int
    ranks: int
    cores: int
    up_bytes_per_second: float
    down_bytes_per_second: float


@dataclasses.dataclass(frozen=True)
class Codec:
    """A codec on one core; rates are bytes of values per second.

    Attributes:
      ratio: bytes of values to bytes of their code.
      encode_bytes_per_second: encoding.
      decode_bytes_per_second: decoding.
      merge_bytes_per_second: decoding and adding in one pass.
      most_code_bytes: the memory that a code is given, for each byte of its values.
      lossless: whether decoding gives the very values that were encoded, so that who has them need
        not decode.
      dtypes: the same for values of these dtypes, by name.
    """

    ratio: float
    encode_bytes_per_second: float
    decode_bytes_per_second: float
    merge_bytes_per_second: float
    most_code_bytes: float = 1.0
    lossless: bool = False
    dtypes: Mapping[str, Codec] = dataclasses.field(default_factory=dict)

    def of(self, dtype: str) -> Codec:
        """For values of a dtype."""
        return self.dtypes.get(dtype, self)

    def row(self) -> tuple[float | bool, ...]:
        """As the engine takes it."""
        return (
            self.ratio,
            self.most_code_bytes,
            self.encode_bytes_per_second,
            self.decode_bytes_per_second,
            self.merge_bytes_per_second,
            self.lossless,
        )


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Hosts, links, cores and codecs.

    Attributes:
      hosts: groups of hosts; ranks are numbered host by host.
      process: messages between ranks of one process.
      host: between processes of one host.
      link: between hosts.
      copy_bytes_per_second: of one core, for memory that is copied.
      merge_bytes_per_second: of one core, for memory that is reduced.
      task_seconds: of a core, for each task.
      call_seconds: before the first task of a call.
      ranks_per_process: neighbours that are one process.
      one_machine: whether the hosts share the cores of the first one, as those of a testbed do.
      codecs: by spec.
      transport: what carried values then, "mpi" or "ucx"; empty where that is not known.
      step_seconds: what a training step took then (`bench/steps.py`); 0 where that is not known.
    """

    hosts: tuple[Hosts, ...]
    process: Pair
    host: Pair
    link: Pair
    copy_bytes_per_second: float
    merge_bytes_per_second: float
    task_seconds: float
    call_seconds: float
    ranks_per_process: int
    one_machine: bool
    codecs: Mapping[str, Codec]
    transport: str = ""
    step_seconds: float = 0.0

    @property
    def ranks(self) -> int:
        """How many there are."""
        return sum(each.count * each.ranks for each in self.hosts)

    @property
    def host_of_rank(self) -> list[int]:
        """By rank, the number of its host."""
        ranks_of = [each.ranks for each in self.hosts for _ in range(each.count)]
        return [host for host, ranks in enumerate(ranks_of) for _ in range(ranks)]

    def described(self) -> dict[str, Any]:
        """As the engine takes it."""
        return {
            "hosts": [
                (each.ranks, each.cores, each.up_bytes_per_second, each.down_bytes_per_second)
                for each in self.hosts
                for _ in range(each.count)
            ],
            "ranks_per_process": self.ranks_per_process,
            "one_machine": self.one_machine,
            "process": dataclasses.astuple(self.process),
            "host": dataclasses.astuple(self.host),
            "link": dataclasses.astuple(self.link),
            "copy_rate": self.copy_bytes_per_second,
            "merge_rate": self.merge_bytes_per_second,
            "task_seconds": self.task_seconds,
            "call_seconds": self.call_seconds,
        }
