"""The allowed includes and imports (docs/architecture.md)."""

import ast
import os
import pathlib
import re
import shutil
import subprocess

import pytest
import structure

ROOT = pathlib.Path(__file__).parents[2]

# Components of the engine and of XLA's handlers. Each may include its own headers and the headers
# of the listed components.
COMPONENTS = {
    "common": set(),
    "transport": {"common"},
    "reduce": {"common"},
    "codec": {"common", "reduce"},
    "collective": {"common", "transport", "codec", "reduce"},
    "planner": {"common", "collective"},
    "matching": {"common", "transport", "codec", "reduce", "collective"},
    "execution": {"common", "transport", "codec", "reduce", "collective", "matching"},
    "engine": {"common", "transport", "matching", "execution"},
    "cuda": {"common", "codec", "reduce", "collective", "matching", "engine"},
    "mpi_collectives": {"common", "transport", "reduce", "collective", "execution"},
    "xla_collectives": {"common", "reduce", "codec", "collective", "matching", "engine"},
    "xla_ffi": {
        "common",
        "transport",
        "codec",
        "collective",
        "matching",
        "planner",
        "engine",
        "cuda",
        "mpi_collectives",
        "xla_collectives",
    },
}
# The public headers of these components.
PUBLIC_HEADERS = {
    "cuda": {"library.h", "stream_codecs.h", "stage/stage.h"},
    "engine": {"engine.h", "measurements.h", "membership.h"},
    "mpi_collectives": {"mpi_collectives.h"},
    "planner": {"price.h"},
    "xla_collectives": {"collectives.h"},
}
# Implementations, and the components that may include them. All others include only the interface.
IMPLEMENTATIONS = {
    "transport/cma": {"csrc/transport/ucx", "xla_ffi/python"},
    "transport/local": {"csrc/engine"},
    "transport/mpi": {"xla_ffi/python", "csrc/mpi_collectives"},
    "transport/ucx": {"xla_ffi/python"},
    "codec/cast": {"csrc/codec"},
    "codec/delta": {"csrc/codec"},
    "codec/library": {"csrc/codec", "csrc/codec/nvcomp"},
    "codec/lossless": {"csrc/codec", "csrc/cuda"},
    "codec/nvcomp": {"csrc/codec", "csrc/cuda"},
    "codec/quantize": {"csrc/codec"},
    "codec/sign": {"csrc/codec"},
    "codec/sparse": {"csrc/codec"},
}

