"""`tune transport`: the choice between two profiles, and incomparable profiles."""

import json

import pytest
from golden_errors import check_text, raises

from jaxccomp import errors, schedules
from jaxccomp.cli import main


def described(transport, seconds, cores=4, hosts=({"count": 2},)):
    """A profile with the given seconds per step."""
    return {
        "hosts": [{"ranks": 1, "cores": cores} | each for each in hosts],
        "transport": transport,
        "step_seconds": seconds,
    }


@pytest.fixture
def tune(tmp_path, capsys):
    """Calls the command with profiles of these contents; returns its status, file and output."""

    def call(*profiles):
        paths = [str(tmp_path / f"{i}.json") for i in range(len(profiles))]
        for path, content in zip(paths, profiles, strict=True):
            schedules.write_profile(path, content)
        out = tmp_path / "out.json"
        status = main.main(["tune", "transport", *paths, "--output", str(out)])
        said = capsys.readouterr()
        return status, json.loads(out.read_text()) if out.exists() else None, said.out + said.err

    return call


@pytest.mark.parametrize("order", [1, -1])
def test_profile_of_the_faster_transport_is_written(tune, order):
    profiles = [described("mpi", 3e-3), described("ucx", 2e-3)]
    status, made, said = tune(*profiles[::order])
    assert status == 0 and made == {"version": 1} | profiles[1]
    check_text(said, "ucx: 2.000 ms", "mpi: 3.000 ms", "1.50")


def test_profiles_may_group_equal_hosts_differently(tune):
    hosts = ({"up_bytes_per_second": 1e8}, {"up_bytes_per_second": 2e8})
    status, made, _ = tune(described("ucx", 3e-3), described("mpi", 2e-3, hosts=hosts))
    assert status == 0 and made["transport"] == "mpi"


@pytest.mark.parametrize(
    "other,facts",
    [
        (described("mpi", 1e-3), ("mpi", "ucx")),
        (described("", 1e-3), ("mpi", "ucx")),
        (described("ucx", 1e-3, cores=8), "hosts"),
        (described("ucx", 1e-3, hosts=({"count": 3},)), "hosts"),
        (described("ucx", 0.0), ("1.json", "step")),
    ],
)
def test_incomparable_profiles_are_refused(tune, other, facts):
    status, made, said = tune(described("mpi", 1e-3), other)
    assert status == 2 and made is None
    check_text(said, facts)


def test_files_without_a_profile_are_named(tmp_path, capsys):
    path = tmp_path / "cut.json"
    path.write_text('{"version": 1, "ho')
    assert main.main(["tune", "transport", str(path), str(path)]) == 2
    check_text(capsys.readouterr().err, path, "JSON", golden=False)
    assert main.main(["tune", "transport", str(tmp_path / "none"), str(path)]) == 2
    check_text(capsys.readouterr().err, tmp_path / "none")


@pytest.mark.parametrize("seconds", [-1, "1", float("nan"), 1e9, True])
def test_bad_step_seconds_are_refused(seconds):
    data = json.dumps({"version": 1, "hosts": [{}], "step_seconds": seconds}).encode()
    with raises(errors.InvalidArgumentError, "it: step_seconds", "0 to 1000"):
        schedules.parse_profile(data, "it")


@pytest.mark.parametrize("transport", ["tcp", "MPI", 1, [], {}, None, True])
def test_unknown_transports_are_refused(transport):
    data = json.dumps({"version": 1, "hosts": [{}], "transport": transport}).encode()
    with raises(errors.UnknownNameError, "transport of it", "mpi"):
        schedules.parse_profile(data, "it")
