"""The names of the package, which `jaxccomp/__init__.py` imports on first use."""

import ast
import importlib
import pathlib
import pydoc
import re
import subprocess
import sys

import pytest

import jaxccomp
from jaxccomp._native import engine


def _names_for_type_checkers() -> dict[str, str]:
    """Returns name: module, from the imports below ``if TYPE_CHECKING``."""
    with open(jaxccomp.__file__, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    found = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            names = [alias.asname]
            if alias.name == "*":
                names = importlib.import_module(node.module).__all__
            found.update(dict.fromkeys(names, node.module))
    return found


def test_type_checkers_see_lazily_imported_names():
    found = _names_for_type_checkers()
    assert sorted(found) == jaxccomp.__all__
    for name, module in found.items():
        value = getattr(importlib.import_module(module), name)
        assert getattr(jaxccomp, name) is value


@pytest.mark.parametrize("name", [*jaxccomp._SUBMODULES, "comm", "ops"])
def test_public_modules_list_their_names(name):
    module = importlib.import_module(f"jaxccomp.{name}")
    assert sorted(module.__all__) == sorted(set(module.__all__))
    for each in module.__all__:
        value = getattr(module, each)
        assert not callable(value) or value.__doc__, each


def _stub() -> dict[str, list[str]]:
    """Returns name: arguments, of the functions and methods in the native module's stub."""
    with open(pathlib.Path(jaxccomp.__file__).with_name("_core.pyi"), encoding="utf-8") as file:
        tree = ast.parse(file.read())
    found = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = []
            for method in node.body:
                found[f"{node.name}.{method.name}"] = [each.arg for each in method.args.args]
        elif isinstance(node, ast.FunctionDef):
            found[node.name] = [each.arg for each in node.args.args]
    return found


def _arguments(function: object) -> list[str]:
    """Returns the arguments of a function of pybind11, of its last overload, from its docstring."""
    line = re.findall(r"^(?:\d+\. )?(\w+\(.*) *$", function.__doc__, re.MULTILINE)[-1]
    (definition,) = ast.parse(f"def {line}: ...").body
    return [each.arg for each in definition.args.args]


def test_stub_of_the_native_module_has_all_its_names():
    """pybind11-stubgen has written it once; later functions are added by hand."""
    core = engine.load()
    stub = _stub()
    names = {name for name in dir(core) if not name.startswith("__")}
    assert {name for name in stub if "." not in name} == names
    for name, arguments in stub.items():
        if "." not in name and not isinstance(getattr(core, name), type):
            assert _arguments(getattr(core, name)) == arguments, name
    worker = core.UcxWorker
    methods = {name for name in vars(worker) if not name.startswith("_")} | {"__init__"}
    assert {f"UcxWorker.{name}" for name in methods} == {name for name in stub if "." in name}
    for name in methods:
        method = getattr(worker, name)
        if not isinstance(method, property):
            assert _arguments(method) == stub[f"UcxWorker.{name}"], name


def test_help_shows_the_keywords_of_operations():
    text = pydoc.render_doc(jaxccomp.bcast, renderer=pydoc.plaintext)
    for keyword in (
        "axis_name: collections.abc.Hashable",
        "comm: jaxccomp.comm.Communicator | None = None",
        "codec: str | ",
        "backend: str = 'auto'",
        "algorithm: str = 'auto'",
    ):
        assert keyword in text.splitlines()[2], text.splitlines()[2]


def test_package_has_at_most_55_public_names():
    assert len(jaxccomp.__all__) <= 55
    assert set(dir(jaxccomp)) == {*jaxccomp.__all__, "__version__"}


def test_import_of_jaxccomp_loads_neither_jax_nor_numpy():
    program = "import sys, jaxccomp; print(sorted({'jax', 'numpy', 'optax'} & set(sys.modules)))"
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == "[]"


def test_names_of_version_0_1_work_with_a_warning():
    with pytest.warns(DeprecationWarning) as caught:
        assert jaxccomp.optim.Rule("bf16", least_bytes=7).min_bytes == 7
        assert jaxccomp.CollectiveRule("bf16", least_bytes=7).min_bytes == 7
        jaxccomp.optim.powersgd(least_ratio=3.0)
        _ = jaxccomp.allreduce_start
    names = ["min_bytes=", "min_bytes=", "min_ratio=", "jaxccomp.nonblocking(jaxccomp.allreduce)"]
    for warning, name in zip(caught, names, strict=True):
        assert name in str(warning.message)
        assert warning.filename == __file__  # Python shows a warning of the user's own line
