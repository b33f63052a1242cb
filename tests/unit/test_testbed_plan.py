"""The parts of the testbed without side effects: rates, names, addresses, command lines."""

import argparse
import ipaddress
import pathlib

import pytest
from golden_errors import check_text, raises
from testbed import __main__ as command_line
from testbed import (
    collectives,
    launchers,
    network,
    scenario,
    settings,
    workers,
)
from testbed import plan as plans
from testbed.training import report

from jaxccomp import errors
from jaxccomp.bench import launch

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.parametrize(
    "text,rate",
    [("1gbit", 10**9), ("0.1gbit", 10**8), ("100mbit", 10**8), ("2.5Gbit", 25 * 10**8)],
)
def test_parse_rate_and_format_rate_are_inverse(text, rate):
    assert plans.parse_rate(text) == rate
    assert plans.parse_rate(plans.format_rate(rate)) == rate


@pytest.mark.parametrize("text", ["", "1", "1gb", "gbit", "-1gbit", "99mbit", "5.1gbit", "1e3mbit"])
def test_invalid_rates_raise_errors_that_name_the_range(text):
    with raises(errors.InvalidArgumentError, "500mbit", "100mbit to 5gbit"):
        plans.parse_rate(text)


@pytest.mark.parametrize("hosts", [2, 8])
def test_every_host_has_a_unique_name_and_address(hosts):
    plan = plans.make(hosts, "1gbit", plans.owner_name(12, 345))
    everyone = (*plan.hosts, plan.switch)
    assert [each.name for each in plan.hosts] == [f"h{i}" for i in range(hosts)]
    for values in zip(*((e.name, e.namespace, e.address) for e in everyone), strict=True):
        assert len(set(values)) == hosts + 1
    for each in everyone:
        assert ipaddress.ip_address(each.address) in ipaddress.ip_network(plan.network)
        assert f"{each.address} {each.name}\n" in plan.hosts_file
        assert plans.owner_of(each.namespace) == (12, 345)


@pytest.mark.parametrize("hosts", [-1, 0, 1, 9])
def test_invalid_host_counts_raise_errors_that_name_the_range(hosts):
    with raises(errors.InvalidArgumentError, "2 to 8 hosts"):
        plans.make(hosts, "1gbit", "1.1.0")


@pytest.mark.parametrize("name", ["", "h0", "jaxccomp-h0", "jaxccomp-1.2-h0", "xjaxccomp-1.2.0-h0"])
def test_namespaces_of_other_programs_are_not_claimed(name):
    assert plans.owner_of(name) is None


def test_two_testbeds_have_different_namespaces():
    mine, other = (plans.make(2, "1gbit", plans.owner_name(pid, 1)) for pid in (1, 11))
    assert not {e.namespace for e in mine.hosts} & {e.namespace for e in other.hosts}


@pytest.mark.parametrize("text", ["100mbit", "1gbit", "5gbit"])
def test_burst_holds_a_packet_and_is_below_the_queue_limit(text):
    shape = plans.Shape(plans.parse_rate(text))
    assert 1514 < shape.packet < shape.burst < shape.limit
    assert 0.94 < shape.goodput * 8 / shape.rate < 0.96


@pytest.mark.parametrize("name", launchers.TABLE)
def test_command_starts_ranks_on_all_hosts_through_the_agent(name, monkeypatch, tmp_path):
    monkeypatch.setattr(launch, "mpiexec", lambda python: "/bin/mpiexec")
    plan = plans.make(3, "1gbit", "1.2.0")
    agent = launchers.write_agent(plan, tmp_path)
    made = launchers.command(name, plan, agent, ["a", "b c"], python="p", ranks_per_host=2)
    assert made[0] == "/bin/mpiexec" and made[-4:] == ["-n", "6", "a", "b c"]
    assert str(agent) in made
    assert ("h0,h1,h2" in made) or ("h0:2,h1:2,h2:2" in made)
    assert "jaxccomp-1.2.0-$host" in agent.read_text()
    assert set(settings.CANDIDATES[name]) == set(collectives.OPERATIONS)


def test_unsupported_mpi_launchers_are_refused(monkeypatch):
    monkeypatch.setattr(launch, "vendor", lambda python: ("Microsoft MPI", "10"))
    monkeypatch.setattr(launch, "mpiexec", lambda python: "mpiexec")
    with raises(errors.InvalidArgumentError, "Microsoft MPI", "'MPICH', 'Open MPI'"):
        launchers.find(None, "python")


