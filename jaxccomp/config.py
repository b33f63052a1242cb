"""The table of all options of the package: name, type, default, choices, meaning.

An option's value is, in this order of precedence: the argument of ``set``, the environment variable
``JAXCCOMP_<NAME>`` (read once, at import), the default. Options marked ``engine`` are also passed
to the native engine, when it starts and on each ``set``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jaxccomp import errors

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")

__all__ = [
    "Option",
    "get",
    "options",
    "override",
    "set",
]


@dataclasses.dataclass(frozen=True)
class Option:
    """One row of the table."""

    name: str
    type: type
    default: Any
    doc: str
    choices: tuple[Any, ...] = ()
    minimum: float | None = None
    engine: bool = False

    @property
    def variable(self) -> str:
        """The environment variable that sets this option."""
        return f"JAXCCOMP_{self.name.upper()}"

    def parse(self, value: Any) -> Any:
        """Converts ``value`` to this option's type; raises with the allowed values."""
        try:
            converted = _convert(self.type, value)
        except (TypeError, ValueError):
            allowed = self.type.__name__
            if self.type is bool:
                allowed = "one of " + errors.listed(_TRUE + _FALSE)
            raise errors.InvalidArgumentError(
                f"option {self.name!r} takes {allowed}, not {value!r}."
            ) from None
        if self.choices and converted not in self.choices:
            raise errors.unknown(f"value of option {self.name!r}:", value, self.choices)
        if self.minimum is not None and converted < self.minimum:
            raise errors.InvalidArgumentError(
                f"option {self.name!r} must be at least {self.minimum}, not {value!r}."
            )
        return converted

    def text(self, value: Any) -> str:
        """Return ``value`` as text for the engine: true and false are "1" and "0"."""
        return str(int(value)) if self.type is bool else str(value)


def _convert(kind: type, value: Any) -> Any:
    if kind is bool and not isinstance(value, bool):
        word = str(value).strip().lower()
        if word in _TRUE:
            return True
        if word in _FALSE:
            return False
        raise ValueError(value)
    if kind is int and not isinstance(value, (int, str)):
        raise TypeError(value)
    return kind(value)


