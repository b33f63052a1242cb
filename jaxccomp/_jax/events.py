"""JAX's runtime: compilations, executed operations, failed callbacks, and its key-value store."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import glob
import gzip
import json
import logging
import math
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxccomp import errors
from jaxccomp._jax import internals
from jaxccomp._jax.internals import uses

callback = internals.module("jax._src.callback")
compiler = internals.module("jax._src.compiler")
debugging = internals.module("jax._src.debugging")
dispatch = internals.module("jax._src.dispatch")
distributed = internals.module("jax._src.distributed")
hlo = internals.module("jaxlib._hlo")
monitoring = internals.module("jax.monitoring")
serialize_executable = internals.module("jax.experimental.serialize_executable")

Stop = Callable[[], None]

# If this many programs have been lowered, collectives have run, and no compilation event has come,
# JAX has renamed the event. Fewer programs may all have been loaded instead of compiled.
_SILENT_PROGRAMS = 32


def on_compiled(call: Callable[[str], object], has_run: Callable[[], bool] = bool) -> Stop:
    """Call ``call`` after each compilation, with the program's name, on the thread that compiles.

    The name has the letters and digits of `program_name`, with other punctuation. Warns if JAX has
    no such event, or if the event has no name.

    Args:
      call: gets the name.
      has_run: returns whether collectives have run in this process. Before, programs may have been
        lowered and not compiled.

    Returns:
      A function that ends the reports.
    """
    hook = "compilation events"
    compiled = getattr(dispatch, "BACKEND_COMPILE_EVENT", "")
    lowered = getattr(dispatch, "JAXPR_TO_MLIR_MODULE_EVENT", "")
    register = getattr(monitoring, "register_event_duration_secs_listener", None)
    if not compiled or register is None:
        missing = "no listeners of events" if compiled else "no event of compilations"
        internals.warn(hook, f"JAX has {missing}")
        return lambda: None
    silent: int | None = 0  # programs lowered so far; None after the first compilation or warning

    def listen(event: str, *_: Any, **about: Any) -> None:
        nonlocal silent
        if event == compiled:
            silent = None
            if "fun_name" not in about:
                internals.warn(hook, f"the event {compiled!r} has no fun_name")
            call(about.get("fun_name", ""))
        elif event == lowered and silent is not None:
            silent += 1
            if silent >= _SILENT_PROGRAMS and has_run():
                internals.warn(hook, f"{silent} programs and not one event {compiled!r}")
                silent = None

    register(listen)
    return lambda: monitoring.unregister_event_duration_listener(listen)


def on_loaded(call: Callable[[str], object]) -> Stop:
    """Call ``call`` after each load of a serialised executable, with the program's name.

    The name equals `program_name`; it is empty after a failed load. JAX's loader is wrapped, since
    ``jax.monitoring`` reports compilations, but not these loads.

    Returns:
      A function that ends the reports.
    """
    hook = "loaded executables"
    unpickler = getattr(serialize_executable, "_JaxPjrtUnpickler", None)
    load = getattr(unpickler, "persistent_load", None)
    if unpickler is None or load is None:
        internals.warn(hook, "JAX has no _JaxPjrtUnpickler.persistent_load")
        return lambda: None

    def load_and_report(self: Any, pid: Any) -> Any:
        loaded = None
        try:
            loaded = load(self, pid)
        finally:
            if pid[0] == "exec":
                call(_name_of_executable(loaded))
        return loaded

    def stop() -> None:
        unpickler.persistent_load = load

    unpickler.persistent_load = load_and_report
    return stop


def on_program(call: Callable[[Any, Sequence[Any]], object]) -> Stop:
    """Call ``call`` after each compilation and each read of JAX's compilation cache.

    It runs on the thread that compiles, before the program can run; its errors pass to the program.

    Args:
      call: gets the executable and its devices, in the order of the program's partitions.

    Returns:
      A function that ends the calls.

    Raises:
      JaxHookError: if JAX has no such step.
    """
    compiles = getattr(compiler, "compile_or_get_cached", None)
    if compiles is None:
        text = internals.text("compiled programs", "JAX has no compile_or_get_cached")
        raise errors.JaxHookError(text)

    @functools.wraps(compiles)
    def compile_and_call(
        backend: Any, computation: Any, devices: Any, *args: Any, **kwargs: Any
    ) -> Any:
        executable = compiles(backend, computation, devices, *args, **kwargs)
        call(executable, list(devices.flat))
        return executable

    def stop() -> None:
        compiler.compile_or_get_cached = compiles

    compiler.compile_or_get_cached = compile_and_call
    return stop


@dataclasses.dataclass(frozen=True)
class XlaCollective:
    """A collective operation of a compiled program.

    Attributes:
      name: the operation in XLA's words, such as "all-reduce".
      groups: the devices of each group, as indices into the program's devices.
      values: dtype in XLA's words and number of elements of each result on a device.
    """

    name: str
    groups: tuple[tuple[int, ...], ...]
    values: tuple[tuple[str, int], ...]


_COLLECTIVE = re.compile(
    r"= (?P<shape>\(.*?\)|\S+) (?P<name>all-reduce|all-gather|reduce-scatter|all-to-all|"
    r"collective-permute|collective-broadcast|ragged-all-to-all)(?:-start)?\("
)
_VALUE = re.compile(r"\b([a-z][a-z0-9]*)\[([0-9,]*)\]")
# {{0,1},{2,3}}, or [2,2]<=[2,2]T(1,0), or mesh['x'=2,'y'=2], device_ids=([2,2]T(1,0)) {'x'}.
_GROUPS = re.compile(
    r"replica_groups=(\{[{}0-9, ]*\}|\[[0-9,]+\]<=\[[0-9,]+\](?:T\([0-9,]+\))?|"
    r"mesh\[[^]]*\](?:, device_ids=\([^ ]*\))? \{[^}]*\})"
)
_IOTA = re.compile(r"\[(?P<shape>[0-9,]+)\]<=\[(?P<dims>[0-9,]+)\](?:T\((?P<order>[0-9,]+)\))?")
_MESH = re.compile(
    r"mesh\[(?P<axes>[^]]*)\](?:, device_ids=\((?:\[(?P<dims>[0-9,]+)\])?"
    r"(?:T\((?P<order>[0-9,]+)\))?(?P<ids>[0-9,]*)\))? \{(?P<grouped>[^}]*)\}"
)
_AXIS = re.compile(
    r"(?P<name>'[^']*'|[^=,:']+)(?:=(?P<length>[0-9]+)|:\((?P<before>[0-9]+)\)(?P<part>[0-9]+))?"
)


@uses("compiled programs")
def collectives_of(executable: Any, device_count: int) -> list[XlaCollective]:
    """Return the collectives of a compiled program with one replica, from XLA's text.

    Args:
      executable: the program.
      device_count: the number of its devices.
    """
    everywhere = (tuple(range(device_count)),)
    collectives = []
    for module in executable.hlo_modules():
        options = hlo.HloPrintOptions()
        options.print_large_constants = False
        options.print_metadata = False
        options.print_backend_config = False
        for line in module.to_string(options).splitlines():
            found = _COLLECTIVE.search(line)
            if found is None:
                continue
            # Without use_global_device_ids, groups of reductions and gathers are of replicas: one.
            name = found["name"]
            of_replicas = name in ("all-reduce", "all-gather", "reduce-scatter")
            listed = _GROUPS.search(line)
            groups = everywhere
            if not of_replicas or "use_global_device_ids=true" in line:
                if listed is not None:
                    groups = _parse_groups(listed[1]) or everywhere
                elif "replica_groups=" in line:
                    raise ValueError(f"unknown replica groups in {line.strip()[:200]}")
            values = tuple(
                (dtype, math.prod(map(int, filter(None, dims.split(",")))))
                for dtype, dims in _VALUE.findall(found["shape"])
            )
            collectives.append(XlaCollective(name, groups, values))
    return collectives


Groups = tuple[tuple[int, ...], ...]


def _parse_groups(text: str) -> Groups:
    """Parse XLA's text of replica groups, in one of its three forms (`_GROUPS`)."""
    if text.startswith("{"):
        listed = re.findall(r"\{([0-9, ]+)\}", text)
        return tuple(tuple(map(int, each.split(","))) for each in listed)
    if (iota := _IOTA.fullmatch(text)) is not None:
        rows = _iota(iota["dims"], iota["order"]).reshape(_integers(iota["shape"]))
        return tuple(tuple(map(int, row)) for row in rows)
    mesh = _MESH.fullmatch(text)
    if mesh is None:
        raise ValueError(f"unknown replica groups {text[:200]}")
    return _groups_of_mesh(mesh)


