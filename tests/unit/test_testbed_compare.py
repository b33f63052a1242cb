"""The comparison on a testbed, run without one: its table, inputs, checks and results."""

import argparse
import dataclasses
import sys
import types

import ml_dtypes
import numpy as np
import pytest
from golden_errors import raises
from testbed import __main__ as command_line
from testbed import collectives, compare, inputs, launchers, own, results, turns
from testbed.cases import ALGORITHMS, SCENARIOS, Case
from testbed.results import Row

from jaxccomp import codecs, errors
from jaxccomp._native import engine
from jaxccomp.bench import launch

CASE = Case("bcast", "bfloat16", "lossless", "chain")
MPIS = turns.Pythons({"mpich": sys.executable, "openmpi": "other"})
needs_engine = pytest.mark.skipif(not engine.available(), reason=engine.why_missing() or "-")


@pytest.mark.parametrize(
    "arguments,said",
    [
        (["--ops", "gossip"], "valid: 'allgather', 'allreduce', 'alltoall', 'bcast'"),
        (["--size", "64MB"], "a size reads like 64KiB"),
        (["--rounds", "0"], "at least 1"),
        (["--python", "lam=python"], "valid: 'mpich', 'openmpi'"),
    ],
)
def test_invalid_arguments_exit_with_status_2(arguments, said, capsys, monkeypatch):
    monkeypatch.setattr(command_line, "exit_on_signals", lambda: None)
    monkeypatch.setattr(launch, "vendor", lambda python=None: ("MPICH", "5"))
    monkeypatch.setattr(launch, "mpiexec", lambda python=None: "mpiexec")
    assert compare.main(arguments) == 2
    assert said in capsys.readouterr().err


def test_command_line_options_change_the_scenarios():
    given = compare._parser().parse_args(["--hosts", "2", "--ops", "alltoall", "--size", "1KiB"])
    chosen = compare._check(given)
    assert given.size == 1024 and set(chosen) == set(SCENARIOS)
    assert chosen["collectives"].hosts == 2 and chosen["collectives"].link == "1gbit"
    assert {case.op for each in chosen.values() for case in each.cases} == {"alltoall"}


@needs_engine
def test_every_case_uses_known_operations_codecs_and_algorithms():
    for scenario in SCENARIOS.values():
        for case in scenario.cases:
            assert case.op in collectives.OPERATIONS and case.values in inputs.KINDS
            if case.codec != own.INDEX_VALUE_ZSTD:
                assert codecs.canonical(case.codec) == case.codec
            algorithms = engine.load().describe()["algorithms"]
            names = {row["name"] for row in algorithms if row["collective"] == case.op}
            assert case.algorithm in names | {"auto"}, case


@needs_engine
def test_algorithm_cases_cover_every_algorithm():
    rows = engine.load().describe()["algorithms"]
    for op in collectives.OPERATIONS:
        names = [row["name"] for row in rows if row["collective"] == op]
        assert sorted(ALGORITHMS[op]) == sorted(names)
        cases = [case for case in SCENARIOS["algorithms"].cases if case.op == op]
        assert [case.algorithm for case in cases if case.codec == "raw"] == list(ALGORITHMS[op])
        assert len(cases) == 2 * len(names)


def test_every_peer_runs_once_for_each_operation(monkeypatch):
    monkeypatch.setattr(launchers, "find", lambda name, python: "openmpi")
    scenario = SCENARIOS["collectives"]
    pythons = dataclasses.replace(MPIS, mpi4jax="third")
    table = turns.rows(scenario.cases, scenario, pythons)
    assert len([row for row in table if row.worker == "jaxccomp"]) == len(scenario.cases)
    for op in collectives.OPERATIONS:
        peers = [row for row in table if row.case.op == op and row.worker != "jaxccomp"]
        names = [(row.contender, row.setting) for row in peers]
        assert len(set(names)) == len(names)
        assert {("mpich", "default"), ("openmpi", "default")} <= set(names)
        assert (("mpi4jax, openmpi", "default") in names) == (op != "reduce_scatter")
    alone = turns.rows(scenario.cases, SCENARIOS["hops"], pythons)
    assert {row.contender.split()[0] for row in alone} == {"jaxccomp"}


