"""Lists errors of this installation and their remedies, tests hooks into JAX, lists components."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from jaxccomp import codecs
from jaxccomp._native import tables
from jaxccomp.cli.doctor_facts import facts, option_texts

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
    return tables.markdown(("codec", "what", "ratio", "error", "options"), rows) + "\n"


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
    if environment["gpus"]["names"]:
        yield from of("libjaxccomp_cuda", "warning", "The engine cannot use the GPUs.")
        if note := libraries["libjaxccomp_cuda"]["note"]:
            remedy = "install NVIDIA's driver; a container needs `--gpus all`"
            yield _finding("warning", "libjaxccomp_cuda", note, remedy)
    for each in known["entry_points"]:
        if each["error"]:
            problem = f"{each['value']}, in {each['group']}, cannot be imported: {each['error']}"
            yield _finding("error", each["package"], problem, "update or remove that package")


def _finding(severity: str, name: str, problem: str, remedy: str) -> dict[str, str]:
    return {"severity": severity, "name": name, "problem": problem, "remedy": remedy}


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    for each in document["findings"]:
        yield from _row(f"{each['severity']:<9}{each['name']}", each["problem"], 24)
        yield from _row("", f"-> {each['remedy']}", 24)
    if not document["findings"]:
        yield "nothing is wrong"
    hooks = document["hooks"]
    working = sum(not each["problem"] for each in hooks)
    yield f"JAX {document['environment']['jax']}: {working} of {len(hooks)} hooks work"
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
