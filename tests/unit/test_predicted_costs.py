"""Predicted costs of collectives on described clusters: sums and errors."""

import json
import pathlib

import pytest
from golden_errors import raises
from testbed import prices

from jaxccomp import errors, schedules
from jaxccomp.cli import main as command_line

ROOT = pathlib.Path(__file__).parents[2]
LOSSLESS = {
    "ratio": 1.5,
    "encode_bytes_per_second": 4e9,
    "decode_bytes_per_second": 6e9,
    "merge_bytes_per_second": 5e9,
}


def test_chain_bcast_cost_is_within_5_percent_of_link_bandwidth():
    price = schedules.simulate("bcast", "chain", cluster="4x1gbit", size_bytes=64 << 20)
    assert price.floor_seconds == pytest.approx((64 << 20) / (1e9 * 1448 / 1514 / 8))
    assert price.floor_seconds < price.seconds < 1.05 * price.floor_seconds
    assert price.up_bytes == (64 << 20, 64 << 20, 64 << 20, 0)
    assert price.down_bytes == (0, 64 << 20, 64 << 20, 64 << 20)
    assert len(price.rank_seconds) == 4 and max(price.rank_seconds) == price.seconds


def test_slow_codec_is_faster_on_slow_links_only():
    slow = {name: value / 10 if name != "ratio" else value for name, value in LOSSLESS.items()}

    def gain(link):
        how = {"cluster": f"4x{link}", "size_bytes": 64 << 20}
        raw = schedules.simulate("allreduce", "two_shot", **how)
        coded = schedules.simulate("allreduce", "two_shot", codec=slow, **how)
        return raw.seconds / coded.seconds

    assert gain("1gbit") > 1.4 > 1.0 > gain("400gbit")


def test_reduced_simulation_of_equal_hosts_equals_the_full_one():
    how = {"cluster": "8x1gbit", "size_bytes": 8 << 20}
    reduced = schedules.simulate("allreduce", "two_shot", **how)
    whole = schedules.simulate("allreduce", "two_shot", every_rank=True, **how)
    assert reduced.reduced and not whole.reduced
    assert reduced.seconds == whole.seconds and reduced.up_bytes == whole.up_bytes


def test_repeated_simulations_are_equal():
    how = {"cluster": "3x2x1gbit", "size_bytes": 3 << 20, "codec": LOSSLESS}
    first, second = (schedules.simulate("allreduce", "auto", **how) for _ in range(2))
    assert first == second


def test_simulate_all_returns_all_algorithms_fastest_first():
    rows, missing = schedules.simulate_all("bcast", cluster="4x1gbit", size_bytes=16 << 20)
    assert {row.algorithm for row in rows} | set(missing) == set(schedules.algorithms("bcast"))
    assert [row.seconds for row in rows] == sorted(row.seconds for row in rows)
    assert rows[0].algorithm == "chain" and not missing


def profile(**changes):
    return {"version": 1, "hosts": [{"count": 2, "ranks": 1}]} | changes


@pytest.mark.parametrize(
    "cluster,facts",
    [
        (profile(version=7), ("version 7", "version 1")),
        ({"version": 1}, ("hosts", "1 to 8192")),
        (profile(hosts=[{"count": 0}]), ("hosts[0]: count", "1 to 8192", "not 0")),
        (profile(hosts=[{"count": 10**9}]), ("hosts[0]: count", "1 to 8192", "1000000000")),
        (profile(hosts=[{"count": 8000, "ranks": 8000}]), ("64000000 ranks", "8192")),
        (profile(hosts=[{"kount": 2}]), ("hosts[0]", "'kount'", "'count'")),
        (
            profile(memory={"copy_bytes_per_second": float("nan")}),
            ("memory: copy_bytes_per_second", "1 to 1e+18"),
        ),
        (
            profile(memory={"copy_bytes_per_second": "fast"}),
            ("memory: copy_bytes_per_second", "1 to 1e+18"),
        ),
        (
            profile(pairs={"link": {"latency_seconds": -1}}),
            ("pairs: link: latency_seconds", "1e-09 to 1000", "-1"),
        ),
        (profile(one_machine=1), ("one_machine", "true", "false", "1")),
        (profile(codecs={"int8": {"ratio": 4}}), ("codecs: int8", "'encode_bytes_per_second'")),
        ("4x1", ("'4x1'", "'4x1gbit'")),
        ("no_such_file.json", ("'no_such_file.json'", "'4x1gbit'")),
        ([1], ("'version', 'hosts'", "list")),
    ],
)
def test_invalid_clusters_raise_errors_that_name_the_key(cluster, facts):
    with raises((errors.InvalidArgumentError, errors.UnknownNameError), facts):
        schedules.simulate("bcast", cluster=cluster, size_bytes=1)