def test_worker_command_lines_contain_codec_algorithm_and_checks():
    given = argparse.Namespace(size=1024, calls=2, warmups=1)
    ours = Row(CASE, "jaxccomp lossless, mpich", "chain", "p", "jaxccomp", {})
    made = turns.command(ours, given, inputs.Input("a.npy", "b.npy"), "out")
    assert made[:2] == ["p", "-P"] and made[2].endswith("collectives.py")
    for pair in (("--codec", "lossless"), ("--algorithm", "chain"), ("--ref", "b.npy")):
        assert made[made.index(pair[0]) + 1] == pair[1]
    assert made[-2:] == ["--check", "--coding"]
    ours.found = {"check": "bit-exact"}
    again = turns.command(ours, given, inputs.Input("a.npy"), "out")
    assert "--check" not in again and "--coding" not in again
    peer = turns.command(Row(CASE, "mpich", "a", "p", "mpi", {}), given, inputs.Input("a"), "out")
    assert made[2] == peer[2] and "--codec" not in peer


def test_next_turn_keeps_fast_settings_and_the_default():
    def row(contender, setting, *calls, error=""):
        return Row(CASE, contender, setting, "p", "mpi", {}, list(calls), error=error)

    fast, near, slow = (row("mpich", name, t) for name, t in (("a", 1.0), ("b", 1.05), ("c", 1.2)))
    default, failed = row("mpich", "default", 9.0), row("mpich", "d", error="broken")
    other = row("jaxccomp raw, mpich", "chain", 5.0)
    table = [fast, near, slow, default, failed, other]
    assert turns.next_turn(table) == [fast, near, default, other]


def test_find_pythons_returns_interpreters_and_missing_packages(monkeypatch):
    vendors = {sys.executable: "MPICH", "o": "Open MPI", "j": "Open MPI"}
    monkeypatch.setattr(launch, "vendor", lambda python=None: (vendors[python], "5"))
    monkeypatch.setattr(launch, "mpiexec", lambda python=None: "mpiexec")
    monkeypatch.setattr(turns.contenders, "_has_module", lambda name, python: python == "j")
    assert turns.find_pythons(["openmpi=o", "mpi4jax=j"])[0].mpi4jax == "j"
    pythons, missing = turns.find_pythons(["openmpi=o"])
    assert list(pythons.mpis) == ["mpich", "openmpi"] and not pythons.mpi4jax
    assert "mpi4jax" in missing


def test_prepare_creates_random_inputs_of_all_kinds(tmp_path):
    made = inputs.prepare("random", "", tmp_path, 1 << 16)
    assert set(made) == set(inputs.KINDS)
    assert np.load(made["bfloat16"].file).dtype == np.uint16 and not made["bfloat16"].ref
    after, before = np.load(made["update"].file), np.load(made["update"].ref)
    assert 0 < np.mean(after != before) < 1 and after.shape == before.shape


