"""`python -m jaxccomp run --hosts --transport ucx`, with a stand-in for ssh and a real sshd."""

import getpass
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import patience
import pytest
from golden_errors import check_text
from ucx import processes

from jaxccomp.launch import ssh

STAND_IN = str(pathlib.Path(__file__).with_name("stand_in_ssh.py"))
# A script that prints its environment; it needs no JAX.
TELLS = """
import contextlib, json, os, sys
listed = ""  # all command lines of this machine
for pid in filter(str.isdigit, os.listdir("/proc")):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline") as file:
        listed += file.read()
assert "stand_in_ssh" in listed
names = "RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"
print(json.dumps({
    "ranks": [int(os.environ["JAXCCOMP_" + name]) for name in names],
    "host": os.environ["STAND_IN_HOST"], "folder": os.getcwd(), "arguments": sys.argv[1:],
    "given": os.environ.get("GIVEN"), "own": os.environ.get("OWN"),
    "other": os.environ.get("OTHER"), "coordinator": os.environ["JAXCCOMP_COORDINATOR"],
    "secret_shown": os.environ["JAXCCOMP_SECRET"] in listed, "join": os.environ["JAXCCOMP_JOIN"],
}))
"""
WAITS = """
import os, pathlib, sys, time
rank = os.environ["JAXCCOMP_RANK"]
pathlib.Path(sys.argv[1], rank).write_text(str(os.getpid()))
while len(os.listdir(sys.argv[1])) < int(os.environ["JAXCCOMP_SIZE"]):
    time.sleep(0.02)
if sys.argv[2:] == [rank]:
    sys.exit(7)
print("waits", flush=True)
time.sleep(300)
"""
SUMS = """
import jax.numpy as jnp, jaxccomp as jcc
world = jcc.init()
print(world.size, float(jcc.allreduce(jnp.float32(world.rank + 1))), jcc.config.get("coordinator"))
"""


def gone(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


class Launcher:
    """Runs scripts in a folder; `log` has the command lines of ssh."""

    def __init__(self, folder, ssh_command):
        self.folder, self.log, self.pids = folder, folder / "ssh.log", folder / "pids"
        self.pids.mkdir()
        program = folder / "bin" / "ssh"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {ssh_command} "$@"\n')
        program.chmod(0o755)
        self.env = os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}"}

    def start(self, script, hosts, ranks, *options, arguments=(), **env):
        (self.folder / "script.py").write_text(script)
        command = [sys.executable, "-P", "-m", "jaxccomp", "run", "-n", str(ranks)]
        command += ["--hosts", hosts, "--transport", "ucx", *options]
        return subprocess.Popen(
            [*command, "script.py", *map(str, arguments)],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.env | env,
            # Shells let background jobs ignore SIGINT, and children inherit it.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def run(self, *arguments, **keywords):
        process = self.start(*arguments, **keywords)
        out, err = process.communicate(timeout=patience.seconds(100))
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def start_waiting(self, hosts, ranks):
        process = self.start(WAITS, hosts, ranks, arguments=[self.pids])
        waiting = 0
        for line in process.stdout:
            waiting += line.endswith("waits\n")
            if waiting == ranks:
                return process
        raise AssertionError(process.communicate()[1])

    def all_gone(self, ranks, seconds=20):
        """Check that ``ranks`` processes have run; return whether all end in time."""
        pids = [int(path.read_text()) for path in self.pids.iterdir()]
        assert len(pids) == ranks
        patience.wait_for(lambda: all(map(gone, pids)), seconds)
        left = [pid for pid in pids if not gone(pid)]
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        return not left


@pytest.fixture
def launcher(tmp_path):
    log = tmp_path / "ssh.log"
    return Launcher(tmp_path, f"{sys.executable} -IS {STAND_IN} {log}")


def test_run_starts_ranks_on_two_hosts_with_their_environment(launcher):
    options = ("--env", "GIVEN=of 'them all'", "--env", "OWN")
    done = launcher.run(
        TELLS, "a:2,b", 3, *options, arguments=["x y"], OWN="mine", OTHER="stays here"
    )
    assert done.returncode == 0, done.stderr
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines() if line[0] == "[")
    found = {rank: json.loads(text) for rank, text in lines.items()}
    assert {rank: (each["host"], each["ranks"]) for rank, each in found.items()} == {
        "[0]": ("a", [0, 3, 0, 2]),
        "[1]": ("a", [1, 3, 1, 2]),
        "[2]": ("b", [2, 3, 0, 1]),
    }
    assert "Welcome to a" in done.stdout  # a remote shell's own output is harmless
    for each in found.values():
        assert each["folder"] == str(launcher.folder)
        assert each["arguments"] == ["x y"]
        assert (each["given"], each["own"], each["other"]) == ("of 'them all'", "mine", None)
        assert each["coordinator"] == found["[0]"]["coordinator"]
        assert each["coordinator"].startswith("127.0.0.1:")
        assert each["join"] == "" and each["secret_shown"] is False
    for arguments in map(json.loads, launcher.log.read_text().splitlines()):
        assert arguments[:4] == ["-T", "-o", "BatchMode=yes", "--"]
        assert "SECRET" not in " ".join(arguments)