def _groups_of_mesh(mesh: re.Match[str]) -> Groups:
    """Return the groups along axes, or along parts of axes, of a mesh of devices.

    The part ``x:(2)4`` of an axis x of length 16, as a mesh of 2 x 4 x 2, is its second axis.
    """
    lengths = {each["name"]: int(each["length"]) for each in _AXIS.finditer(mesh["axes"])}
    names = list(lengths)
    if mesh["ids"]:
        devices = np.array(_integers(mesh["ids"]))
    elif mesh["dims"]:
        devices = _iota(mesh["dims"], mesh["order"])
    else:
        devices = np.arange(math.prod(lengths.values()))
    found: dict[tuple[int, ...], list[tuple[tuple[int, ...], int]]] = {}
    for place, device in zip(np.ndindex(*lengths.values()), devices.flat, strict=True):
        rest, position = list(place), []
        for each in _AXIS.finditer(mesh["grouped"]):
            axis = names.index(each["name"])
            part = int(each["part"] or lengths[each["name"]])
            stride = lengths[each["name"]] // (int(each["before"] or 1) * part)
            position.append(place[axis] // stride % part)
            rest[axis] -= position[-1] * stride
        found.setdefault(tuple(rest), []).append((tuple(position), int(device)))
    return tuple(tuple(device for _, device in sorted(group)) for group in found.values())


def _integers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def _iota(dims: str, order: str | None) -> np.ndarray:
    """Return 0, 1, ... as an array of these dimensions, transposed."""
    shape = _integers(dims)
    numbers = np.arange(math.prod(shape)).reshape(shape)
    return numbers.transpose(_integers(order)) if order else numbers


def _name_of_executable(executable: Any) -> str:
    if executable is None:
        return ""
    try:
        return executable.hlo_modules()[0].name
    except AttributeError as error:
        internals.warn("loaded executables", internals.reason_of(error))
    except (IndexError, jax.errors.JaxRuntimeError):
        pass  # this executable has no modules
    return ""


def on_callback_error(call: Callable[[str], object]) -> Stop:
    """Call ``call`` with the error's text after each exception in a host callback.

    A filter of JAX's loggers gets the exceptions: JAX logs those of ``jax.pure_callback``,
    ``io_callback`` and ``debug.callback`` on the thread that runs the callback.

    Returns:
      A function that ends the reports.
    """

    def report(record: logging.LogRecord) -> bool:
        if record.exc_info:
            kind, error, _ = record.exc_info
            call(f"{kind.__name__ if kind else 'Exception'}: {error}")
        return True

    loggers = []
    for module in (callback, debugging):
        logger = getattr(module, "logger", None)
        if isinstance(logger, logging.Logger):
            logger.addFilter(report)
            loggers.append(logger)
        else:
            internals.warn("callback errors", f"{module.__name__} has no logger")

    def stop() -> None:
        for logger in loggers:
            logger.removeFilter(report)

    return stop


@dataclasses.dataclass(frozen=True)
class Executed:
    """One execution of an operation of a compiled program, such as "fusion.3".

    Attributes:
      name: of the operation in XLA's program.
      begin_ns: on ``CLOCK_MONOTONIC``.
      end_ns: likewise; of an asynchronous operation, when its result was there.
    """

    name: str
    begin_ns: int
    end_ns: int


@contextlib.contextmanager
def profiled() -> Iterator[list[Executed]]:
    """Record the operations that XLA executes on CPUs; the list is filled when the block ends.

    It runs JAX's profiler, of which a process can have only one.

    Raises:
      JaxHookError: if the profile does not have the expected form.
      RuntimeError: from JAX, if a profile is being recorded.
    """
    options = jax.profiler.ProfileOptions()
    options.host_tracer_level = 2  # operations, but not their parts
    options.python_tracer_level = 0
    found: list[Executed] = []
    with tempfile.TemporaryDirectory(prefix="jaxccomp-") as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            # The profile has a clock of its own; this event has a time on both.
            now = time.monotonic_ns()
            with jax.profiler.TraceAnnotation(f"{_CLOCK}{now}"):
                pass
            yield found
        found += _executed(folder)


_CLOCK = "jaxccomp clock "


@uses("profiles")
def _executed(folder: str) -> list[Executed]:
    """Read a profile: an operation is an event with the argument hlo_op; "end: NAME" ends it."""
    (path,) = glob.glob(f"{glob.escape(folder)}/**/*.trace.json.gz", recursive=True)
    with gzip.open(path) as file:
        events = [each for each in json.load(file)["traceEvents"] if each.get("ph") == "X"]
    (clock,) = [each for each in events if each["name"].startswith(_CLOCK)]
    origin_ns = int(clock["name"].removeprefix(_CLOCK)) - round(clock["ts"] * 1e3)

    def at(microseconds: float) -> int:
        return origin_ns + round(microseconds * 1e3)

    ends: dict[str, collections.deque[float]] = collections.defaultdict(collections.deque)
    begun = []
    for event in sorted(events, key=lambda each: each["ts"]):
        if event["name"].startswith("end: "):
            ends[event["name"].removeprefix("end: ")].append(event["ts"])
        elif "hlo_op" in event.get("args", {}):
            begun.append(event)
    found = []
    for event in begun:
        name, begin = event["name"], event["ts"]
        while ends[name] and ends[name][0] < begin:  # of an execution before the recording
            ends[name].popleft()
        end = ends[name].popleft() if ends[name] else begin + event["dur"]
        found.append(Executed(name, at(begin), at(end)))
    return found


# --- The key-value store of jax.distributed -------------------------------------------------------


@uses("jax.distributed")
def distributed_client() -> Any:
    """Return the client of the key-value store; None before ``jax.distributed.initialize()``."""
    return distributed.global_state.client


@uses("jax.distributed")
def stored(client: Any, key: str, seconds: float) -> bytes | None:
    """Return the value of a key of ``client``'s store; None if not set within ``seconds``.

    Raises:
      jax.errors.JaxRuntimeError: when the store cannot be reached.
    """
    try:
        return client.blocking_key_value_get_bytes(key, max(int(seconds * 1000), 1))
    except jax.errors.JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" in str(error).split(":", 1)[0]:
            return None
        raise
