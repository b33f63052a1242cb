"""Prints the import graph of the Python package, or the include graph of the C++ sources.

    python tools/structure.py [python | cpp] [--dot FILE]

A "component" is a top-level folder or module. The output lists the components, lowest level first,
with the components that each one uses, and the cycles. --dot writes the graph of components for
Graphviz.
"""

from __future__ import annotations

import argparse
import ast
import pathlib
import re
from collections.abc import Iterator, Mapping

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / "jaxccomp"
FOLDERS = ("csrc", "xla_ffi")  # include paths start at csrc, or at the root for xla_ffi

Graph = Mapping[str, set[str]]


def imports(path: pathlib.Path) -> Iterator[str]:
    """Every import of a Python file, also inside functions: ``package.module.name``."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def includes(path: pathlib.Path) -> list[str]:
    """The includes of a C++ file as written there."""
    text = path.read_text(encoding="utf-8")
    return re.findall(r'^#include ["<]([^">]+)[">]', text, re.MULTILINE)


def python_files() -> dict[str, pathlib.Path]:
    """The package's modules by name, without the leading ``jaxccomp.``."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        inside = parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts
        found[".".join(inside)] = path
    return found


def python_graph() -> dict[str, set[str]]:
    """For each module the modules of the package that it imports."""
    files = python_files()
    graph = {}
    for module, path in files.items():
        below = set()
        for name in imports(path):
            parts = name.split(".")
            if parts.pop(0) != "jaxccomp":
                continue
            while parts and ".".join(parts) not in files:
                parts.pop()
            below.add(".".join(parts))
        graph[module] = below - {module, ""}
    return graph


def cpp_files() -> dict[str, pathlib.Path]:
    """C++ and CUDA headers and sources, by the name used in includes."""
    suffixes = {".h", ".inl", ".cuh", ".cc", ".cu"}
    found = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in suffixes:
                base = ROOT / folder if folder == "csrc" else ROOT
                found[path.relative_to(base).as_posix()] = path
    return found


def cpp_graph() -> dict[str, set[str]]:
    """For each file the headers of the project that it includes."""
    files = cpp_files()
    graph = {}
    for name, path in files.items():
        beside = name.rpartition("/")[0]
        seen = {each if each in files else f"{beside}/{each}" for each in includes(path)}
        graph[name] = {each for each in seen if each in files} - {name}
    return graph


def component_of(name: str) -> str:
    """The component of a module or a file: the first part of its name."""
    return re.split(r"[./]", name)[0]


def components(graph: Graph) -> dict[str, set[str]]:
    """The graph between components."""
    found: dict[str, set[str]] = {}
    for name, below in graph.items():
        component = component_of(name)
        found.setdefault(component, set()).update(map(component_of, below))
        found[component].discard(component)
    return found


def folders(graph: Graph) -> list[str]:
    """All folders of a graph of files; "" is the root."""
    found = {""}
    for name in graph:
        parts = name.split("/")
        found |= {"/".join(parts[:i]) for i in range(1, len(parts))}
    return sorted(found)


def sheet(graph: Graph, folder: str) -> dict[str, set[str]]:
    """The graph between the direct children of ``folder``."""
    inside = folder + "/" if folder else ""

    def child(name: str) -> str:
        return name[len(inside) :].split("/")[0] if name.startswith(inside) else ""

    found: dict[str, set[str]] = {}
    for name, below in graph.items():
        if own := child(name):
            found.setdefault(own, set()).update({child(each) for each in below} - {own, ""})
    return found


def cycles(graph: Graph) -> list[str]:
    """The nodes that are on a cycle, or on a path between two cycles; sorted."""
    # Remove nodes that do not lead to a cycle.
    left = {name: set(below) for name, below in graph.items()}
    while ends := {name for name, below in left.items() if not below & left.keys()}:
        left = {name: below for name, below in left.items() if name not in ends}
    # Remove nodes that lead to a cycle and that no cycle leads to.
    while starts := left.keys() - {each for below in left.values() for each in below}:
        left = {name: below for name, below in left.items() if name not in starts}
    return sorted(left)


def levels(graph: Graph) -> list[list[str]]:
    """Topological levels without the cycles: each level uses only the levels before it."""
    left, found = {name: set(below) for name, below in graph.items()}, []
    while ends := sorted(name for name, below in left.items() if not below & left.keys()):
        found.append(ends)
        left = {name: below for name, below in left.items() if name not in ends}
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("which", nargs="?", choices=("python", "cpp"), default="python")
    parser.add_argument("--dot", type=pathlib.Path)
    arguments = parser.parse_args()
    graph = python_graph() if arguments.which == "python" else cpp_graph()
    sheet = components(graph)
    arrows = sum(map(len, sheet.values()))
    print(f"{len(graph)} files in {len(sheet)} components, {arrows} arrows between components")
    print(f"cycles of files: {cycles(graph) or 'none'}; of components: {cycles(sheet) or 'none'}")
    for number, level in enumerate(levels(sheet)):
        for component in level:
            print(f"{number:3d}  {component} <- {' '.join(sorted(sheet[component])) or '-'}")
    if arguments.dot:
        lines = [
            f'  "{component}" -> "{below}";'
            for component in sheet
            for below in sorted(sheet[component])
        ]
        arguments.dot.write_text("digraph components {\n" + "\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
