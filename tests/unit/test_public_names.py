"""The names of the package, which `jaxccomp/__init__.py` imports on first use."""

import ast
import importlib
import subprocess
import sys

import pytest

import jaxccomp


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


def test_type_checkers_see_the_names_that_are_imported_on_first_use():
    found = _names_for_type_checkers()
    assert sorted(found) == jaxccomp.__all__
    for name, module in found.items():
        value = getattr(importlib.import_module(module), name)
        assert getattr(jaxccomp, name) is value


def test_there_are_few_public_names():
    assert len(jaxccomp.__all__) <= 55
    assert set(dir(jaxccomp)) == {*jaxccomp.__all__, "__version__"}


def test_import_loads_no_other_package():
    program = "import sys, jaxccomp; print(sorted({'jax', 'numpy', 'optax'} & set(sys.modules)))"
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == "[]"


def test_names_of_version_0_1_warn_and_work():
    with pytest.warns(DeprecationWarning) as caught:
        assert jaxccomp.optim.Rule("bf16", least_bytes=7).min_bytes == 7
        assert jaxccomp.CollectiveRule("bf16", least_bytes=7).min_bytes == 7
        jaxccomp.optim.powersgd(least_ratio=3.0)
        _ = jaxccomp.allreduce_start
    names = ["min_bytes=", "min_bytes=", "min_ratio=", "jaxccomp.nonblocking(jaxccomp.allreduce)"]
    for warning, name in zip(caught, names, strict=True):
        assert name in str(warning.message)
        assert warning.filename == __file__  # Python shows a warning of the user's own line
