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

# Python's layers, lowest first: a module imports from lower layers, and from its own.
LAYERS = (
    {"_version", "_libraries", "_launchers", "errors"},
    {"_codec_table", "launch"},
    {
        "config",
        "_engine",
        "_mpi",
        "_compat",
        "_platforms",
        "_registry",
        "_borrowing",
        "_callbacks",
        "_cuda",
        "_device_mpi",
        "_dispatched",
        "_launch_places",
        "_loans",
        "_roll",
        "_shared_gpus",
        "_store",
        "_threads",
        "_unseen",
    },
    {"_world"},
    {"_leaving"},
    {"_joining"},
    {"_codec_specs", "comm"},
    {"_codec_frames"},
    {"codecs", "_traced_codecs"},
    {
        "schedules",
        "stats",
        "trace",
        "_call",
        "_stacked",
        "_nccl",
        "_arguments",
        "_operation",
        "_cuda_codecs",
        "_xla",
    },
    {"_lowering", "_batching", "_transpose", "_primitive", "_pytree", "_ragged"},
    {"_ops_vector", "_point_to_point", "_feedback", "_lax_common", "_lax_reduce"},
    {"ops", "lax"},
    {"optim"},
    {"bench"},
    {"cli"},
    {"__main__", "__init__"},
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


def imports(path, nodes=ast.walk):
    """(name, whether it is a module of this package) of each import in a file."""
    for node in nodes(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            inside = re.match(r"jaxccomp\.([a-z_]+)", name)
            yield (inside[1], True) if inside else (name, False)


def own_name(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.relative_to(PACKAGE).as_posix()
)
def test_python_imports_only_what_lies_below(path):
    name = own_name(path)
    assert name in LEVEL, f"{name} has no layer in this test"
    for imported, inside in imports(path):
        if inside and imported != name and not imported.startswith("__"):
            assert LEVEL[imported] <= LEVEL[name], f"{name} imports {imported}"
        if not inside and imported.startswith("jax._src"):
            assert name == "_compat", f"{name} imports {imported}"


def test_modules_can_be_loaded_one_after_the_other():
    """A function may import what calls it (a rule that binds primitives); a module may not."""
    graph = {}
    for path in PACKAGE.glob("*.py"):
        at_load = imports(path, nodes=lambda tree: tree.body)
        graph[own_name(path)] = {name for name, inside in at_load if inside}

    def visit(name, above):
        assert name not in above, " -> ".join([*above, name])
        for imported in graph.get(name, ()):
            visit(imported, [*above, name])

    for name in graph:
        visit(name, [])


def test_every_module_says_what_it_is():
    for path in PACKAGE.rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path
