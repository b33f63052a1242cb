"""Shared by all parts of the suite: paths, types of 64 bits, and quick compilation."""

import os
import pathlib
import sys
import zlib

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_ENABLE_X64", "1")  # read by JAX when it is imported
# Compiling is what tests spend their time on. XLA's own passes, which decide what becomes of a
# collective, run as ever; only LLVM leaves its code as it is.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=0"

_HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(_HERE), str(_HERE.parent / "tools")]

# "" leaves slow tests out, "only" takes no others, "also" takes all (`make test-slow`,
# `make test-all`).
_SLOW = os.environ.get("JAXCCOMP_TEST_SLOW", "")

# "K/N": the K-th of N shares of the tests, each of which is in one share. Not for processes that
# tests start, which may be pytest again.
_SHARE, _SHARES = map(int, os.environ.pop("JAXCCOMP_TEST_SHARE", "1/1").split("/"))
if not 1 <= _SHARE <= _SHARES:
    raise ValueError(f"JAXCCOMP_TEST_SHARE must be K/N with K from 1 to N, not {_SHARE}/{_SHARES}")


# Where `make` keeps what JAX has compiled, for this part of the suite.
_COMPILED = os.environ.get("JAXCCOMP_TEST_COMPILED")


def pytest_configure(config):
    """Programs that an earlier run has compiled are loaded: compiling is half of what tests take.

    JAX writes an entry in place, so each rank has a folder of its own. Processes that tests start,
    and may kill, have none.
    """
    if not _COMPILED:
        return
    import jax

    rank = os.environ.get("PMI_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or "alone"
    jax.config.update("jax_compilation_cache_dir", os.path.join(_COMPILED, rank))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def pytest_collection_modifyitems(config, items):
    def is_left_out(item):
        slow = item.get_closest_marker("slow") is not None
        if {"": slow, "only": not slow, "also": False}[_SLOW]:
            return True
        return zlib.crc32(item.nodeid.encode()) % _SHARES != _SHARE - 1

    config.hook.pytest_deselected(items=[item for item in items if is_left_out(item)])
    items[:] = [item for item in items if not is_left_out(item)]
