"""Who may include whom (docs/architecture.md)."""

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = ROOT / "jaxccomp"

# Rooms of the engine, and the rooms whose headers each may include besides its own.
ROOMS = {
    "common": set(),
    "transport": {"common"},
    "reduce": {"common"},
    "codec": {"common", "reduce"},
    "device": {"common", "codec", "reduce"},
    "cuda": {"common", "codec", "reduce", "device"},
    "collective": {"common", "transport", "codec", "reduce"},
    "runtime": {"common", "transport", "codec", "reduce", "device", "collective"},
    "nccl": {"common", "reduce", "collective", "runtime"},
}
# What the CUDA library gives to the engine, which opens it: the one header of `cuda` seen outside.
CUDA_CONTRACT = "cuda/library.h"
# Implementations, and who beside themselves may see them: all others see the interface only.
IMPLEMENTATIONS = {
    "transport/local": {"csrc/runtime"},
    "transport/mpi": {"xla_ffi"},
    "transport/store": {"xla_ffi"},
    "codec/cast": {"csrc/codec"},
    "codec/library": {"csrc/codec", "csrc/codec/nvcomp"},
    "codec/lossless": {"csrc/codec", "csrc/cuda"},
    "codec/nvcomp": {"csrc/codec", "csrc/cuda"},
    "codec/quantize": {"csrc/codec"},
    "codec/sign": {"csrc/codec"},
    "codec/sparse": {"csrc/codec", "csrc/cuda"},
}

# Python's rooms and public modules, lowest first: each imports from lower layers, and from itself.
LAYERS = (
    {"_version", "errors", "_compat"},
    {"_native", "config"},
    {"_bootstrap", "_codecs", "schedules"},
    {"comm", "codecs", "launch"},
    {"_call", "stats", "trace"},
    {"_traced", "bench"},
    {"_primitives", "cli"},
    {"_api", "__main__"},
    {"ops", "lax"},
    {"optim"},
    {"__init__"},
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def cpp_files(folder):
    suffixes = (".cc", ".h", ".inl", ".cu", ".cuh")
    found = [p for p in (ROOT / folder).rglob("*") if p.suffix in suffixes]
    assert found
    return found


def includes(path):
    return re.findall(r'^#include ["<]([^">]+)[">]', path.read_text(), re.MULTILINE)


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_include_only_what_lies_below(room):
    for path in cpp_files(f"csrc/{room}"):
        seen = {name for name in includes(path) if name != CUDA_CONTRACT or room != "device"}
        rooms = {name.split("/")[0] for name in seen} & set(ROOMS)
        assert rooms <= ROOMS[room] | {room}, path


def test_every_room_is_known():
    assert {path.name for path in (ROOT / "csrc").iterdir() if path.is_dir()} == set(ROOMS)


@pytest.mark.parametrize("folder", ["csrc", "xla_ffi"])
def test_implementations_are_not_seen_from_outside(folder):
    for path in cpp_files(folder):
        place = path.parent.relative_to(ROOT).as_posix()
        for name in includes(path):
            for implementation, allowed in IMPLEMENTATIONS.items():
                if name.startswith(implementation + "/"):
                    assert place in allowed | {f"csrc/{implementation}"}, (path, name)


def test_the_fake_device_is_for_tests_alone():
    found = {path.name for path in (ROOT / "csrc/device").iterdir()}
    names = {"device.h", "stream_codecs.h", "cuda_library.h", "cuda_library.cc"}
    assert found == names | {"shared_handle.h", "shared_handle.cc"}
    for path in [*cpp_files("csrc"), *cpp_files("xla_ffi")]:
        assert not any("fake" in name for name in includes(path)), path


def test_only_what_nvcc_compiles_needs_the_headers_of_cuda():
    for path in cpp_files("csrc"):
        own = [name for name in includes(path) if name.startswith("cuda")]
        if path.parent.name == "device":
            own = [name for name in own if name != CUDA_CONTRACT]
        if path.parent.name != "cuda":
            assert not own, path
        elif path.suffix not in (".cu", ".cuh"):
            assert all(name.startswith("cuda/") for name in own), path


def test_the_engine_knows_neither_python_nor_xla_nor_a_vendor_of_mpi():
    for path in cpp_files("csrc"):
        for name in includes(path):
            assert not re.match(r"Python\.h|pybind11/|xla/|mpi\.h", name), (path, name)


def imports(path):
    """What a file imports: modules of this package from "jaxccomp." on, and names in others."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_of(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


MODULES = {module_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def own_imports(name):
    """The modules of this package that one of them imports, wherever in its code."""
    for imported in imports(MODULES[name]):
        if imported == "jaxccomp" or imported.startswith("jaxccomp."):
            parts = imported.split(".")[1:]
            while parts and ".".join(parts) not in MODULES:
                parts.pop()
            if parts and ".".join(parts) != name:
                yield ".".join(parts)


@pytest.mark.parametrize("name", MODULES)
def test_python_imports_only_what_lies_below(name):
    room = name.split(".")[0]
    assert room in LEVEL, f"{room} has no layer in this test"
    for imported in own_imports(name):
        below = imported.split(".")[0]
        assert below == room or LEVEL[below] < LEVEL[room], f"{name} imports {imported}"
    for imported in imports(MODULES[name]):
        assert not imported.startswith("jax._src") or name == "_compat", f"{name}: {imported}"


def test_no_module_imports_itself_through_others():
    graph = {name: set(own_imports(name)) for name in MODULES}
    while leaves := {name for name, below in graph.items() if not below & set(graph)}:
        for name in leaves:
            del graph[name]
    assert not graph, sorted(graph)


def test_every_module_says_what_it_is():
    for path in MODULES.values():
        assert ast.get_docstring(ast.parse(path.read_text())), path
