"""Who may include whom (docs/architecture.md)."""

import ast
import pathlib
import re

import pytest
import structure

ROOT = pathlib.Path(__file__).parents[2]

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
    found = [p for p in structure.cpp_files().values() if p.is_relative_to(ROOT / folder)]
    assert found
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_include_only_what_lies_below(room):
    for path in cpp_files(f"csrc/{room}"):
        rooms = {name.split("/")[0] for name in structure.includes(path)} & set(ROOMS)
        assert rooms <= ROOMS[room] | {room}, path


def test_every_room_is_known():
    assert {path.name for path in (ROOT / "csrc").iterdir() if path.is_dir()} == set(ROOMS)


@pytest.mark.parametrize("folder", ["csrc", "xla_ffi"])
def test_implementations_are_not_seen_from_outside(folder):
    for path in cpp_files(folder):
        place = path.parent.relative_to(ROOT).as_posix()
        for name in structure.includes(path):
            for implementation, allowed in IMPLEMENTATIONS.items():
                if name.startswith(implementation + "/"):
                    assert place in allowed | {f"csrc/{implementation}"}, (path, name)


def test_the_fake_device_is_for_tests_alone():
    found = {path.name for path in (ROOT / "csrc/device").iterdir()}
    names = {"device.h", "stream_codecs.h", "cuda_library.h", "cuda_library.cc", "cuda_interface.h"}
    assert found == names | {"shared_handle.h", "shared_handle.cc"}
    for path in [*cpp_files("csrc"), *cpp_files("xla_ffi")]:
        assert not any("fake" in name for name in structure.includes(path)), path


def test_only_what_nvcc_compiles_needs_the_headers_of_cuda():
    for path in cpp_files("csrc"):
        own = [name for name in structure.includes(path) if name.startswith("cuda")]
        if path.parent.name != "cuda":
            assert not own, path
        elif path.suffix not in (".cu", ".cuh"):
            assert all(name.startswith("cuda/") for name in own), path


def test_the_engine_knows_neither_python_nor_xla_nor_a_vendor_of_mpi():
    for path in cpp_files("csrc"):
        for name in structure.includes(path):
            assert not re.match(r"Python\.h|pybind11/|xla/|mpi\.h", name), (path, name)


PYTHON = structure.python_graph()


@pytest.mark.parametrize("name", PYTHON)
def test_python_imports_only_what_lies_below(name):
    room = structure.room_of(name)
    assert room in LEVEL, f"{room} has no layer in this test"
    for imported in PYTHON[name]:
        below = structure.room_of(imported)
        assert below == room or LEVEL[below] < LEVEL[room], f"{name} imports {imported}"
    for imported in structure.imports(structure.python_files()[name]):
        assert not imported.startswith("jax._src") or name == "_compat", f"{name}: {imported}"


def test_no_file_sees_itself_through_others():
    assert structure.circles(PYTHON) == []
    for graph in (structure.cpp_graph(), structure.rooms(structure.cpp_graph())):
        assert structure.circles(graph) == []


def test_circles_are_found():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"a"}}
    assert structure.circles(graph) == ["b", "c"]
    assert structure.levels({"a": {"b"}, "b": set()}) == [["b"], ["a"]]


def test_every_module_says_what_it_is():
    for path in structure.python_files().values():
        assert ast.get_docstring(ast.parse(path.read_text())), path