# Python's components and public modules, lowest first: each imports from lower layers, and from
# itself.
LAYERS = (
    {"errors"},
    {"_jax"},
    {"_native", "config"},
    {"_codecs", "schedules"},
    {"_runtime"},
    {"_elastic"},
    {"comm", "codecs", "launch"},
    {"_call", "stats", "trace"},
    {"_traced", "bench"},
    {"_primitives", "toolkit"},
    {"_api", "cli"},
    {"ops", "lax", "__main__"},
    {"optim", "plan", "sync"},
    {"__init__"},
    {"compat"},
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def cpp_files(folder):
    found = [p for p in structure.cpp_files().values() if p.is_relative_to(ROOT / folder)]
    assert found
    return found


CPP = structure.cpp_graph()


@pytest.mark.parametrize("component", COMPONENTS)
def test_components_include_only_components_of_lower_layers(component):
    for name, below in CPP.items():
        if structure.component_of(name) == component:
            assert {structure.component_of(each) for each in below} <= COMPONENTS[component] | {
                component
            }, name


def test_folders_of_csrc_equal_the_known_components():
    assert {path.name for path in (ROOT / "csrc").iterdir() if path.is_dir()} == set(COMPONENTS) - {
        "xla_ffi"
    }


@pytest.mark.parametrize("component", PUBLIC_HEADERS)
def test_components_are_included_by_their_public_headers(component):
    ways = {each for each in IMPLEMENTATIONS if each.startswith(component + "/")}
    for name, below in CPP.items():
        for each in below:
            if (
                structure.component_of(each) != component
                or structure.component_of(name) == component
            ):
                continue
            inside = each.removeprefix(component + "/")
            assert inside in PUBLIC_HEADERS[component] or any(
                each.startswith(way) for way in ways
            ), (name, each)


def test_implementations_are_included_only_by_allowed_folders():
    for name, below in CPP.items():
        place = (name if name.startswith("xla_ffi/") else f"csrc/{name}").rpartition("/")[0]
        for each in below:
            for implementation, allowed in IMPLEMENTATIONS.items():
                if each.startswith(implementation + "/"):
                    seers = {*allowed, f"csrc/{implementation}"}
                    assert any(place == by or place.startswith(by + "/") for by in seers), (
                        name,
                        each,
                    )


def test_only_the_cuda_stage_includes_the_engine():
    for name, below in CPP.items():
        if structure.component_of(name) == "cuda" and not name.startswith("cuda/stage/"):
            seen = {structure.component_of(each) for each in below}
            assert not seen & {"collective", "matching", "engine"}, name
        if name.startswith(("cuda/kernels/", "cuda/host/")):  # built as a separate library
            assert not any(each.startswith("cuda/stage/") for each in below), name


def test_no_source_includes_a_fake_of_the_tests():
    for path in [*cpp_files("csrc"), *cpp_files("xla_ffi")]:
        assert not any("fake" in name for name in structure.includes(path)), path


def test_only_sources_compiled_by_nvcc_include_cuda_headers():
    for path in cpp_files("csrc"):
        own = [name for name in structure.includes(path) if name.startswith("cuda")]
        if not path.is_relative_to(ROOT / "csrc/cuda"):
            assert not own, path
        elif path.suffix not in (".cu", ".cuh"):
            assert all(name.startswith("cuda/") for name in own), path


def test_csrc_includes_neither_python_nor_xla_nor_mpi_headers():
    for path in cpp_files("csrc"):
        for name in structure.includes(path):
            assert not re.match(r"Python\.h|pybind11/|xla/|mpi\.h", name), (path, name)


def test_ffi_handlers_include_no_python_headers():
    for path in cpp_files("xla_ffi/handlers"):
        for name in structure.includes(path):
            assert not re.match(r"Python\.h|pybind11/|python/", name), (path, name)


PYTHON = structure.python_graph()


def test_every_source_is_compiled_once():
    listed = re.findall(r"^ {4}(\S+\.cc)\)?$", (ROOT / "cmake/sources.cmake").read_text(), re.M)
    there = [path for component in ("csrc", "xla_ffi") for path in (ROOT / component).rglob("*.cc")]
    assert sorted(listed) == sorted(str(path.relative_to(ROOT)) for path in there)


UNITY = (ROOT / "cmake/unity.cmake").read_text()
UNITY_FOLDERS = re.search(r"set\(UNITY_FOLDERS ([^)]*)\)", UNITY)[1].split()
COMPILER = shutil.which("c++") or shutil.which("g++")


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is installed")
@pytest.mark.parametrize("folder", [each for each in UNITY_FOLDERS if each.startswith("csrc/")])
def test_each_source_includes_all_headers_that_it_uses(folder):
    """Compiles each source alone, because a joint compilation hides missing includes.

    The build compiles the kernels of each instruction set alone, with separate flags.
    """
    sources = sorted(each for each in (ROOT / folder).glob("*.cc") if "_avx" not in each.name)
    assert sources
    arguments = ["-std=c++20", "-fsyntax-only", f"-I{ROOT / 'csrc'}"]
    done = subprocess.run([COMPILER, *arguments, *sources], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


CUDA = pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is installed")
@pytest.mark.skipif(
    not (CUDA / "cuda_runtime_api.h").exists(), reason="no CUDA headers (CUDA_HOME)"
)
@pytest.mark.parametrize("source", sorted(path.name for path in (ROOT / "tests/gpu").glob("*.cc")))
def test_gpu_tests_compile_without_a_gpu(source):
    """Compiles GPU tests on machines without a GPU, where no other test does."""
    folders = [f"-I{ROOT / folder}" for folder in ("csrc", "tests/cpp", "tests/gpu")]
    arguments = ["-std=c++20", "-fsyntax-only", *folders, "-isystem", CUDA]
    done = subprocess.run(
        [COMPILER, *arguments, ROOT / "tests/gpu" / source], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", PYTHON)
def test_python_modules_import_only_lower_layers(name):
    component = structure.component_of(name)
    assert component in LEVEL, f"{component} has no layer in this test"
    for imported in PYTHON[name]:
        below = structure.component_of(imported)
        assert below == component or LEVEL[below] < LEVEL[component], f"{name} imports {imported}"


# Modules of JAX that its documentation excludes from its promise of compatibility, or that only
# extensions of JAX need. ``jaxlib`` itself has the version.
PRIVATE_JAX = re.compile(
    r"jax\.(_src|core|extend|interpreters|lib|monitoring|experimental\.serialize_executable)\b"
    r"|jaxlib\.(?!__version__)"
)
# Attributes of JAX's equations, types and contexts of lowerings, whose names JAX may change.
PRIVATE_ATTRIBUTES = {
    *("aval", "avals_in", "avals_out", "mat", "module_context", "source_info", "tokens_in"),
    "trace_ctx",
}


def private_uses(path):
    """Yields the uses of JAX's private API in a Python file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documentation = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)
    }  # strings that are statements
    yield from (each for each in structure.imports(path) if PRIVATE_JAX.match(each))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            is_parameter = node.attr == "params" and getattr(node.value, "id", "") == "eqn"
            is_private = PRIVATE_JAX.match(name) or node.attr in PRIVATE_ATTRIBUTES
            if (is_private and not name.startswith("_jax.")) or is_parameter:
                yield name
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # Names of loggers and events.
            if re.match(r"jax\._src|/jax/", node.value) and id(node) not in documentation:
                yield node.value


@pytest.mark.parametrize(
    "name", [name for name in PYTHON if structure.component_of(name) != "_jax"]
)
def test_only_the_jax_folder_uses_private_names_of_jax(name):
    assert list(private_uses(structure.python_files()[name])) == []


@pytest.mark.parametrize(
    "text",
    [
        "from jax._src import core",
        "import jax.extend.core",
        "from jax.interpreters import mlir",
        "jax.monitoring.register_event_listener(f)",
        "isinstance(x, jax.core.Tracer)",
        "from jaxlib.mlir import ir",
        "logging.getLogger('jax._src.callback')",
        "f('/jax/core/compile/backend_compile_duration')",
        "eqn.invars[0].aval",
        "eqn.params['jaxpr']",
    ],
)
def test_private_uses_finds_imports_of_jax_internals(text, tmp_path):
    path = tmp_path / "file.py"
    path.write_text(text)
    assert list(private_uses(path))


def test_imports_and_includes_have_no_cycles():
    assert structure.cycles(PYTHON) == []
    assert structure.cycles(CPP) == []
    for folder in structure.folders(CPP):
        assert structure.cycles(structure.sheet(CPP, folder)) == [], folder


def test_component_graphs_have_fewer_than_30_nodes():
    for graph in (structure.components(PYTHON), structure.components(CPP)):
        assert len(graph) < 30
        assert sum(map(len, graph.values())) <= 115


def test_cycles_returns_the_nodes_of_a_cycle():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"a"}}
    assert structure.cycles(graph) == ["b", "c"]
    assert structure.levels({"a": {"b"}, "b": set()}) == [["b"], ["a"]]


def test_every_python_module_has_a_docstring():
    for path in structure.python_files().values():
        assert ast.get_docstring(ast.parse(path.read_text())), path


def test_time_limits_in_tests_scale_with_machine_load():
    """Time limits of processes must use tests/patience.py, because a busy machine is slower."""
    fixed = re.compile(r"(?:\.wait\(|\.communicate\(|\btimeout=)(?:timeout=)?(\d+)(?:\.\d+)?[,)]")
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            found = fixed.search(line)
            assert found is None or int(found[1]) < 5, f"{path}:{number}: {line.strip()}"
