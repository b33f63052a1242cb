"""The description of a cluster: hosts, links, cores and codecs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Pair:
    """Messages between two ranks of one class.

    Attributes:
      latency_seconds: from sending the first byte to its arrival.
      bytes_per_second: of one message; between hosts the rates of their links apply instead.
      processor_seconds: CPU time at each end, per message.
      processor_seconds_per_byte: CPU time at each end, per byte.
    """

    latency_seconds: float
    bytes_per_second: float
    processor_seconds: float
    processor_seconds_per_byte: float


@dataclasses.dataclass(frozen=True)
class Hosts:
    """A group of equal hosts.

    Attributes:
      count: the number of hosts.
      ranks: ranks per host.
      cores: cores per host.
      up_bytes_per_second: the link's send rate.
      down_bytes_per_second: the link's receive rate (full duplex).
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
      ratio: compression ratio (raw / encoded bytes).
      encode_bytes_per_second: encoding.
      decode_bytes_per_second: decoding.
      merge_bytes_per_second: decoding and adding in one pass.
      most_code_bytes: size of a code buffer, per byte of raw values.
      lossless: whether decoding restores the values exactly, so that the encoder can keep its own
        values instead of decoding.
      dtypes: the codec's rates for single dtypes, by name.
    """

    ratio: float
    encode_bytes_per_second: float
    decode_bytes_per_second: float
    merge_bytes_per_second: float
    most_code_bytes: float = 1.0
    lossless: bool = False
    dtypes: Mapping[str, Codec] = dataclasses.field(default_factory=dict)

    def of(self, dtype: str) -> Codec:
        """The codec for values of a dtype."""
        return self.dtypes.get(dtype, self)

    def row(self) -> tuple[float | bool, ...]:
        """The codec in the engine's format."""
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
      copy_bytes_per_second: copy rate of one core.
      merge_bytes_per_second: reduction rate of one core.
      task_seconds: CPU time per task.
      call_seconds: time before the first task of a call.
      ranks_per_process: the number of consecutive ranks in one process.
      one_machine: whether all hosts share the cores of the first one, as a testbed's hosts do.
      codecs: by spec.
      transport: the transport when the profile was measured, "mpi" or "ucx"; empty if unknown.
      step_seconds: time of a training step then (`bench/steps.py`); 0 if unknown.
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
        """The number of ranks."""
        return sum(each.count * each.ranks for each in self.hosts)

    @property
    def host_of_rank(self) -> list[int]:
        """By rank, the number of its host."""
        ranks_of = [each.ranks for each in self.hosts for _ in range(each.count)]
        return [host for host, ranks in enumerate(ranks_of) for _ in range(ranks)]

    def described(self) -> dict[str, Any]:
        """The cluster in the engine's format."""
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
