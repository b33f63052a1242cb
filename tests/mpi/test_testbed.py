"""The testbed's hosts with slow links: setup, speed, use by MPI, and cleanup."""

import contextlib
import importlib
import importlib.util
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

import patience
import pytest
import testbed
from golden_errors import raises
from testbed import (
    cases,
    collectives,
    compare,
    launchers,
    mix,
    network,
    results,
    scenario,
    settings,
)
from testbed import plan as plans
from testbed.bed import Testbed

pytestmark = pytest.mark.skipif(bool(network.why_not()), reason=network.why_not() or "-")

LINK = "500mbit"
BYTES = 8 << 20
HELLO = f"""
import socket, sys, time
import numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
block = np.zeros({BYTES}, np.uint8)
comm.Barrier()
start = time.perf_counter()
comm.Send(block, 1) if comm.rank == 0 else comm.Recv(block, 0)
comm.Barrier()
took = time.perf_counter() - start
sys.stdout.write(f"{{comm.rank}} of {{comm.size}} on {{socket.gethostname()}}: {{took}}\\n")
"""


def namespaces(pid):
    """Return the network namespaces of a process's testbeds."""
    folder = pathlib.Path("/var/run/netns")
    found = [each.name for each in folder.iterdir()] if folder.is_dir() else []
    return [each for each in found if (plans.owner_of(each) or (0,))[0] == pid]


def folders(pid):
    """Return the temporary folders of a process's testbeds."""
    return list(pathlib.Path(tempfile.gettempdir()).glob(f"{plans.PREFIX}-{pid}.*"))