_TABLE = (
    Option(
        "backend",
        str,
        "auto",
        "Backend of collectives that name none. native: the engine. mpi: MPI's own collectives "
        "(docs/backends.md lists them). xla: collectives of jax.lax. auto: the engine where it "
        "can, else jax.lax. Or one that is registered (register_backend).",
    ),
    Option(
        "mpi",
        str,
        "auto",
        "When init() joins MPI: under an MPI launcher or when the program has initialised "
        "MPI itself, always, or never.",
        choices=("auto", "always", "never"),
    ),
    Option(
        "transport",
        str,
        "auto",
        "Transport between processes. auto: UCX under jax.distributed alone; where init() joins "
        "MPI, the transport that the profile was measured over, or MPI without a profile. "
        "mpi: MPI only. ucx: UCX only. The same on all ranks. Read by init().",
        choices=("auto", "mpi", "ucx"),
    ),
    Option(
        "ucx_net_devices",
        str,
        "",
        "The network interfaces that UCX uses and listens on, such as eth0 or mlx5_0:1, separated "
        "by commas. Empty: all that UCX finds (or UCX_NET_DEVICES names). Read by init().",
    ),
    Option(
        "ucx_cma",
        str,
        "auto",
        "Whether processes of one host copy large payloads straight out of each other's memory "
        "(Linux's cross memory attach) where the system lets them, or send all values through "
        "UCX. Where it is off, no process reads this one's memory. Read by init().",
        choices=("auto", "off"),
    ),
    Option(
        "coordinator",
        str,
        "",
        "Address at which processes without MPI and jax.distributed meet: 'host:port' of process "
        "0; with join, of any members. Read by init().",
    ),
    Option(
        "join",
        str,
        "",
        "With a coordinator, the running group that this process joins: 'world', or the "
        "name of a jaxccomp.sync. Empty: the process starts a group with others. Read by init().",
    ),
    Option(
        "peer_timeout_seconds",
        float,
        10.0,
        "With a coordinator: how long a process may be silent, busy or not, before the others go "
        "on without it. 0: for ever. The same on all ranks. Read by init().",
        minimum=0.0,
    ),
    Option(
        "init_timeout_seconds",
        float,
        60.0,
        "How long init() and split() wait for the other processes before they raise.",
        minimum=0.0,
    ),
    Option(
        "profile",
        str,
        "",
        "A file that `python -m jaxccomp tune links` has written: algorithms and codecs that are "
        '"auto" are then chosen by prices (docs/planner.md). Rank 0 names it, and shares it; '
        "another rank that names one must name the same. Empty: a static rule. Read by init().",
    ),
    Option(
        "plan",
        str,
        "",
        "A file of pinned plans, recorded by `jaxccomp.plan`: calls in it run exactly as recorded; "
        "other calls are errors, or planned anew if the file says so (docs/planner.md). Rank 0 "
        "names it, and shares it; another rank that names one must name the same. Empty: none is "
        "pinned. Read by init().",
    ),
    Option(
        "mpi_unit_bytes",
        int,
        0,
        "The longest single MPI message between hosts; the same on all ranks. 0: 48 KiB with Open "
        "MPI, whose longer messages need many calls each, else 1 GiB. Read by init().",
        minimum=0,
    ),
    Option(
        "early_bytes",
        int,
        1 << 20,
        "How many bytes of early messages (of up to 8 KiB) a process keeps for each process that "
        "runs ahead; further messages stay at their sender until their operation begins here. "
        "With more than 64 processes each gets less, so that the total stays the same. Set the "
        "same on all ranks. Read by init().",
        minimum=0,
    ),
    Option(
        "early_messages",
        int,
        512,
        "Like early_bytes, but counts messages.",
        minimum=0,
    ),
    Option(
        "timeout_seconds",
        float,
        300.0,
        "How long an operation may wait for its peers before all ranks get an error. The time "
        "starts anew whenever a rank that is behind ends an operation on that communicator.",
        minimum=0.001,
        engine=True,
    ),
    Option(
        "coder_threads",
        int,
        -1,
        "Threads that help to encode, decode and merge large values. -1: the cores that the ranks "
        "of this host do not use, at most 4.",
        minimum=-1,
        engine=True,
    ),
    Option(
        "check_programs",
        bool,
        True,
        "Compare each program's list of collectives between the ranks before its first run.",
        engine=True,
    ),
    Option(
        "check_launches",
        bool,
        False,
        "Compare the source lines and the number of jaxccomp.step() of each launch between ranks. "
        "Finds a rank that leaves out one of many equal launches. For debugging: it makes JAX's "
        "dispatch on CPUs synchronous, and costs about ten microseconds a call. Read by init(), "
        "before JAX's backend starts.",
    ),
    Option(
        "chunk_bytes",
        int,
        512 << 10,
        "Size of the chunks in which large blocks are sent; blocks with a reference (ref=) use "
        "twice this size.",
        minimum=64,
        engine=True,
    ),
    Option(
        "device_part_bytes",
        int,
        4 << 20,
        "On GPUs, values are encoded and copied to the host in parts of this size, while the "
        "previous part is sent. The same on all ranks. Not yet measured on a GPU.",
        minimum=4096,
        engine=True,
    ),
    Option(
        "spin_microseconds",
        int,
        100,
        "How long the calling thread polls its operation without progress before it hands the "
        "operation to the engine's thread.",
        minimum=0,
        engine=True,
    ),
    Option(
        "huge_pages",
        bool,
        True,
        "Ask the system for huge pages for large results, and with retain_memory for the heap "
        "too. Other processes on the machine then read the results twice as fast.",
        engine=True,
    ),
    Option(
        "retain_memory",
        bool,
        True,
        "Keep freed memory in the process, at most as much as is in use and 1 GiB, instead of "
        "returning it to the system. XLA takes new memory for every result, and the page faults "
        "then cost more than the communication.",
        engine=True,
    ),
    Option(
        "flight_folder",
        str,
        "",
        "A folder in which this process writes flight-RANK.json, its last operations "
        "(jaxccomp.trace.flight), at its first failed operation and at each SIGUSR1. "
        "`python -m jaxccomp flight FOLDER` reads the files of all ranks. Empty: it writes none, "
        "and does not handle SIGUSR1.",
        engine=True,
    ),
    Option(
        "xla_policy",
        str,
        "",
        "Codecs of the collectives that XLA adds to programs of jit with shardings: rules, or the "
        "path of a file with rules (docs/xla.md). Empty: raw. The same on all ranks. Read when "
        "jaxccomp is imported.",
    ),
    Option(
        "log",
        str,
        "warning",
        "Messages of Python's logger 'jaxccomp' that this process shows on stderr. info: how it "
        "joined the others, and its communicators. debug: also each compiled call with its "
        "backend, algorithm and codec.",
        choices=("warning", "info", "debug"),
    ),
    Option(
        "instruction_set",
        str,
        "auto",
        "Upper limit of the instruction set of kernels, for benchmarks: results do not depend on "
        "it. Kernels are chosen once, so only the environment variable has an effect.",
        choices=("auto", "generic", "avx2", "avx512", "avx512vbmi2"),
    ),
)

