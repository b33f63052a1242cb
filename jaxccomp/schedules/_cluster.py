"""Described clusters: read from a JSON file, a dict or a text such as "4x1gbit", and checked.

Nothing in a file is trusted: each number has a range, each key a name that is known.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from jaxccomp import errors

VERSION = 1
_MOST_RANKS = 1 << 13
_MOST_FILE_BYTES = 16 << 20
_RATE = (1.0, 1e18)
_SECONDS = (0.0, 1e3)
_LATENCY = (1e-9, 1e3)
# What a TCP stream carries of a link's bits: 1448 of every 1514 bytes of an Ethernet frame.
_GOODPUT = 1448 / 1514 / 8


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
    """

    ratio: float
    encode_bytes_per_second: float
    decode_bytes_per_second: float
    merge_bytes_per_second: float
    most_code_bytes: float = 1.0

    def row(self) -> tuple[float, ...]:
        """As the engine takes it."""
        return (
            self.ratio,
            self.most_code_bytes,
            self.encode_bytes_per_second,
            self.decode_bytes_per_second,
            self.merge_bytes_per_second,
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

    @property
    def ranks(self) -> int:
        """How many there are."""
        return sum(each.count * each.ranks for each in self.hosts)

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


# A server's core, and TCP between hosts: what a description leaves out.
_PAIRS = {
    "process": Pair(2e-6, 10e9, 1e-6, 0.0),
    "host": Pair(5e-6, 6e9, 2e-6, 1e-10),
    "link": Pair(1e-4, 1e12, 1e-5, 3e-10),
}
_HOSTS = Hosts(1, 1, 8, 1e9 * _GOODPUT, 1e9 * _GOODPUT)
_MEMORY = {"copy_bytes_per_second": 10e9, "merge_bytes_per_second": 10e9}
_TIMES = {"task_seconds": 2e-6, "call_seconds": 1e-4}
_KEYS = ("version", "hosts", "pairs", "memory", "codecs", "ranks_per_process", "one_machine")


def load(given: Cluster | Mapping[str, Any] | str | pathlib.Path) -> Cluster:
    """A cluster from what a caller names.

    Args:
      given: a file, the same as a dict, or "4x1gbit" for 4 hosts with a rank and a link of 1 Gbit/s
        each; "8x2x25gbit" has 2 ranks on each.

    Raises:
      InvalidArgumentError: where anything in it cannot be, with its place and what is allowed.
      UnknownNameError: for a key that does not exist, with the nearest that does.
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
    path = pathlib.Path(given)
    try:
        if path.stat().st_size > _MOST_FILE_BYTES:
            raise errors.InvalidArgumentError(
                f"{path.name} is longer than any profile, {_MOST_FILE_BYTES >> 20} MiB."
            )
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise errors.InvalidArgumentError(
            f"{str(given)!r} is neither a text such as '4x1gbit' nor a JSON file that can be read: "
            f"{error}"
        ) from None
    return _cluster(content, path.name)


def _cluster(content: Any, place: str) -> Cluster:
    content = _object(content, place, _KEYS)
    if content.get("version") != VERSION:
        raise errors.InvalidArgumentError(
            f"{place} has version {content.get('version')!r}; this release reads version "
            f"{VERSION}: write it anew."
        )
    pairs = _object(content.get("pairs", {}), f"{place}: pairs", tuple(_PAIRS))
    ranges = {"latency_seconds": _LATENCY, "bytes_per_second": _RATE}
    made = {
        name: _fields(pairs.get(name, {}), f"{place}: pairs: {name}", ranges, default)
        for name, default in _PAIRS.items()
    }
    memory = _object(content.get("memory", {}), f"{place}: memory", (*_MEMORY, *_TIMES))
    numbers = {
        name: _number(
            memory, name, f"{place}: memory", _RATE if name in _MEMORY else _SECONDS, default
        )
        for name, default in (_MEMORY | _TIMES).items()
    }
    hosts = content.get("hosts")
    if not isinstance(hosts, list) or not 1 <= len(hosts) <= _MOST_RANKS:
        raise errors.InvalidArgumentError(
            f"{place}: hosts is a list of 1 to {_MOST_RANKS} objects such as "
            '{"count": 4, "ranks": 1, "cores": 8}.'
        )
    groups = tuple(_hosts(each, f"{place}: hosts[{i}]") for i, each in enumerate(hosts))
    cluster = Cluster(
        hosts=groups,
        **made,
        **numbers,
        ranks_per_process=_count(content, "ranks_per_process", place, 1),
        one_machine=_flag(content, "one_machine", place),
        codecs=_codecs(content.get("codecs", {}), f"{place}: codecs"),
    )
    if cluster.ranks > _MOST_RANKS:
        raise errors.InvalidArgumentError(
            f"{place} has {cluster.ranks} ranks; at most {_MOST_RANKS} can be simulated."
        )
    return cluster


def _hosts(content: Any, place: str) -> Hosts:
    names = tuple(field.name for field in dataclasses.fields(Hosts))
    content = _object(content, place, names)
    counts = {
        name: _count(content, name, place, getattr(_HOSTS, name))
        for name in ("count", "ranks", "cores")
    }
    rates = {
        name: _number(content, name, place, _RATE, getattr(_HOSTS, name))
        for name in ("up_bytes_per_second", "down_bytes_per_second")
    }
    return Hosts(**counts, **rates)


def codec(content: Any, place: str) -> Codec:
    """A codec's row, from a dict."""
    names = tuple(field.name for field in dataclasses.fields(Codec))
    content = _object(content, place, names)
    missing = [name for name in names if name not in content and name != "most_code_bytes"]
    if missing:
        raise errors.InvalidArgumentError(f"{place} lacks {errors.listed(missing)}.")
    ranges = {"ratio": (0.1, 1e6), "most_code_bytes": (1e-6, 16.0)}
    return Codec(
        **{name: _number(content, name, place, ranges.get(name, _RATE), 1.0) for name in names}
    )


def _codecs(content: Any, place: str) -> dict[str, Codec]:
    if not isinstance(content, Mapping) or len(content) > 1000:
        raise errors.InvalidArgumentError(f"{place} is an object of at most 1000 codecs.")
    return {str(name): codec(each, f"{place}: {name}") for name, each in content.items()}


def _fields(content: Any, place: str, ranges: Mapping[str, Any], default: Pair) -> Pair:
    names = tuple(field.name for field in dataclasses.fields(Pair))
    content = _object(content, place, names)
    return Pair(
        **{
            name: _number(content, name, place, ranges.get(name, _SECONDS), getattr(default, name))
            for name in names
        }
    )


def _object(content: Any, place: str, keys: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(content, Mapping):
        raise errors.InvalidArgumentError(
            f"{place} is an object with the keys {errors.listed(keys)}, not "
            f"{type(content).__name__}."
        )
    for key in content:
        if key not in keys:
            raise errors.unknown(f"key of {place}:", key, keys)
    return content


def _number(
    content: Mapping[str, Any], name: str, place: str, within: tuple[float, float], default: float
) -> float:
    value = content.get(name, default)
    least, most = within
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not good or not math.isfinite(value) or not least <= value <= most:
        raise errors.InvalidArgumentError(
            f"{place}: {name} must be a number from {least:g} to {most:g}, not {value!r:.40}."
        )
    return float(value)


def _count(content: Mapping[str, Any], name: str, place: str, default: int) -> int:
    value = content.get(name, default)
    most = _MOST_RANKS if name != "cores" else 4096
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise errors.InvalidArgumentError(
            f"{place}: {name} must be a whole number from 1 to {most}, not {value!r:.40}."
        )
    return value


def _flag(content: Mapping[str, Any], name: str, place: str) -> bool:
    value = content.get(name, False)
    if not isinstance(value, bool):
        raise errors.InvalidArgumentError(
            f"{place}: {name} must be true or false, not {value!r:.40}."
        )
    return value