def started(*arguments):
    """Start the command line as a process; wait until all ranks of `sleep` run."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "testbed", "--hosts", "2", "--link", LINK]
        + [*arguments, "--", "sleep", "987"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=dict(os.environ, PYTHONPATH=str(pathlib.Path(testbed.__file__).parents[1])),
    )
    assert patience.wait_for(
        lambda: process.poll() is not None or len(sleepers(process.pid)) == 2, 60
    )
    assert process.poll() is None
    return process


def sleepers(pid):
    found = []
    for each in network.processes(namespaces(pid)):
        with contextlib.suppress(OSError):
            if b"sleep\0" + b"987\0" == pathlib.Path(f"/proc/{each}/cmdline").read_bytes():
                found.append(each)
    return found


def alive(pids):
    """Return the processes that still run, without zombies."""
    found = []
    for each in pids:
        with contextlib.suppress(OSError):
            status = pathlib.Path(f"/proc/{each}/stat").read_text()
            if status.rpartition(")")[2].split()[0] not in "ZX":
                found.append(each)
    return found


def links():
    return sorted(os.listdir("/sys/class/net"))


@pytest.fixture(scope="module")
def bed():
    before = links()
    with Testbed(hosts=2, link=LINK) as bed:
        yield bed
        assert links() == before  # all links are in namespaces
        assert len(namespaces(os.getpid())) == 3
    assert not namespaces(os.getpid())
    assert links() == before


@pytest.mark.slow
def test_stream_reaches_the_requested_rate_in_both_directions(bed):
    """In both directions. Other load can only slow a stream down: take the best rate."""
    best = {(0, 1): 0.0, (1, 0): 0.0}
    for _ in range(4):
        rates = bed.measure_goodput()
        best = {pair: max(best[pair], rates[pair]) for pair in rates}
        assert set(best) == {(0, 1), (1, 0)}
        assert max(rates.values()) < 1.15 * bed.plan.shape.goodput
        if min(best.values()) > 0.9 * bed.plan.shape.goodput:
            break
    assert min(best.values()) > 0.85 * bed.plan.shape.goodput


def test_ranks_run_on_separate_hosts_and_use_the_links(bed):
    before = bed.received_bytes()
    done = bed.run(
        [sys.executable, "-c", HELLO], timeout_seconds=patience.seconds(30), capture=True
    )
    assert done.returncode == 0, done.stdout
    said = dict(line.split(": ") for line in sorted(done.stdout.splitlines()) if " on h" in line)
    assert list(said) == ["0 of 2 on h0", "1 of 2 on h1"]
    assert bed.received_bytes() - before > BYTES
    for seconds in map(float, said.values()):
        assert 0.85 * BYTES / bed.plan.shape.goodput < seconds < patience.seconds(0.5)


@pytest.mark.slow
def test_ranks_of_one_host_are_consecutive(bed):
    program = [sys.executable, "-c", HELLO.replace("comm.Recv", "comm.rank == 1 and comm.Recv")]
    done = bed.run(program, ranks_per_host=2, timeout_seconds=patience.seconds(30), capture=True)
    hosts = sorted(line[:12] for line in done.stdout.splitlines() if " on h" in line)
    assert hosts == ["0 of 4 on h0", "1 of 4 on h0", "2 of 4 on h1", "3 of 4 on h1"], done.stdout


@pytest.mark.slow
def test_concurrent_collectives_between_hosts_return_right_values():
    """Many concurrent collectives with long values: some messages arrive before their receive."""
    script = pathlib.Path(__file__).parents[1] / "stress" / "independent_collectives.py"
    program = [sys.executable, "-P", str(script), "--runs", "6", "--wide", "60"]
    with Testbed(hosts=4, link="1gbit") as bed:
        done = bed.run(
            [*program, "--timeout", "100"], timeout_seconds=patience.seconds(120), capture=True
        )
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("6 runs of 64 collectives, 0 wrong values") == 4


@pytest.mark.slow
def test_timelines_show_sending_receiving_and_decoding(bed):
    program = [sys.executable, "-P", collectives.__file__, "jaxccomp"]
    options = ["--bytes", str(BYTES), "--calls", "1", "--codec", "lossless", "--timeline"]
    done = bed.run([*program, *options], timeout_seconds=patience.seconds(60), capture=True)
    assert done.returncode == 0, done.stdout
    for who in ("rank 0: ", "rank 1: ", "all ranks: "):
        picture = done.stdout.partition(who)[2]
        assert "ms per column" in picture.splitlines()[0], done.stdout
    assert "send   |" in picture and "recv   |" in picture and "decode |" in picture


def test_exit_status_is_the_programs(bed):
    program = [sys.executable, "-c", "from mpi4py import MPI; raise SystemExit(7)"]
    done = bed.run(program, timeout_seconds=patience.seconds(30), capture=True)
    assert done.returncode == 7, done.stdout


def test_run_that_exceeds_its_time_limit_is_ended(bed):
    done = bed.run(["sleep", "987"], timeout_seconds=1, capture=True)
    assert done.returncode == 124
    assert not network.processes(namespaces(os.getpid()))


def test_launcher_of_another_mpi_than_the_interpreters_is_refused(bed):
    other = next(each for each in launchers.TABLE if each != launchers.find(None, sys.executable))
    with raises(ValueError, f"--mpi {other}", "--python PATH", golden=False):
        bed.run(["true"], mpi=other)
    with raises(ValueError, "'lam'", "'mpich', 'openmpi'", golden=False):
        bed.run(["true"], mpi="lam")


@pytest.mark.parametrize("number,status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_testbed_leaves_nothing_behind_after_a_signal(number, status):
    process = started()
    pids = network.processes(namespaces(process.pid))
    process.send_signal(number)
    assert process.wait(patience.seconds(20)) == status
    assert not namespaces(process.pid) and not folders(process.pid)
    assert not alive(pids)


def test_next_testbed_removes_namespaces_and_folders_of_a_killed_one():
    process = started()
    pids = network.processes(namespaces(process.pid))
    process.kill()
    process.wait(patience.seconds(20))
    assert namespaces(process.pid) and folders(process.pid)
    with Testbed(hosts=2, link=LINK):
        assert not namespaces(process.pid) and not folders(process.pid)
        assert not alive(pids)


def test_testbed_leaves_nothing_behind_after_a_failed_setup(monkeypatch):
    def fail(plan):
        make(plan)
        raise network.TestbedError("half-way")

    make = network.make
    monkeypatch.setattr(network, "make", fail)
    before = namespaces(os.getpid())  # the module's own testbed
    with raises(network.TestbedError, "half-way", golden=False):
        with Testbed(hosts=3, link=LINK):
            pass
    assert namespaces(os.getpid()) == before


@pytest.mark.slow
def test_comparison_measures_and_prints_all_cases(monkeypatch, tmp_path, capsys):
    """From the table of cases to the table of results, with one setting of the baseline."""
    small = cases.Scenario(
        "small",
        hosts=2,
        link=LINK,
        cases=(
            cases.Case("bcast", "update", "lossless", "chain"),
            cases.Case("allreduce", "float32", "int8", "two_shot"),
        ),
    )
    monkeypatch.setattr(compare, "SCENARIOS", {"fast": small})
    one = {op: (("default", {}),) for op in ("bcast", "allreduce")}
    monkeypatch.setattr(settings, "CANDIDATES", dict.fromkeys(launchers.TABLE, one))
    out = tmp_path / "out.jsonl"
    arguments = ["--scenario", "fast", "--size", "1MiB", "--rounds", "1", "--json", str(out)]
    arguments += ["--calls", "1", "--warmups", "0"]
    assert compare.main(arguments) == 0, capsys.readouterr()
    lines = scenario.read(out)[1:]
    assert capsys.readouterr().out == results.markdown(lines) + "\n"
    ours = {line["op"]: line for line in lines if line["contender"].startswith("jaxccomp")}
    assert ours["bcast"]["check"] == "bit-exact" and "of bound" in ours["allreduce"]["check"]
    assert ours["bcast"]["wire_bytes"] < 1 << 19 and ours["allreduce"]["wire_bytes"] < 1 << 19
    assert all(
        line["of_best_mpi"] and line["of_default_mpi"] and line["of_floor"] for line in lines
    )


@pytest.mark.slow
def test_planner_comparison_measures_the_choice_and_all_candidates(tmp_path, capsys):
    """From the profile to the table; results in the file are not measured again."""
    planner = importlib.import_module("testbed.planner.__main__")
    out = tmp_path / "out.jsonl"
    arguments = ["--hosts", "2", "--ops", "bcast", "--sizes", "1MiB", "--turns", "1"]
    for links in (["100mbit"], ["100mbit", "memory"]):
        assert planner.main([*arguments, "--links", *links, "--json", str(out)]) == 0
        said = capsys.readouterr()
        assert "no time" not in said.err, said
        for link, where in (("100mbit", "between hosts"), ("memory", "in memory")):
            bar = rf"{where}, the chosen plan .* at [01] of 1 points"
            assert bool(re.search(bar, said.out)) == (link in links), said
    lines = scenario.read(out)
    assert [sorted(line)[0] for line in lines] == ["facts", "hosts", "auto", "hosts", "auto"]
    slow, fast = (line for line in lines if "auto" in line)
    assert (slow["link"], fast["link"]) == ("100mbit", "memory")
    # The planner may also have added a plan with another chunk size.
    plans = [plan for plan in slow["plans"] if ":" not in plan["algorithm"]]
    names = {(plan["algorithm"], plan["codec"]) for plan in plans}
    assert len(names) == len(plans) == 8 and ("binomial", "raw") in names
    assert len(slow["plans"]) - len(plans) in (0, 1)
    # On such a link the bytes determine the time, even with other load on the machine.
    assert slow["auto"]["codec"] == "lossless" and slow["auto"]["seconds"] > 0.05


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("sklearn"), reason="needs the extra 'demo'")
def test_mix_compares_auto_with_single_transports(tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    contenders = ["auto", "engine over MPI", "xla over gloo"]
    arguments = ["--hosts", "2", "--programs", "dlrm", "--rounds", "1", "--epochs", "2"]
    assert mix.main([*arguments, "--contenders", *contenders, "--json", str(out)]) == 0
    lines = scenario.read(out)[1:]
    assert capsys.readouterr().out == mix.table(lines) + "\n"
    assert [line["contender"] for line in lines] == contenders
    auto, alone, left_out = lines
    assert auto["loss"] == pytest.approx(alone["loss"], rel=0.05)  # a different order of summation
    assert auto["seconds"] > 0 and alone["received_bytes_per_step"] > 1 << 20
    assert "needs axes" in left_out["left_out"]
