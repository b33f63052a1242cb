"""Configures all parts of the suite: import paths, 64-bit types, quick compilation, and shares."""

import os
import pathlib
import sys
import zlib

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_ENABLE_X64", "1")  # read by JAX when it is imported
# Compilation takes most of the tests' time, so LLVM does not optimise. XLA's passes, which decide
# how a collective is compiled, still run.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=0"

_HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(_HERE), str(_HERE.parent / "tools")]

import golden_errors  # noqa: E402

# "": skip slow tests; "only": run only slow tests; "also": run all tests.
_SLOW = os.environ.get("JAXCCOMP_TEST_SLOW", "")

# "K/N": run the K-th of N shares; each test is in one share. Removed from the environment, because
# tests may start pytest.
_SHARE, _SHARES = map(int, os.environ.pop("JAXCCOMP_TEST_SHARE", "1/1").split("/"))
if not 1 <= _SHARE <= _SHARES:
    raise ValueError(f"JAXCCOMP_TEST_SHARE must be K/N with K from 1 to N, not {_SHARE}/{_SHARES}")


# The folder of JAX's compilation cache for this part of the suite; `make` sets it.
_COMPILED = os.environ.get("JAXCCOMP_TEST_COMPILED")


def pytest_addoption(parser):
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the texts of errors to tests/golden/errors.txt instead of comparing them",
    )


def pytest_configure(config):
    """Enables JAX's compilation cache, because compilation takes half of the tests' time.

    Each rank has its own folder, because JAX writes entries in place. Processes that tests start
    have no cache, because tests may kill them during a write.
    """
    if not _COMPILED:
        return
    import jax

    rank = os.environ.get("PMI_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or "alone"
    jax.config.update("jax_compilation_cache_dir", os.path.join(_COMPILED, rank))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def pytest_make_parametrize_id(config, val, argname):
    """Names a case by its facts (golden_errors.raises), not by its number."""
    if argname == "facts" and isinstance(val, tuple):
        return " ".join(map(str, val))[:60]
    return None


_stale_errors: set[str] = set()
_new_errors: dict[str, list[str]] = {}


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    """Compares the error texts of a test that passes with tests/golden/errors.txt."""
    golden_errors.begin()
    result = yield
    if pyfuncitem.config.getoption("--update-golden"):
        _new_errors[pyfuncitem.nodeid] = golden_errors.take()
    else:
        golden_errors.compare(pyfuncitem.nodeid)
    return result


def pytest_sessionfinish(session):
    if session.config.getoption("--update-golden") and "JAXCCOMP_TEST_RANKS" not in os.environ:
        golden_errors.update(_new_errors, _stale_errors)


def pytest_collection_modifyitems(config, items):
    collected = {item.nodeid for item in items}
    # pytest has found all tests of a file unless an argument names one of its tests.
    parts = {name.partition("::")[0] for name in config.args if "::" in name}
    files = {test.partition("::")[0] for test in collected} - parts
    _stale_errors.update(golden_errors.stale(collected, files))

    def is_left_out(item):
        slow = item.get_closest_marker("slow") is not None
        if {"": slow, "only": not slow, "also": False}[_SLOW]:
            return True
        return zlib.crc32(item.nodeid.encode()) % _SHARES != _SHARE - 1

    config.hook.pytest_deselected(items=[item for item in items if is_left_out(item)])
    items[:] = [item for item in items if not is_left_out(item)]