@pytest.mark.parametrize("content", ["", "{", "[" * 100_000, '{"version": 1e999}', "\x00"])
def test_files_without_a_profile_are_refused(tmp_path, content):
    path = tmp_path / "profile.json"
    path.write_text(content)
    with pytest.raises((errors.InvalidArgumentError, errors.UnknownNameError)):
        schedules.simulate("bcast", cluster=str(path), size_bytes=1)


@pytest.mark.parametrize(
    "changes,facts",
    [
        ({"collective": "bkast"}, ("'bkast'", "'bcast'")),
        ({"algorithm": "chian"}, ("bcast", "chian", "chain")),
        ({"size_bytes": -1}, ("size_bytes", "0..1125899906842623", "-1")),
        ({"root": 4}, ("root", "0..3", "4")),
        ({"codec": "int8"}, ("'int8'", "'raw'", "docs/planner.md")),
        (
            {"codec": LOSSLESS | {"ratio": 0}},
            ("the codec: ratio", "0.1 to 1e+06", "0"),
        ),
    ],
)
def test_invalid_arguments_raise_errors_that_name_allowed_values(changes, facts):
    given = {"collective": "bcast", "cluster": "4x1gbit", "size_bytes": 1} | changes
    with raises((errors.InvalidArgumentError, errors.UnknownNameError), facts):
        schedules.simulate(given.pop("collective"), given.pop("algorithm", "auto"), **given)


def test_simulate_command_prints_all_algorithms(tmp_path, capsys):
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(profile(codecs={"lossless": LOSSLESS})))
    arguments = ["simulate", "--cluster", str(path), "--op", "bcast", "--size", "1MiB"]
    assert command_line.main([*arguments, "--codec", "lossless"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in schedules.algorithms("bcast"))
    assert command_line.main([*arguments, "--algorithms", "chain", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["predictions"]
    assert row["algorithm"] == "chain" and row["link_bytes"] == 1 << 20


def test_predictions_of_measured_calls_match_the_results_file():
    """The file matches its sources, and the errors match the page."""
    results = ROOT / "docs/results"
    measured, codecs = (prices.read(results / f"{n}.jsonl") for n in ("testbed", "codecs"))
    rows = prices.prices(measured, codecs)
    summary = prices.summary(rows)
    assert [*rows, summary] == prices.read(results / "prices.jsonl")
    page = (ROOT / "docs/planner.md").read_text(encoding="utf-8")
    shown = "median {:.1%}, worst {:.0%}, {} calls".format(*map(summary.get, prices.ERRORS))
    assert shown in page


def test_simulate_measures_a_codec_that_the_profile_lacks(capsys):
    arguments = ["simulate", "--cluster", "4x1gbit", "--op", "allreduce", "--size", "1MiB"]
    assert (
        command_line.main([*arguments, "--codec", "int8", "--algorithms", "two_shot", "--json"])
        == 0
    )
    shown = capsys.readouterr()
    (found,) = json.loads(shown.out)["predictions"]
    assert found["link_bytes"] == pytest.approx(1.5 * (1 << 20) / 3.76, rel=0.02)
    assert "int8" in shown.err and "measured on a core of this machine" in shown.err
    assert command_line.main([*arguments, "--codec", "int9"]) == 2