def test_prepare_reads_inputs_from_files(tmp_path):
    one = np.linspace(0, 1, 64).astype(ml_dtypes.bfloat16)
    np.save(tmp_path / "one_bfloat16.npy", one.view(np.uint16))
    np.save(tmp_path / "two_bfloat16.npy", (one + one).view(np.uint16))
    np.save(tmp_path / "short_bfloat16.npy", one[:8].view(np.uint16))
    names = [str(tmp_path / f"{name}_bfloat16.npy") for name in ("one", "two", "short")]
    out = tmp_path / "out"
    out.mkdir()
    assert set(inputs.prepare(names[0], "", out, 0)) == {"bfloat16"}
    made = inputs.prepare(names[0], names[1], out, 0)
    np.testing.assert_array_equal(np.load(made["update"].ref), np.load(names[1]))
    with raises(
        errors.InvalidArgumentError, "--previous", "one_bfloat16.npy", "short_bfloat16.npy"
    ):
        inputs.prepare(names[0], names[2], out, 0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_expected_results_match_numpy(dtype):
    def make(rank):
        return collectives.values("random", dtype, 1536, rank, 3)

    assert {make(rank).nbytes for rank in range(3)} == {1536}
    assert not np.array_equal(make(0), make(1))
    rows = [collectives._as_float(make(rank)) for rank in range(3)]
    total = np.sum(rows, axis=0)
    for op, want in (("allreduce", total), ("reduce_scatter", total.reshape(3, -1)[1])):
        np.testing.assert_allclose(collectives.expected(op, make, 1, 3), want, rtol=1e-5, atol=1e-6)
    parts = [make(rank).reshape(3, -1)[1] for rank in range(3)]
    np.testing.assert_array_equal(
        collectives.expected("alltoall", make, 1, 3), np.concatenate(parts)
    )


class Alone:
    """A communicator of several ranks whose values all equal this rank's."""

    def Get_rank(self):
        return 1

    def Get_size(self):
        return 3

    def allgather(self, found):
        return [found] * 3


def checked(op, spoil, codec="raw", dtype="float32", comm=None, algorithm="auto"):
    def make(rank):
        return collectives.values("random", dtype, 6 << 10, rank, 3)

    want = collectives.expected(op, make, 1, 3)
    result = spoil(want.copy())
    if result.dtype != np.float32:
        result = result.view(ml_dtypes.bfloat16)
    elif dtype == "bfloat16":
        result = result.astype(ml_dtypes.bfloat16)
    return own.check(comm or Alone(), op, result, make, collectives.expected, codec, algorithm)


def one_off(by):
    def spoil(values):
        values[7] += by
        return values

    return spoil


@needs_engine
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("op", collectives.OPERATIONS)
def test_check_accepts_correct_results_and_refuses_others(op, dtype):
    word = "rounding" if op in collectives.SUMS else "bit-exact"
    assert checked(op, lambda values: values, "lossless", dtype)["check"] == word
    step = 1 if dtype == "bfloat16" and op not in collectives.SUMS else 0.01
    assert "error" in checked(op, one_off(step), "lossless", dtype)


@needs_engine
def test_check_bounds_the_error_of_lossy_sums():
    found = checked("allreduce", one_off(1e-4), "int8")
    assert found["check"].endswith("of bound")
    assert found["bound"].startswith("3 contributions and their sum, each coded once: 0.00397 of")
    assert "of what is allowed" in checked("allreduce", one_off(0.1), "int8")["error"]
    around = checked("allreduce", one_off(1e-4), "int8", algorithm="ring")
    assert around["bound"].endswith("and of what is on its way up to 1 times more; rounding")
    assert float(around["check"].split()[0]) < float(found["check"].split()[0])
    assert "of what is allowed" in checked("allreduce", one_off(np.nan), "int8")["error"]


@needs_engine
def test_check_refuses_results_that_differ_between_ranks():
    class Different(Alone):
        def allgather(self, found):
            return [found, 0, 0]

    found = checked("allreduce", one_off(1e-4), "int8", comm=Different())
    assert found == {"error": "results differ between ranks"}


@needs_engine
@pytest.mark.parametrize("codec", ["bf16", "int8", "int4:block=256", "zfp:tolerance=0.01"])
def test_allowed_error_holds_for_any_block_offset(codec):
    if codecs.table()[codec.split(":")[0]].missing:
        pytest.skip("not here")
    x = (np.random.default_rng(0).normal(size=2000) ** 5).astype(np.float32)
    limit = own.allowed(x, codecs.error_bound(codec, "float32"))
    for start in (0, 3, 100):
        decoded = codecs.decode(codecs.encode(codec, x[start:]))
        assert (np.abs(decoded - x[start:]) <= limit[start:]).all()


def test_memory_columns_appear_only_if_counted(monkeypatch):
    def shown(**fields):
        rows = types.SimpleNamespace(operations={"bcast": types.SimpleNamespace(**fields)})
        monkeypatch.setattr(own.jcc.stats, "get", lambda: rows)
        return own.memory(Alone(), "bcast")

    assert shown(calls=1) == {}
    assert shown(peak_bytes=5, bound_bytes=7) == {"peak_bytes": 5, "bound_bytes": 7}


def test_table_shows_the_fastest_setting_of_each_baseline_and_all_cases():
    two = dataclasses.replace(CASE, codec="bf16|lossless", algorithm="binomial")
    rows = [
        Row(CASE, "mpich", "default", "p", "mpi", {}, [3.0, 1.0, 2.0], 1 << 20),
        Row(CASE, "mpich", "b", "p", "mpi", {}, [1.5], 1 << 20),
        Row(CASE, "mpich", "c", "p", "mpi", {}, error="broken"),
        Row(CASE, "openmpi", "default", "p", "mpi", {}, [1.6], 1 << 20),
        Row(CASE, "jaxccomp lossless, mpich", "chain", "p", "jaxccomp", {}, [0.6], 1 << 20),
        Row(two, "jaxccomp bf16|lossless, mpich", "binomial", "p", "jaxccomp", {}, [1.0], 1 << 20),
    ]
    rows[4].found = {"check": "bit-exact", "bound": "none", "peak_bytes": 3 << 20}
    place = {"size": 1 << 21, "hosts": 4, "link": "1gbit"}
    lines = [row.line((1 << 20) / 1.5, scenario="collectives", **place) for row in rows]
    # Another scenario ran at another time, so its results are not compared.
    later = Row(CASE, "jaxccomp lossless, mpich", "chain", "p", "jaxccomp", {}, [0.5], 1 << 20)
    lines.append(later.line((1 << 20) / 1.5, scenario="algorithms", **place))
    assert results.with_ratios(lines)[-1]["of_best_mpi"] is None
    line = results.with_ratios(lines)[4]
    assert (line["floor_seconds"], line["of_floor"]) == pytest.approx((1.5, 0.4), rel=1e-2)
    assert (line["of_best_mpi"], line["of_default_mpi"]) == (0.4, 0.375)
    shown = results.markdown(lines)
    start = "| bcast | 4 x 1gbit | 2 MiB | bfloat16 |"
    assert f"{start} mpich | b | 1.500 s | 1.0 MiB | 1.00 x | 1.00 x | 0.94 x |  |  |" in shown
    assert (
        f"{start} jaxccomp lossless, mpich | chain | 0.600 s | 1.0 MiB | 0.40 x | 0.40 x" in shown
    )
    assert "| 0.38 x | bit-exact | 3.0 MiB |" in shown and "| bound |" not in shown
    assert "jaxccomp bf16\\|lossless, mpich | binomial | 1.000 s" in shown
    assert f"{start} jaxccomp lossless, mpich | chain | 0.500 s | 1.0 MiB | 0.33 x |  |" in shown
    assert shown.count("| mpich | ") == 1 and shown.endswith("bcast, mpich, c: broken")


def test_ratios_are_left_empty_without_an_mpi():
    row = Row(CASE, "jaxccomp lossless, mpich", "chain", "p", "jaxccomp", {}, [0.6], 1 << 20)
    (line,) = results.with_ratios([row.line(1e9, scenario="hops", size=1, hosts=8, link="1gbit")])
    assert line["of_best_mpi"] is None and line["of_default_mpi"] is None


def test_transports_scenario_compares_ucx_with_mpi():
    scenario = dataclasses.replace(
        SCENARIOS["transports"], cases=SCENARIOS["transports"].cases[2:4]
    )
    table = turns.rows(scenario.cases, scenario, turns.Pythons({"mpich": "p"}))
    assert [row.contender for row in table] == [
        "jaxccomp lossless, mpich",
        "jaxccomp lossless, UCX",
    ]
    assert [row.env for row in table] == [{}, {"JAXCCOMP_TRANSPORT": "ucx"}]
    for row, seconds in zip(table, (0.5, 0.51), strict=True):
        row.calls.append(seconds)
    place = {"size": 1 << 21, "hosts": 4, "link": "1gbit", "scenario": "transports"}
    lines = results.with_ratios([row.line(1e9, **place) for row in table])
    assert [line["of_mpi_transport"] for line in lines] == [None, 1.02]
    assert "| 1.02 x |" in results.markdown(lines)
