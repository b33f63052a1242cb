"""Reads and checks cluster descriptions: a JSON file, a dict or a text such as "4x1gbit".

Files are untrusted: each number has a range, and unknown keys are errors.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import pathlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from jaxccomp import errors
from jaxccomp._native import engine, json_files

# --- Description: hosts, links, cores and codecs --------------------------------------------------


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
      max_code_bytes: size of a code buffer, per byte of raw values.
      lossless: whether decoding restores the values exactly, so that the encoder can keep its own
        values instead of decoding.
      dtypes: the codec's rates for single dtypes, by name.
    """

    ratio: float
    encode_bytes_per_second: float
    decode_bytes_per_second: float
    merge_bytes_per_second: float
    max_code_bytes: float = 1.0
    lossless: bool = False
    dtypes: Mapping[str, Codec] = dataclasses.field(default_factory=dict)

    def of(self, dtype: str) -> Codec:
        """The codec for values of a dtype."""
        return self.dtypes.get(dtype, self)

    def row(self) -> tuple[float | bool, ...]:
        """The codec in the engine's format."""
        return (
            self.ratio,
            self.max_code_bytes,
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
      one_machine: whether all hosts share the cores of the first host, as in a testbed.
      codecs: by spec.
      transport: the transport when the profile was measured, "mpi" or "ucx"; empty if unknown.
      step_seconds: time of a training step when the profile was measured; 0 if unknown.
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
        """Returns, for each rank, the number of its host."""
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


# --- Parsing --------------------------------------------------------------------------------------

VERSION = 1
_MAX_RANKS = 1 << 13
_MAX_FILE_BYTES = 16 << 20
_MAX_DTYPES = 32
_RATE = (1.0, 1e18)
_SECONDS = (0.0, 1e3)
_LATENCY = (1e-9, 1e3)
# Bytes of TCP payload per bit of a link: 1448 of every 1514 bytes of an Ethernet frame.
_GOODPUT = 1448 / 1514 / 8


# Defaults: a server's core, and TCP between hosts.
_PAIRS = {
    "process": Pair(2e-6, 10e9, 1e-6, 0.0),
    "host": Pair(5e-6, 6e9, 2e-6, 1e-10),
    "link": Pair(1e-4, 1e12, 1e-5, 3e-10),
}
_HOSTS = Hosts(1, 1, 8, 1e9 * _GOODPUT, 1e9 * _GOODPUT)
_MEMORY = {"copy_bytes_per_second": 10e9, "merge_bytes_per_second": 10e9}
_TIMES = {"task_seconds": 2e-6, "call_seconds": 1e-4}
_KEYS = (
    *("version", "hosts", "pairs", "memory", "codecs", "ranks_per_process", "one_machine"),
    *("transport", "step_seconds", "measured"),
    "operations",  # in old profiles; not read
)
_TRANSPORTS = ("mpi", "ucx")


def load(given: Cluster | Mapping[str, Any] | str | pathlib.Path) -> Cluster:
    """Loads a cluster.

    Args:
      given: a file, its content as a dict, or "4x1gbit" for 4 hosts with one rank and a link of
        1 Gbit/s each; "8x2x25gbit" has 2 ranks on each host.

    Raises:
      InvalidArgumentError: for an invalid value, with its place and the allowed values.
      UnknownNameError: for an unknown key, with the nearest known one.
    """
    if isinstance(given, Cluster):
        return given
    if not isinstance(given, (str, os.PathLike)):
        return _cluster(given, "the cluster")
    if match := re.fullmatch(r"(\d{1,5})x(?:(\d{1,5})x)?(\d{1,6}(?:\.\d+)?)([mg])bit", str(given)):
        rate = float(match[3]) * {"m": 1e6, "g": 1e9}[match[4]] * _GOODPUT
        hosts = {"count": int(match[1]), "ranks": int(match[2] or 1)}
        links = {"up_bytes_per_second": rate, "down_bytes_per_second": rate}
        return _cluster({"version": VERSION, "hosts": [hosts | links]}, f"{given!r}")
    remedy = "A cluster is a JSON file, or a text such as '4x1gbit'"
    return parse(
        json_files.read(given, "cluster", remedy, _MAX_FILE_BYTES), pathlib.Path(given).name
    )


def parse(data: bytes, place: str) -> Cluster:
    """Parses the bytes of a JSON file.

    Args:
      data: the bytes.
      place: the file's name, for errors.

    Raises:
      InvalidArgumentError: if it is no JSON, or has an invalid value.
      UnknownNameError: for an unknown key, with the nearest known one.
    """
    return _cluster(json_files.loads(data, place), place)


def _cluster(content: Any, place: str) -> Cluster:
    if isinstance(content, Mapping) and "unfinished" in content:
        raise errors.InvalidArgumentError(
            f"{place} is what `python -m jaxccomp tune links` has measured until it was ended, and "
            "no profile yet: run the same command again, which goes on with it."
        )
    content = json_files.keys_of(content, place, _KEYS)
    if content.get("version") != VERSION:
        raise errors.InvalidArgumentError(
            f"{place} has version {content.get('version')!r}; this release reads version "
            f"{VERSION}: write it anew."
        )
    pairs = json_files.keys_of(content.get("pairs", {}), f"{place}: pairs", tuple(_PAIRS))
    ranges = {"latency_seconds": _LATENCY, "bytes_per_second": _RATE}
    made: dict[str, Any] = {
        name: _fields(pairs.get(name, {}), f"{place}: pairs: {name}", ranges, default)
        for name, default in _PAIRS.items()
    }
    memory = json_files.keys_of(content.get("memory", {}), f"{place}: memory", (*_MEMORY, *_TIMES))
    numbers: dict[str, Any] = {
        name: _number(
            memory, name, f"{place}: memory", _RATE if name in _MEMORY else _SECONDS, default
        )
        for name, default in (_MEMORY | _TIMES).items()
    }
    hosts = content.get("hosts")
    if not isinstance(hosts, list) or not 1 <= len(hosts) <= _MAX_RANKS:
        raise errors.InvalidArgumentError(
            f"{place}: hosts is a list of 1 to {_MAX_RANKS} objects such as "
            '{"count": 4, "ranks": 1, "cores": 8}.'
        )
    transport = content.get("transport", "")
    if transport not in ("", *_TRANSPORTS):
        raise errors.unknown(f"transport of {place}:", transport, _TRANSPORTS)
    measured = content.get("measured", {})
    if not isinstance(measured, Mapping) or len(measured) > 100:
        raise errors.InvalidArgumentError(f"{place}: measured is an object of at most 100 facts.")
    groups = tuple(_hosts(each, f"{place}: hosts[{i}]") for i, each in enumerate(hosts))
    cluster = Cluster(
        hosts=groups,
        **made,
        **numbers,
        ranks_per_process=_count(content, "ranks_per_process", place, 1),
        one_machine=_flag(content, "one_machine", place),
        codecs=_codecs(content.get("codecs", {}), f"{place}: codecs"),
        transport=transport,
        step_seconds=_number(content, "step_seconds", place, _SECONDS, 0.0),
    )
    if cluster.ranks > _MAX_RANKS:
        raise errors.InvalidArgumentError(
            f"{place} has {cluster.ranks} ranks; at most {_MAX_RANKS} can be simulated."
        )
    return cluster


def _hosts(content: Any, place: str) -> Hosts:
    names = tuple(field.name for field in dataclasses.fields(Hosts))
    content = json_files.keys_of(content, place, names)
    counts = {
        name: _count(content, name, place, getattr(_HOSTS, name))
        for name in ("count", "ranks", "cores")
    }
    rates: dict[str, Any] = {
        name: _number(content, name, place, _RATE, getattr(_HOSTS, name))
        for name in ("up_bytes_per_second", "down_bytes_per_second")
    }
    return Hosts(**counts, **rates)


def codec(content: Any, place: str) -> Codec:
    """A codec from a dict."""
    names = tuple(field.name for field in dataclasses.fields(Codec))
    if isinstance(content, Mapping) and "most_code_bytes" in content:  # profiles of version 0.1
        content = {"max_code_bytes": content["most_code_bytes"], **content}
        del content["most_code_bytes"]
    content = json_files.keys_of(content, place, names)
    optional = ("max_code_bytes", "lossless", "dtypes")
    missing = [name for name in names if name not in content and name not in optional]
    if missing:
        raise errors.InvalidArgumentError(f"{place} lacks {errors.listed(missing)}.")
    ranges = {"ratio": (0.1, 1e6), "max_code_bytes": (1e-6, 16.0)}
    dtypes = content.get("dtypes", {})
    if not isinstance(dtypes, Mapping) or len(dtypes) > _MAX_DTYPES:
        raise errors.InvalidArgumentError(
            f"{place}: dtypes is an object of at most {_MAX_DTYPES} dtypes."
        )
    for name, each in dtypes.items():
        if isinstance(each, Mapping) and "dtypes" in each:
            raise errors.InvalidArgumentError(f"{place}: dtypes: {name} has no dtypes of its own.")
    return Codec(
        **{
            name: _number(content, name, place, ranges.get(name, _RATE), 1.0)
            for name in names
            if name not in ("lossless", "dtypes")
        },
        lossless=_flag(content, "lossless", place),
        dtypes={name: codec(each, f"{place}: dtypes: {name}") for name, each in dtypes.items()},
    )


def _codecs(content: Any, place: str) -> dict[str, Codec]:
    if not isinstance(content, Mapping) or len(content) > 1000:
        raise errors.InvalidArgumentError(f"{place} is an object of at most 1000 codecs.")
    made = {str(name): codec(each, f"{place}: {name}") for name, each in content.items()}
    return {name: _with_lossless(each, name) for name, each in made.items()}


def _with_lossless(given: Codec, spec: str) -> Codec:
    """Sets `lossless` from the engine, if it knows the codec."""
    if not engine.available():
        return given
    try:
        known = engine.load().describe_codec(spec)["lossless"]
    except ValueError:  # known only to the profile
        return given
    dtypes = {
        name: dataclasses.replace(each, lossless=known) for name, each in given.dtypes.items()
    }
    return dataclasses.replace(given, lossless=known, dtypes=dtypes)


def _fields(content: Any, place: str, ranges: Mapping[str, Any], default: Pair) -> Pair:
    names = tuple(field.name for field in dataclasses.fields(Pair))
    content = json_files.keys_of(content, place, names)
    return Pair(
        **{
            name: _number(content, name, place, ranges.get(name, _SECONDS), getattr(default, name))
            for name in names
        }
    )


def _number(
    content: Mapping[str, Any], name: str, place: str, within: tuple[float, float], default: float
) -> float:
    value = content.get(name, default)
    minimum, maximum = within
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    # Also rejects infinity and NaN.
    if not good or not minimum <= value <= maximum:
        raise errors.InvalidArgumentError(
            f"{place}: {name} must be a number from {minimum:g} to {maximum:g}, not {value!r:.40}."
        )
    return float(value)


def _count(content: Mapping[str, Any], name: str, place: str, default: int) -> int:
    value = content.get(name, default)
    maximum = _MAX_RANKS if name != "cores" else 4096
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= maximum:
        raise errors.InvalidArgumentError(
            f"{place}: {name} must be a whole number from 1 to {maximum}, not {value!r:.40}."
        )
    return value


def _flag(content: Mapping[str, Any], name: str, place: str) -> bool:
    value = content.get(name, False)
    if not isinstance(value, bool):
        raise errors.InvalidArgumentError(
            f"{place}: {name} must be true or false, not {value!r:.40}."
        )
    return value


# --- Profile files --------------------------------------------------------------------------------

_TUNE = "`python -m jaxccomp tune links --output FILE` writes one of some KiB"


def cluster_of(content: Mapping[str, Any]) -> Cluster:
    """Returns the cluster that a profile's content describes.

    Args:
      content: the profile's content, without its version.

    Raises:
      InvalidArgumentError: for an invalid value.
    """
    return load(_with_version(content))


def write(path: str | os.PathLike[str], content: Mapping[str, Any]) -> Cluster:
    """Writes a profile atomically.

    Args:
      path: the file.
      content: the profile's content, without its version.

    Returns:
      The cluster that it describes.

    Raises:
      InvalidArgumentError: for invalid content, or a file that cannot be written.
    """
    data = json.dumps(_with_version(content), indent=1).encode() + b"\n"
    cluster = parse(data, pathlib.Path(path).name)
    json_files.write(path, data)
    return cluster


def read(path: str | os.PathLike[str]) -> bytes:
    """Returns the unchecked bytes of a profile.

    Raises:
      InvalidArgumentError: if the file is missing, or exceeds the size that ranks can exchange.
    """
    return json_files.read(path, "profile", _TUNE)


def _with_version(content: Mapping[str, Any]) -> dict[str, Any]:
    return {"version": VERSION} | dict(content)


# --- Layout: which ranks of a call share a host, and their part of its links and cores -----------

# The processes of the ranks, for each group of ranks that makes the call.
Groups = tuple[tuple[int, ...], ...]


class Layout:
    """The hosts of a profile, and the processes on them.

    Args:
      cluster: the profile.
      hosts: for each process of the world, a number for its host.
    """

    def __init__(self, cluster: Cluster, hosts: Sequence[int]):
        self._cluster = cluster
        described = [each for each in cluster.hosts for _ in range(each.count)]
        self._hosts = list(hosts)
        self._described = dict(zip(dict.fromkeys(hosts), described, strict=True))

    def cluster(self, groups: Groups) -> Cluster | None:
        """Returns the ranks of the first group as a separate cluster.

        Links and cores are shared with the other groups, which make the call at the same time.

        Returns:
          None if ranks are not numbered host by host, or groups differ in their placement on hosts.
        """
        shapes = {self._shape(group) for group in groups}
        if len(shapes) != 1:
            return None
        (shape,) = shapes
        if shape is None:
            return None
        ranks_per_process, counts = shape
        everybody = Counter(self._hosts[process] for group in groups for process in group)
        hosts = list(dict.fromkeys(self._hosts[process] for process in groups[0]))
        parts = [count / everybody[host] for host, count in zip(hosts, counts, strict=True)]
        if self._cluster.one_machine:
            parts = [sum(counts) / everybody.total()] * len(parts)
        made = [
            self._part(host, count, part, count / everybody[host])
            for host, count, part in zip(hosts, counts, parts, strict=True)
        ]
        return dataclasses.replace(
            self._cluster, hosts=tuple(made), ranks_per_process=ranks_per_process
        )

    def _part(self, host: int, ranks: int, cores: float, links: float) -> Hosts:
        whole = self._described[host]
        return Hosts(
            count=1,
            ranks=ranks,
            cores=max(round(whole.cores * cores), 1),
            up_bytes_per_second=max(whole.up_bytes_per_second * links, 1.0),
            down_bytes_per_second=max(whole.down_bytes_per_second * links, 1.0),
        )

    def _shape(self, group: Sequence[int]) -> tuple[int, tuple[int, ...]] | None:
        """Returns ranks per process and per host; None if ranks are not numbered host by host."""
        processes = [(each, len(list(run))) for each, run in itertools.groupby(group)]
        hosts = [
            (host, len(list(run)))
            for host, run in itertools.groupby(self._hosts[process] for process in group)
        ]
        lengths = {length for _, length in processes}
        apart = len(dict(processes)) < len(processes) or len(dict(hosts)) < len(hosts)
        if apart or len(lengths) != 1:
            return None
        return lengths.pop(), tuple(length for _, length in hosts)