# Messages about how the package runs, by the option log.
logger: logging.Logger = logging.getLogger("jaxccomp")
_to_stderr = logging.StreamHandler()
_to_stderr.setFormatter(logging.Formatter("jaxccomp[%(process)d] %(message)s"))


def _set_log_level(level: str) -> None:
    """Show messages of this level and above; "warning" leaves the logger to the program."""
    if level == "warning":
        logger.removeHandler(_to_stderr)
        logger.setLevel(logging.NOTSET)
    else:
        logger.addHandler(_to_stderr)
        logger.setLevel(level.upper())


_OPTIONS: Mapping[str, Option] = {option.name: option for option in _TABLE}


def _from_environment() -> dict[str, Any]:
    return {
        option.name: option.parse(os.environ[option.variable])
        for option in _TABLE
        if option.variable in os.environ
    }


_values: dict[str, Any] = _from_environment()
_listeners: list[Callable[[Option, Any], None]] = []


_set_log_level(_values.get("log", "warning"))


def options() -> tuple[Option, ...]:
    """Return the table of options."""
    return _TABLE


def get(name: str) -> Any:
    """Return the value of option ``name``."""
    option = _lookup(name)
    return _values.get(name, option.default)


def choices(name: str) -> tuple[Any, ...]:
    """Return the allowed values of option ``name``; empty if it has no fixed set."""
    return _lookup(name).choices


def set(name: str, value: Any) -> None:  # noqa: A001 - always called as config.set
    """Sets option ``name``, for all later operations of this process."""
    option = _lookup(name)
    parsed = option.parse(value)
    for listener in _listeners:
        listener(option, parsed)
    _values[name] = parsed
    if name == "log":
        _set_log_level(parsed)


@contextlib.contextmanager
def override(**changes: Any) -> Iterator[None]:
    """Sets options for the length of a ``with`` block."""
    before = {name: get(name) for name in changes}
    try:
        for name, value in changes.items():
            set(name, value)
        yield
    finally:
        for name, value in before.items():
            set(name, value)


def on_change(listener: Callable[[Option, Any], None]) -> None:
    """Calls ``listener(option, value)`` now for each engine option, and before each change."""
    for option in _TABLE:
        if option.engine:
            listener(option, get(option.name))
    _listeners.append(listener)


def _lookup(name: str) -> Option:
    if name not in _OPTIONS:
        raise errors.unknown("option", name, _OPTIONS)
    return _OPTIONS[name]
