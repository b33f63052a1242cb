"""The library of XLA's own collectives, the groups of compiled programs, and policies."""

import ctypes
import mmap
import pathlib
import re
import subprocess
import types

import jaxlib
import pytest

from jaxccomp import comm, errors, schedules
from jaxccomp._jax import events
from jaxccomp._native import engine
from jaxccomp._primitives import xla_collectives

LIBRARY = engine.xla_variables()[engine.XLA_MPI]


def symbols():
    """Return the names that the library exports."""
    command = ["nm", "-D", "--defined-only", "--format=posix", LIBRARY]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in listed.splitlines()}


def test_xla_library_exports_the_symbols_that_jaxlib_reads():
    """jaxlib ends the process if one is missing."""
    found = set()
    for path in pathlib.Path(jaxlib.__file__).parent.glob("*.so"):
        with open(path, "rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            found |= {each.decode() for each in re.findall(rb"\0(MPIX?ABI_\w+)(?=\0)", data)}
    assert len(found) > 500
    assert found - symbols() == set()


def test_xla_library_exports_no_mpi_symbols_and_links_no_mpi():
    assert not any(name.startswith(("MPI_", "PMPI_", "MPIX_")) for name in symbols())
    needed = subprocess.run(["readelf", "-d", LIBRARY], capture_output=True, text=True).stdout
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", needed))
    assert all(name.startswith(("libc.", "ld-linux", "libm.")) for name in needed), needed


def error_of(library, code):
    text, length = ctypes.create_string_buffer(1024), ctypes.c_int()
    library.MPIABI_Error_string(code, text, ctypes.byref(length))
    assert length.value == len(text.value)
    return text.value.decode()


def test_unsupported_mpi_functions_fail_with_their_name():
    library = ctypes.CDLL(LIBRARY)
    assert ctypes.c_int.in_dll(library, "mpiabi_version_major").value == 2
    assert ctypes.c_int.in_dll(library, "mpiabi_version_minor").value == 10
    for call, name in (
        (library.MPIABI_Alltoall, "MPI_Alltoall"),
        (library.MPIABI_File_open, "MPI_File_open"),
        (library.MPIXABI_Query_cuda_support, "MPIX_Query_cuda_support"),
    ):
        assert f"jaxccomp has no {name}:" in error_of(library, call())


def test_xla_library_accepts_calls_after_finalize():
    library = ctypes.CDLL(LIBRARY)
    flag, comm = ctypes.c_int(), ctypes.c_size_t(3)
    assert library.MPIABI_Finalize() == 0 == library.MPIABI_Finalize()
    assert library.MPIABI_Finalized(ctypes.byref(flag)) == 0 and flag.value == 1
    assert library.MPIABI_Comm_free(ctypes.byref(comm)) == 0 and comm.value == 0
    assert library.MPIABI_Is_thread_main(ctypes.byref(flag)) == 0 and flag.value == 1


def test_xla_library_refuses_an_engine_of_another_build():
    library = ctypes.CDLL(LIBRARY)
    library.jaxccomp_xla_attach.restype = ctypes.c_char_p
    error = library.jaxccomp_xla_attach(None, b"0.0.1", ctypes.c_int64(88))
    assert b"the engine is of another build" in error


def test_error_names_an_xla_library_that_jaxlib_has_not_loaded(monkeypatch, tmp_path):
    path = tmp_path / engine.XLA_LIBRARY
    monkeypatch.setenv(engine.XLA_MPI, str(path))
    with pytest.raises(errors.EngineUnavailableError, match="before jaxlib is imported") as raised:
        xla_collectives.activate()
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    "text, groups",
    [
        ("{{0,1},{2,3}}", ((0, 1), (2, 3))),
        ("{}", ()),
        ("[2,2]<=[4]", ((0, 1), (2, 3))),
        ("[2,2]<=[2,2]T(1,0)", ((0, 2), (1, 3))),
        ("mesh['a'=2,'b'=2] {'a'}", ((0, 2), (1, 3))),
        ("mesh['a'=2,'b'=2] {'b','a'}", ((0, 2, 1, 3),)),
        ("mesh['a'=8] {'a':(2)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("mesh['a'=8] {'a':(1)2,'a':(4)2}", ((0, 1, 4, 5), (2, 3, 6, 7))),
        ("mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'a'}", ((0, 1), (2, 3))),
        ("mesh['a'=2,'b'=2], device_ids=(0,2,1,3) {'a'}", ((0, 1), (2, 3))),
        ("mesh[x=2,'y,z'=2] {'y,z'}", ((0, 1), (2, 3))),
    ],
)
def test_replica_groups_are_read_from_compiled_programs(text, groups):
    assert events._parse_groups(text) == groups


def test_parse_policy_returns_rules_in_order():
    text = """
    # gradients
    allreduce float32 >=1MiB int8:block=64; reduce_scatter float64 bf16
    allgather >=100 lossless  # weights
    * zstd
    """
    assert xla_collectives.parse_policy(text) == [
        ("allreduce", "float32", 1 << 20, "int8:block=64"),
        ("reduce_scatter", "float64", 0, "bf16"),
        ("allgather", "", 100, "lossless"),
        ("*", "", 0, "zstd"),
    ]
    assert xla_collectives.parse_policy("") == []
    assert xla_collectives.parse_policy("allreduce float32 auto:int8; * auto") == [
        ("allreduce", "float32", 0, "auto:int8"),
        ("*", "", 0, "auto"),
    ]


@pytest.mark.parametrize(
    "rule, fact",
    [
        ("bcast lossless", "unknown operation in the policy's rule 'bcast lossless': 'bcast'"),
        ("allreduce float33 int8", "'float33'; valid"),
        ("allreduce float32", "unknown codec 'float32'"),
        ("allreduce", "names no codec"),
        ("allreduce float32 > 1MiB int8", "no space after >="),
        ("allreduce float32 >=1MB int8", "such as 4096, 64KiB or 1MiB"),
        ("allreduce int8", "name an operation ('allreduce', 'reduce_scatter') and a dtype"),
        ("allreduce int32 int8", "is lossy"),
        ("* int8", "is lossy"),
        ("alltoall bf16", "is lossy"),
        ("allgather float32 lossless", "omit float32"),
        ("* auto:int8", "is lossy"),
        ("allreduce float32 auto:auto", "stands alone"),
        ("permute auto", "predicted times, which do not exist for permutes"),
    ],
)
def test_invalid_policy_error_names_allowed_values(rule, fact):
    with pytest.raises(errors.InvalidArgumentError, match=re.escape(fact)):
        xla_collectives.parse_policy(f"* raw; {rule}")


# Two processes, whose hosts are connected by 10 MB/s.
RATES = {f"{name}_bytes_per_second": 4e9 for name in ("encode", "decode", "merge")}
SLOW_LINK = {
    "hosts": [
        {"count": 2, "ranks": 1, "cores": 4, "up_bytes_per_second": 1e7}
        | {"down_bytes_per_second": 1e7}
    ],
    "codecs": {"lossless": RATES | {"ratio": 1.4}, "int8": RATES | {"ratio": 3.7}},
}
BOTH = ((0, 1),)


def rules_of_auto(monkeypatch, policy, collectives, profile=SLOW_LINK, hosts=(0, 1)):
    """Return the rules that the library gets for collectives of a program of two processes."""
    added = []
    core = types.SimpleNamespace(add_xla_rule=lambda *rule: added.append(rule))
    planner = profile and schedules.Planner(schedules.cluster_of(profile), hosts)
    monkeypatch.setattr(comm, "planner", lambda: planner)
    monkeypatch.setattr(comm, "process_numbers", lambda: {0: 0, 1: 1})
    monkeypatch.setattr(xla_collectives, "_rules", xla_collectives.parse_policy(policy))
    monkeypatch.setattr(xla_collectives, "_chosen", set())
    monkeypatch.setattr(xla_collectives.engine, "load", lambda load=engine.load: Both(core, load()))
    devices = [types.SimpleNamespace(id=each, process_index=each) for each in range(2)]
    for each in collectives:
        xla_collectives._choose(events.XlaCollective(*each), devices)
    return added


class Both:
    """The engine, with functions of another object."""

    def __init__(self, first, second):
        self._first, self._second = first, second

    def __getattr__(self, name):
        return getattr(self._first if hasattr(self._first, name) else self._second, name)


def test_auto_rules_are_resolved_by_the_profile_for_each_operation_and_size(monkeypatch):
    policy = "allreduce float32 auto; allreduce float64 auto:int8; * auto"
    collectives = [
        ("all-reduce", BOTH, (("f32", 1 << 20), ("f32", 4), ("f32", 1 << 20))),
        ("all-reduce", BOTH, (("f64", 1 << 20),)),
        ("reduce-scatter", BOTH, (("f32", 1 << 19),)),
        ("all-gather", BOTH, (("bf16", 1 << 21),)),
        ("all-to-all", BOTH, (("f32", 1 << 19), ("f32", 1 << 19))),
        ("all-to-all", BOTH, (("f32", 1 << 20),)),
        ("collective-permute", BOTH, (("f32", 1 << 20),)),
        ("all-gather", ((0,), (1,)), (("f32", 1 << 20),)),
    ]
    rules = rules_of_auto(monkeypatch, policy, collectives)
    assert all(members == (0, 1) for members, *_ in rules)
    assert {tuple(rule[1:5]) for rule in rules} == {
        ("allreduce", "float32", 4 << 20, "lossless"),
        ("allreduce", "float32", 16, "raw"),
        ("allreduce", "float64", 8 << 20, "int8"),
        ("reduce_scatter", "float32", 4 << 20, "lossless"),
        ("allgather", "", 2 << 20, "lossless"),
        ("alltoall", "", 2 << 20, "lossless"),
    }
    assert len(rules) == 6


def test_auto_rules_send_raw_if_codecs_are_slow_and_leave_other_rules_alone(monkeypatch):
    rates = dict.fromkeys(RATES, 1e6) | {"ratio": 1.4}
    slow_codecs = SLOW_LINK | {"codecs": {"lossless": rates}}
    collectives = [("all-gather", BOTH, (("f32", 1 << 20),)), ("all-reduce", BOTH, (("f32", 9),))]
    rules = rules_of_auto(monkeypatch, "allreduce lossless; * auto", collectives, slow_codecs)
    assert [tuple(rule[1:5]) for rule in rules] == [("allgather", "", 2 << 20, "raw")]


def test_auto_rule_without_a_profile_names_the_command_that_measures_one(monkeypatch):
    collectives = [("all-gather", BOTH, (("f32", 1 << 20),))]
    assert rules_of_auto(monkeypatch, "allreduce float32 auto", collectives, None) == []
    with pytest.raises(errors.InvalidArgumentError) as raised:
        rules_of_auto(monkeypatch, "allgather >=1KiB auto", collectives, None)
    assert "'allgather >=1024 auto'" in str(raised.value)
    assert "python -m jaxccomp tune links" in str(raised.value)
    assert "JAXCCOMP_PROFILE" in str(raised.value)