def test_ranks_on_two_hosts_exchange_values(launcher):
    done = launcher.run(SUMS, "a,b", 2)
    assert done.returncode == 0, done.stderr
    found = [line.split(" ")[1:3] for line in done.stdout.splitlines() if line[0] == "["]
    assert found == [["2", "3.0"]] * 2


def test_first_failure_ends_ranks_on_all_hosts(launcher):
    done = launcher.run(WAITS, "a,b", 2, arguments=[launcher.pids, 1])
    assert done.returncode == 7
    assert "rank 1 " in done.stderr and "exit status 7" in done.stderr
    assert launcher.all_gone(2)


@pytest.mark.parametrize(
    ("host", "status", "facts"),
    [
        (
            "down",
            255,
            ("host down", "ssh: connect to host down port 22: Connection"),
        ),
        pytest.param("empty", 1, ("host empty", sys.executable), marks=pytest.mark.slow),
        pytest.param(
            "bare",
            127,
            ("host bare", sys.executable, "/no/such/python"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_unusable_host_is_named(launcher, host, status, facts):
    done = launcher.run(WAITS, f"a,{host}", 2, arguments=[launcher.pids])
    assert done.returncode == status
    (told,) = [line for line in done.stderr.splitlines() if line.startswith("jaxccomp run: ")]
    check_text(told, facts, golden=False)
    assert list(launcher.pids.iterdir()) == []  # no rank has started


def run_ssh(launcher, change, ranks, hosts):
    """Run ssh.main, the counterpart of mpiexec, in a process after the statement ``change``."""
    program = f"import os, sys; from jaxccomp.launch import ssh; {change}; "
    program += "sys.exit(ssh.main(*sys.argv[1:]))"
    return subprocess.run(
        [sys.executable, "-c", program, ranks, hosts, "", "MARK=1", sys.executable],
        capture_output=True,
        text=True,
        timeout=patience.seconds(30),
        env=launcher.env,
    )


def test_silent_host_is_named(launcher):
    seconds = patience.seconds(1)  # enough for the other host
    done = run_ssh(launcher, f"ssh._ANSWER_SECONDS = {seconds}", "2", "a:1,silent:1")
    assert done.returncode == 1
    assert "host silent" in done.stderr and f"{seconds:g} s" in done.stderr


@pytest.mark.slow
def test_missing_working_folder_on_a_host_is_reported(launcher):
    done = run_ssh(launcher, "os.getcwd = lambda: '/no/such/folder'", "1", "a:1")
    assert done.returncode == 1
    assert "host a: " in done.stderr
    assert "/no/such/folder" in done.stderr


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGKILL]
)
def test_ranks_on_hosts_end_with_the_launcher(launcher, number):
    process = launcher.start_waiting("a:1,b:2", 3)
    process.send_signal(number)
    process.communicate(timeout=patience.seconds(60))
    if number == signal.SIGKILL:
        assert process.returncode == -number
    else:
        assert process.returncode == 128 + number
    assert launcher.all_gone(3)


def test_ranks_end_when_their_ssh_connection_closes(launcher):
    """Ranks also end without a message from the launcher."""
    process = launcher.start_waiting("a:1,b:2", 3)
    children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    process.send_signal(signal.SIGSTOP)  # otherwise it would kill its ranks on this machine
    for pid in map(int, children.split()):
        os.kill(pid, signal.SIGKILL)
    ended = launcher.all_gone(3)
    process.kill()
    process.communicate(timeout=patience.seconds(60))
    assert ended


@pytest.mark.slow
def test_host_names_are_not_passed_to_ssh_as_options(launcher):
    done = launcher.run(TELLS, "-oProxyCommand=touch bad:1", 1)
    assert not (launcher.folder / "bad").exists()
    assert json.loads(launcher.log.read_text())[3:5] == ["--", "-oProxyCommand=touch bad"]
    assert done.returncode == 0


@pytest.mark.slow
def test_missing_ssh_exits_with_status_2(launcher):
    done = launcher.run(TELLS, "a", 1, PATH="/nowhere")
    assert done.returncode == 2
    assert "ssh" in done.stderr and "PATH" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("given", "fact"), [("NOT_SET", "NOT_SET"), ("=1", "NAME=VALUE")])
def test_invalid_environment_variables_are_named(launcher, given, fact):
    done = launcher.run(TELLS, "a", 1, "--env", given)
    assert done.returncode == 2
    assert fact in done.stderr


@pytest.mark.parametrize(
    ("ranks", "slots", "counts"),
    [
        (3, ["a:2", "b:2"], {"a": 2, "b": 1}),
        (2, ["a:2", "b:2"], {"a": 2}),
        (4, ["a:1", "me@b:2", "a:1"], {"a": 2, "me@b": 2}),
    ],
)
def test_ranks_are_divided_over_hosts(ranks, slots, counts):
    assert ssh.divided(ranks, slots) == counts


@pytest.mark.parametrize(
    ("ends", "found"),
    [
        ([("10.0.0.1", "10.0.0.9"), ("10.0.0.2", "10.0.0.9")], "10.0.0.1:5"),
        # The first host is the launcher's; others reach it at its network address.
        ([("127.0.0.1", "127.0.0.1"), ("10.0.0.2", "10.0.0.9")], "10.0.0.9:5"),
        ([("::1", "::1"), ("::1", "::1")], "[::1]:5"),
        ([("fd00::1", "fd00::9")], "[fd00::1]:5"),
        ([("", "")], "first:5"),
    ],
)
def test_coordinator_uses_a_reachable_address_of_the_first_host(ends, found):
    answers = [{"server": server, "client": client, "port": 5} for server, client in ends]
    assert ssh.coordinator("me@first", answers) == found


def test_run_uses_a_real_sshd(tmp_path):
    """Two names of this machine, each with its own connection."""
    sshd, client = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin"), shutil.which("ssh")
    if sshd is None or client is None:
        pytest.skip("there is no sshd, or no ssh")
    if os.geteuid() == 0 and not pathlib.Path("/run/sshd").is_dir():
        pytest.skip("sshd started by root needs the folder /run/sshd")
    for name in ("host_key", "user_key"):
        key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)]
        subprocess.run(key, check=True, timeout=patience.seconds(20))
    port = processes.free_port()
    config = {
        "Port": port,
        "ListenAddress": "127.0.0.1",
        "HostKey": tmp_path / "host_key",
        "AuthorizedKeysFile": tmp_path / "user_key.pub",
        "PidFile": "none",
        "StrictModes": "no",
        "UsePAM": "no",
        "PasswordAuthentication": "no",
        "PermitRootLogin": "prohibit-password",
    }
    (tmp_path / "sshd_config").write_text("".join(f"{k} {v}\n" for k, v in config.items()))
    config = {
        "HostName": "127.0.0.1",
        "Port": port,
        "User": getpass.getuser(),
        "IdentityFile": tmp_path / "user_key",
        "IdentitiesOnly": "yes",
        "StrictHostKeyChecking": "no",
        "UserKnownHostsFile": tmp_path / "known_hosts",
        "LogLevel": "ERROR",
    }
    (tmp_path / "config").write_text("".join(f"{k} {v}\n" for k, v in config.items()))
    log = tmp_path / "sshd.log"
    server = subprocess.Popen([sshd, "-D", "-f", tmp_path / "sshd_config", "-E", log])
    try:
        launcher = Launcher(tmp_path, f"{client} -F {tmp_path / 'config'}")
        listens = lambda: log.exists() and "listening" in log.read_text()  # noqa: E731
        assert patience.wait_for(lambda: listens() or server.poll() is not None, 20)
        if not listens():
            pytest.skip(f"this sshd does not start here: {log.read_text()}")
        done = launcher.run(SUMS, "one,two", 2)
        assert done.returncode == 0, done.stderr + log.read_text()
        found = [line.split(" ")[1:3] for line in done.stdout.splitlines() if line[0] == "["]
        assert found == [["2", "3.0"]] * 2
        process = launcher.start_waiting("one,two", 2)
        process.kill()
        process.communicate(timeout=patience.seconds(30))
        assert launcher.all_gone(2)
    finally:
        server.terminate()
        server.wait()