def test_missing_tools_and_rights_are_named(monkeypatch):
    monkeypatch.setattr(network.shutil, "which", lambda tool: None if tool == "tc" else tool)
    check_text(network.why_not(), "tc", "PATH", "iproute2")
    monkeypatch.setattr(network.shutil, "which", lambda tool: tool)
    monkeypatch.setattr(network.os, "geteuid", lambda: 1000)
    check_text(network.why_not(), "root")


@pytest.mark.parametrize(
    "arguments,said",
    [
        (["--hosts", "1", "--", "true"], "2 to 8 hosts"),
        (["--link", "9gbit", "--", "true"], "from 100mbit to 5gbit"),
        (["--hosts", "2"], "give a command"),
    ],
)
def test_invalid_arguments_exit_with_status_2(arguments, said, capsys, monkeypatch):
    monkeypatch.setattr(command_line, "exit_on_signals", lambda: None)
    assert command_line.main(arguments) == 2
    assert said in capsys.readouterr().err


def test_testbed_page_lists_the_launcher_variables():
    page = (ROOT / "docs/testbed.md").read_text(encoding="utf-8")
    for row in launchers.TABLE.values():
        for name, value in (row.environment | row.alone).items():
            assert f"`{name}={value}`" in page


def test_training_table_compares_losses_with_the_uncompressed_run():
    place = {"task": "mlp", "hosts": 4, "link": "1gbit", "worker": "jaxccomp"}
    took = {"seconds": 0.5, "coding_seconds": 0, "processor_seconds": 0, "identical": True}
    took |= {"received_bytes_per_step": 0}
    lines = [
        place | took | {"way": "raw", "codec": "raw", "losses": [1.0, 3.0]},
        place | took | {"way": "none", "codec": "int8"},
        place | {"way": "a|b", "codec": "int4", "losses": [2.0, 2.1]},
    ]
    rows = report.table(lines).splitlines()[-3:]
    assert [row.count(" |") for row in rows] == [8, 8, 8]
    assert rows[0].endswith("| 2.0000 |") and rows[1].endswith("|  |")
    assert rows[2].startswith("| a\\|b |  |") and rows[2].endswith("| 2.0500 (+2.5 %) |")


@pytest.mark.parametrize(
    ("happens", "status"),
    [
        ([{"way": 1}], 0),
        ([{"way": 1}, {"error": "x"}], 1),
        (workers.FailedError("told"), 1),
        (errors.InvalidArgumentError("told"), 2),
        (OSError("told"), 2),
        (KeyboardInterrupt(), 130),
    ],
)
def test_scenario_exit_status_follows_the_outcome(happens, status, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command_line, "exit_on_signals", lambda: None)

    def measure(given):
        if isinstance(happens, BaseException):
            raise happens
        return happens

    out = tmp_path / "out.jsonl"
    parser = argparse.ArgumentParser(prog="python -m it")
    assert scenario.run(parser, measure, arguments=["--json", str(out)]) == status
    if isinstance(happens, list):
        first, *rows = scenario.read(out)
        assert first["facts"]["jax"] and rows == happens
    else:
        assert not out.exists()
        said = "" if status == 130 else "python -m it: told\n"
        assert capsys.readouterr().err == said


def test_scenario_measures_as_a_rank_and_prints_with_table(tmp_path, capsys, monkeypatch):
    """As a rank it measures, with ``--table`` it only prints; invalid files are rejected."""
    monkeypatch.setattr(command_line, "exit_on_signals", lambda: None)
    worked, file = [], tmp_path / "file"
    file.write_text('{"way": 1}\n\n{"way": 2}\n')

    def run(*arguments):
        parser = argparse.ArgumentParser(prog="python -m it")
        parser.add_argument("--way")
        how = {"table": lambda lines: f"{lines}\n", "worker": "way", "work": worked.append}
        return scenario.run(parser, pytest.fail, **how, arguments=arguments)

    assert run("--way", "") == 0 and [each.way for each in worked] == [""]
    assert run("--table", str(file)) == 0
    assert capsys.readouterr().out == "[{'way': 1}, {'way': 2}]\n"
    file.write_text("way 1")
    assert run("--table", str(file)) == 2
    assert f"line 1 of {str(file)!r} is not JSON" in capsys.readouterr().err
