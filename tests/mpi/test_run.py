"""`python -m jaxccomp run` and `tune` with real ranks; scripts emulate GPUs and MPS.

Most tests are fast because their program does not import JAX.
"""

import contextlib
import importlib.util
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time

import patience
import pytest

from jaxccomp.launch import gpus, leftovers, mpiexec, mps, signals

ROOT = pathlib.Path(__file__).parents[2]
STEP_SECONDS = 60

SMI = """#!/bin/sh
echo 'GPU-aaaa, 00000000:3B:00.0'
echo 'GPU-bbbb, 00000000:AF:00.0'
"""
# Keeps a process alive like the real MPS control program, and logs its requests.
MPS = """#!/bin/sh
pid="$CUDA_MPS_PIPE_DIRECTORY/pid"
if [ "$1" = -d ]; then
  echo "start $CUDA_VISIBLE_DEVICES" >> "$FAKE_MPS"
  [ -n "$FAKE_MPS_BROKEN" ] && echo 'an instance of this daemon cannot run' && exit 1
  setsid sh -c 'sleep 0.2; echo $$ > "$0"; exec sleep 987' "$pid" > /dev/null 2>&1 &
  exit 0
fi
read asked
echo "$asked" >> "$FAKE_MPS"
[ -e "$pid" ] && kill -0 "$(cat "$pid")" || exit 1
[ "$asked" = quit ] && [ -z "$FAKE_MPS_STUBBORN" ] && kill -9 "$(cat "$pid")"
exit 0
"""
# Prints its environment, then acts according to its argument.
PROGRAM = """
import json, os, subprocess, sys, time
given = ("CUDA_VISIBLE_DEVICES", "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION",
         "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PIPE_DIRECTORY", "OMP_NUM_THREADS")
mine = {name: os.environ[name] for name in given if name in os.environ}
mine["cores"] = sorted(os.sched_getaffinity(0))
mine["imported"] = [name for name in sys.modules if name.partition(".")[0] in ("jax", "jaxccomp")]
mine["argv"], mine["path"], mine["name"] = sys.argv, sys.path[0], __name__
from mpi4py import MPI
mine["rank"], mine["size"] = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
print(json.dumps(mine))
what = sys.argv[1] if len(sys.argv) > 1 else ""
MPI.COMM_WORLD.Barrier()
while what == "chat":
    print("and so on")
if what == "leave":
    subprocess.Popen(["sleep", "986"], start_new_session=True)
if what == "sleep" or what and mine["rank"] == 0:
    try:
        print("asleep")
        time.sleep(986)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        raise
if mine["rank"] == 1:
    # Only the line's end may be missing when a rank fails.
    print("about to " + what, file=sys.stderr, end="" if what == "exit" else None, flush=True)
    if what == "raise":
        raise ValueError("told by rank 1")
    if what == "exit":
        sys.exit(3)
    if what == "kill":
        os.kill(os.getpid(), 9)
    if what == "abort":
        MPI.COMM_WORLD.Abort(5)
    if what:
        time.sleep(986)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "bin").mkdir()
    yield tmp_path
    assert not left(tmp_path)


@pytest.fixture
def gpu_machine(folder):
    """Return the variables of a machine with two GPUs and MPS."""
    for name, text in (("nvidia-smi", SMI), ("nvidia-cuda-mps-control", MPS)):
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    return {
        "PATH": f"{folder}/bin:{os.environ['PATH']}",
        "FAKE_MPS": str(folder / "asked"),
        "CUDA_MPS_PIPE_DIRECTORY": str(folder / "nobody"),
        "TMPDIR": str(folder),
    }


def left(folder):
    """Return a test's remaining processes, found by its variable."""
    return leftovers.marked(f"JAXCCOMP_TEST_RUN={folder}")


def environment(folder, extra):
    cleared = {"CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"}
    env = {name: value for name, value in os.environ.items() if name not in cleared}
    return env | {"JAXCCOMP_TEST_RUN": str(folder), "JAX_PLATFORMS": "cpu"} | (extra or {})


def start(folder, *arguments, env=None, ignored=None):
    """Start the command line; ``ignored``: a signal to ignore, as with nohup."""

    def prepare():
        for number in signals.ENDING:  # as in a terminal, however the tests are run
            signal.signal(number, signal.SIG_IGN if number == ignored else signal.SIG_DFL)

    return subprocess.Popen(
        [sys.executable, "-P", "-m", "jaxccomp", *map(str, arguments)],
        env=environment(folder, env),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=prepare,
    )


def run(folder, *arguments, env=None, timeout=STEP_SECONDS):
    process = start(folder, *arguments, env=env)
    try:
        out, err = process.communicate(timeout=patience.seconds(timeout))
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, out, err


def said(output):
    """Return the ranks' printed environments, by rank."""
    rows = [json.loads(row) for row in re.findall(r"^\[\d+\] (\{.*\})$", output, re.MULTILINE)]
    return {row["rank"]: row for row in rows}


def test_run_starts_the_program_in_all_ranks(folder):
    status, out, err = run(folder, "run", "-n", 3, "--log-dir", "logs/new", "program.py", "", "--n")
    assert status == 0, err
    rows = said(out)
    assert sorted(rows) == [0, 1, 2]
    for rank, row in rows.items():
        assert row["size"] == 3 and row["name"] == "__main__" and row["imported"] == []
        assert row["argv"] == ["program.py", "", "--n"] and row["path"] == str(folder)
        assert "CUDA_VISIBLE_DEVICES" not in row and "XLA_CLIENT_MEM_FRACTION" not in row
        assert row["OMP_NUM_THREADS"] == str(len(row["cores"]))
        lines = (folder / f"logs/new/rank-{rank}.txt").read_text().splitlines()
        # Lines of stderr may precede it.
        assert [json.loads(line) for line in lines if line.startswith("{")] == [row]
    cores = os.sched_getaffinity(0)
    if len(cores) >= 3:
        assert sorted(cpu for row in rows.values() for cpu in row["cores"]) == sorted(cores)


LIVE = """
import jax.numpy as jnp, jaxccomp as jcc, time
comm = jcc.init()
if comm.rank:
    time.sleep(2)  # the other rank waits, for longer than a report takes
total = jcc.allreduce(jnp.ones(1 << 20, jnp.float32), codec="int8").block_until_ready()
print("total", float(total[0]))
"""


def test_live_view_shows_what_each_rank_sends_saves_and_waits_for(folder):
    (folder / "program.py").write_text(LIVE)
    status, out, err = run(folder, "run", "-n", 2, "--live", "--log-dir", "logs", "program.py")
    assert status == 0, err
    assert sorted(line[:9] for line in out.splitlines()) == ["[0] total", "[1] total"]
    title, heads, *rows = err.split(" ranks: sent ")[-1].splitlines()
    assert re.search(r"saved [\d.]+ MiB \((3\.\d|4\.0)x\)$", title), err
    assert [row.split()[0] for row in rows] == ["0", "1"]
    columns = heads.split()
    assert all(row.split()[columns.index("calls")] != "0" for row in rows)
    # Control messages are neither output nor in logs.
    assert "\x1e" not in out + err + (folder / "logs/rank-0.txt").read_text()


def test_live_view_without_ranks_to_start_raises(folder):
    status, _, err = run(folder, "run", "--xla", "--live", "program.py")
    assert status == 2 and "give -n" in err


@pytest.mark.parametrize("name,file", [("tools.train", "train.py"), ("tools", "__main__.py")])
def test_run_starts_a_module(name, file, folder):
    (folder / "tools").mkdir()
    (folder / "tools" / "other.py").write_text("value = 5\n")
    code = PROGRAM + "from .other import value\nprint(__spec__.name, __package__, value)\n"
    (folder / "tools" / file).write_text(code)
    status, out, err = run(folder, "run", "-n", 2, "-m", name, "", "--n", "-m")
    assert status == 0, err
    row = said(out)[1]
    assert row["argv"] == [str(folder / "tools" / file), "", "--n", "-m"]
    assert row["path"] == str(folder) and row["name"] == "__main__"
    assert f"[1] tools.{file[:-3]} tools 5\n" in out


@pytest.mark.parametrize(
    "name,text",
    [
        ("nowhere.train", "module 'nowhere.train' is not found"),
        ("package", "module 'package' is a package without __main__.py"),
        ("package.fails", "No module named 'nothing_like_it'"),
    ],
)
def test_module_that_cannot_run_is_reported(name, text, folder):
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").write_text("")
    (folder / "package" / "fails.py").write_text("import nothing_like_it\n")
    status, out, err = run(folder, "run", "-n", 1, "-m", name)
    assert status == 1 and text in err, err
    assert "launch/program.py" not in err


# Fails in the attempts before the one that its argument names.
TRIES = """
import os, pathlib, sys
from mpi4py import MPI
rank = MPI.COMM_WORLD.Get_rank()
MPI.COMM_WORLD.Barrier()
attempts = pathlib.Path("attempts")
if rank == 1:
    with attempts.open("a") as file:
        file.write("x")
    if len(attempts.read_text()) < int(sys.argv[1]):
        sys.exit(7)
MPI.COMM_WORLD.Barrier()
print("argument", sys.argv[1])
"""


@pytest.mark.parametrize("succeeds_at,status", [(2, 0), (9, 7)])
def test_run_restarts_failed_jobs_up_to_the_limit(succeeds_at, status, folder):
    (folder / "tries.py").write_text(TRIES)
    options = ["-n", 2, "--max-restarts", 1, "--log-dir", "logs"]
    code, out, err = run(folder, "run", *options, "tries.py", succeeds_at)
    assert code == status, err
    assert (folder / "attempts").read_text() == "xx"
    again = "rank 1 ended with exit status 7 in attempt 1: all 2 ranks are started again, attempt 2"
    assert err.count(again) == 1 and err.count("started again") == 1, err
    log = (folder / "logs" / "rank-0.txt").read_text()
    assert log.count(f"argument {succeeds_at}") == out.count("[0] argument 2") == (status == 0)


def test_run_does_not_restart_after_deadlines_and_signals(folder):
    (folder / "sleeps.py").write_text("import time\ntime.sleep(986)\n")
    options = ["-n", 1, "--max-restarts", 3, "--timeout", 1]
    code, _, err = run(folder, "run", *options, "sleeps.py")
    assert code == 124 and "started again" not in err


def test_bind_cores_none_leaves_ranks_unbound(folder):
    status, out, err = run(folder, "run", "-n", 2, "--bind-cores", "none", "program.py")
    assert status == 0, err
    for row in said(out).values():
        assert row["cores"] == sorted(os.sched_getaffinity(0)) and "OMP_NUM_THREADS" not in row


def test_mps_ranks_share_gpus_and_memory(folder, gpu_machine):
    options = ["-n", 4, "--ranks-per-gpu", 2, "--mps", "--thread-percentage", 50]
    old_name = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.4"}
    status, out, err = run(folder, "run", *options, "program.py", env=gpu_machine | old_name)
    assert status == 0, err
    rows = said(out)
    assert [rows[rank]["CUDA_VISIBLE_DEVICES"] for rank in range(4)] == [
        *("GPU-aaaa", "GPU-aaaa", "GPU-bbbb", "GPU-bbbb")
    ]
    for row in rows.values():
        assert row["XLA_CLIENT_MEM_FRACTION"] == "0.4"
        assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in row  # JAX refuses to have both
        assert row["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
        pipes = pathlib.Path(row["CUDA_MPS_PIPE_DIRECTORY"])
        assert pipes.parent.name.startswith("jaxccomp-mps-") and not pipes.parent.exists()
    asked = (folder / "asked").read_text().splitlines()
    assert asked[0] == "start GPU-aaaa,GPU-bbbb" and asked[-1] == "quit"
    assert "MPS: started" in err


@pytest.mark.slow
def test_gpu_numbers_under_mps_are_relative_to_the_daemons(folder, gpu_machine):
    env = gpu_machine | {"CUDA_VISIBLE_DEVICES": "1"}
    status, out, err = run(folder, "run", "-n", 2, "--mps", "program.py", env=env)
    assert status == 0, err
    assert {row["CUDA_VISIBLE_DEVICES"] for row in said(out).values()} == {"0"}
    assert (folder / "asked").read_text().startswith("start 1\n")
    status, out, _ = run(folder, "run", "-n", 2, "program.py", env=env)
    assert {row["CUDA_VISIBLE_DEVICES"] for row in said(out).values()} == {"1"}


@pytest.mark.slow
def test_each_host_assigns_its_own_gpus(folder, gpu_machine):
    options = ["--hosts", "localhost", "-n", 2, "--ranks-per-gpu"]
    status, out, err = run(folder, "run", *options, 1, "program.py", env=gpu_machine)
    assert status == 0, err
    given = {rank: row["CUDA_VISIBLE_DEVICES"] for rank, row in said(out).items()}
    assert given == {0: "GPU-aaaa", 1: "GPU-bbbb"}
    none = gpu_machine | {"CUDA_VISIBLE_DEVICES": ""}
    status, out, err = run(folder, "run", *options, 1, "program.py", env=none)
    assert status == 2 and not said(out)
    assert "GPU" in err and "--ranks-per-gpu" in err


@contextlib.contextmanager
def daemon(folder, env):
    """A daemon that is already running."""
    os.mkdir(env["CUDA_MPS_PIPE_DIRECTORY"])
    control = folder / "bin/nvidia-cuda-mps-control"
    subprocess.run([control, "-d"], env=environment(folder, env), check=True)
    file = pathlib.Path(env["CUDA_MPS_PIPE_DIRECTORY"], "pid")
    assert leftovers.wait(lambda: file.exists() and file.read_text().strip(), patience.seconds(10))
    pid = int(file.read_text())
    try:
        yield
        os.kill(pid, 0)  # still there
    finally:
        os.kill(pid, signal.SIGKILL)
        assert leftovers.wait(lambda: not left(folder), patience.seconds(10))


@pytest.mark.slow
def test_running_mps_daemon_is_used_and_not_stopped(folder, gpu_machine):
    assert mps.state(gpu_machine) == "can be used; no daemon runs"
    with daemon(folder, gpu_machine):
        assert mps.state(gpu_machine).startswith("a daemon runs, pipes in ")
        (folder / "asked").write_text("")
        status, out, err = run(folder, "run", "-n", 2, "--mps", "program.py", env=gpu_machine)
        assert status == 0, err
        assert set((folder / "asked").read_text().split()) == {"get_server_list"}
        assert "left alone" in err
        pipes = {row["CUDA_MPS_PIPE_DIRECTORY"] for row in said(out).values()}
        assert pipes == {gpu_machine["CUDA_MPS_PIPE_DIRECTORY"]}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["raise", "SIGTERM", "SIGINT", "stubborn"])
def test_mps_daemon_is_stopped_however_the_job_ends(how, folder, gpu_machine):
    env = gpu_machine | ({"FAKE_MPS_STUBBORN": "1"} if how == "stubborn" else {})
    what = {"raise": "raise", "stubborn": ""}.get(how, "sleep")
    process = start(folder, "run", "-n", 2, "--mps", "program.py", what, env=env)
    if how.startswith("SIG"):
        asleep(process, 2)
        process.send_signal(getattr(signal, how))
    _, err = process.communicate(timeout=patience.seconds(STEP_SECONDS))
    wanted = {"raise": 1, "stubborn": 0, "SIGTERM": 143, "SIGINT": 130}[how]
    assert process.returncode == wanted, err
    assert "quit" in (folder / "asked").read_text()
    assert not list(folder.glob("jaxccomp-mps-*"))


@pytest.mark.slow
def test_failed_start_of_the_mps_daemon_is_reported(folder, gpu_machine):
    env = gpu_machine | {"FAKE_MPS_BROKEN": "1"}
    status, out, err = run(folder, "run", "-n", 2, "--mps", "program.py", env=env)
    assert status == 2 and not out
    assert "status 1: an instance of this daemon cannot run" in err
    assert not list(folder.glob("jaxccomp-mps-*"))


@pytest.mark.parametrize(
    "what,status,text",
    [
        ("raise", 1, "ended with exit status 1"),
        ("exit", 3, "ended with exit status 3"),
        ("kill", 137, "was ended by SIGKILL (exit status 137)"),
    ],
)
def test_first_failure_ends_all_ranks(what, status, text, folder):
    watch = patience.Stopwatch()
    code, out, err = run(folder, "run", "-n", 3, "program.py", what)
    assert code == status, err
    assert watch.seconds() < STEP_SECONDS / 2
    _, _, told = err.partition("jaxccomp run: ")
    assert told.startswith(f"rank 1 {text}; all ranks were ended:\n"), err
    assert f"  about to {what}\n" in told
    assert ("  ValueError: told by rank 1\n" in told) == (what == "raise")
    assert "launch/program.py" not in err  # the traceback is the program's own
    assert "\x1e" not in out + err


FORKS = """
import os, sys, time
if os.fork() == 0:
    if sys.argv[1] == "exit":
        sys.exit(3)
    raise ValueError("of the child")
os.wait()
time.sleep(1)  # in which the launcher would end the rank
print("done")
"""


@pytest.mark.parametrize("how", ["exit", "raise"])
def test_failure_of_a_forked_child_does_not_end_the_job(how, folder):
    """The end of a child does not end its rank."""
    (folder / "forks.py").write_text(FORKS)
    status, out, err = run(folder, "run", "-n", 2, "forks.py", how)
    assert status == 0, err
    assert sorted(re.findall(r"\[\d\] done", out)) == ["[0] done", "[1] done"]


# Sends SIGINT in a destructor during the import of the launcher: Python discards the exception.
CUSTOMIZED = """
import os, signal, sys, time

class Gone:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)

class Finder:
    def find_spec(self, name, path, target=None):
        if name == "jaxccomp.launch.job" and "run" in sys.orig_argv:
            sys.meta_path.remove(self)
            Gone()

sys.meta_path.insert(0, Finder())
"""


def test_interrupt_during_import_of_the_launcher_ends_it(folder):
    (folder / "sitecustomize.py").write_text(CUSTOMIZED)
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    status, out, err = run(folder, "run", "-n", 1, "program.py", env={"PYTHONPATH": path})
    assert status == -signal.SIGINT and not out, out + err


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a small /dev/shm")
def test_too_little_shared_memory_is_reported_before_the_start(folder):
    if mpiexec.vendor()[0] not in ("MPICH", "Intel MPI"):
        pytest.skip("Open MPI reports missing room itself")
    program = [sys.executable, "-P", "-m", "jaxccomp", "run", "-n", "2", "program.py"]
    mounted = f"mount -t tmpfs -o size=1m tmpfs /dev/shm && exec {shlex.join(program)}"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", mounted],
        cwd=folder,
        env=environment(folder, {}),
        capture_output=True,
        text=True,
        check=False,
        timeout=patience.seconds(STEP_SECONDS),
    )
    if "permission denied" in done.stderr or "not permitted" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 2, done.stdout + done.stderr
    assert "/dev/shm" in done.stderr and "1024 KiB" in done.stderr and not done.stdout


# Prints its files in shared memory, and is killed without removing them.
KILLED = """
import os, signal, sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
world.allgather(world.rank)
time.sleep(float(sys.argv[1]))  # the launcher looks now and then
for line in open("/proc/self/maps"):
    if "/dev/shm/" in line and "(deleted)" not in line:
        print("uses", line.split()[5])
world.Barrier()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_killed_ranks_leave_no_shared_memory(folder):
    (folder / "killed.py").write_text(KILLED)
    status, out, err = run(folder, "run", "-n", 2, "killed.py", patience.seconds(1.5))
    assert status == 137, err
    used = set(re.findall(r"uses (\S+)", out))
    assert used and not [path for path in used if os.path.exists(path)], out


def test_abort_ends_the_job_with_its_status(folder):
    status, _, err = run(folder, "run", "-n", 2, "program.py", "abort")
    assert status == 5, err
    # MPICH kills at once: the rank's last output may be lost.
    assert "rank 1 " in err or "no rank has said why" in err


@pytest.mark.slow
@pytest.mark.parametrize("what", ["leave", "chat"])
def test_timeout_ends_all_processes_with_status_124(what, folder):
    """All processes end at the deadline (the fixture checks), also while a rank prints."""
    status, _, err = run(folder, "run", "-n", 2, "--timeout", "6", "program.py", what)
    assert status == 124 and "6 s" in err


def asleep(process, ranks):
    seen = 0
    for line in process.stdout:
        seen += "asleep" in line
        if seen == ranks:
            return
    raise AssertionError(process.stderr.read())


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)]
)
def test_signals_reach_the_ranks(number, folder):
    process = start(folder, "run", "-n", 2, "program.py", "sleep")
    asleep(process, 2)
    process.send_signal(number)
    out, err = process.communicate(timeout=patience.seconds(STEP_SECONDS))
    assert process.returncode == 128 + number, err
    assert number.name in err
    if number == signal.SIGINT:
        assert sorted(re.findall(r"\[\d\] interrupted", out)) == [
            *("[0] interrupted", "[1] interrupted")
        ], out + err


def test_run_forwards_sigusr1_to_ranks_that_handle_it(folder):
    """The flight recorder handles it; the program of another rank would be ended."""
    (folder / "waits.py").write_text(
        "import os, signal, sys, time\n"
        "from mpi4py import MPI\n"
        "def handle(number, frame):\n"
        "    print('handled', flush=True)\n"
        "    sys.exit()\n"
        "rank = MPI.COMM_WORLD.rank\n"
        "signal.signal(signal.SIGUSR1, handle if rank == 0 else signal.SIG_DFL)\n"
        "print('asleep', flush=True)\n"
        "time.sleep(986 if rank == 0 else 3)\n"
    )
    process = start(folder, "run", "-n", 2, "waits.py")
    asleep(process, 2)
    process.send_signal(signal.SIGUSR1)
    out, err = process.communicate(timeout=patience.seconds(STEP_SECONDS))
    assert process.returncode == 0, err
    assert re.findall(r"\[(\d)\] handled", out) == ["0"], out + err


def test_ignored_signals_stay_ignored(folder):
    process = start(folder, "run", "-n", 1, "program.py", "sleep", ignored=signal.SIGHUP)
    asleep(process, 1)
    process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    assert process.poll() is None
    process.terminate()
    _, err = process.communicate(timeout=patience.seconds(STEP_SECONDS))
    assert "SIGTERM" in err


@pytest.mark.parametrize("mpiexec", [pytest.param("runs", marks=pytest.mark.slow), "hangs"])
def test_ranks_end_with_a_killed_launcher(folder, mpiexec):
    process = start(folder, "run", "-n", 2, "program.py", "sleep")
    asleep(process, 2)
    if mpiexec == "hangs":
        children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
        for child in children.read_text().split():
            os.kill(int(child), signal.SIGSTOP)
    process.kill()
    process.communicate(timeout=patience.seconds(STEP_SECONDS))
    assert leftovers.wait(lambda: not left(folder), patience.seconds(STEP_SECONDS))


REPORTS = """
import os, sys
from jaxccomp.launch import report_throughput
batch, replicas = int(os.environ["JAXCCOMP_TUNE_BATCH"]), int(os.environ["JAXCCOMP_TUNE_REPLICAS"])
assert sys.argv[1:] == [f"--batch={batch}", str(replicas)], sys.argv
if batch == 4 and replicas == 1:
    raise ValueError("so few")
report_throughput(batch * replicas)
"""


def tune(folder, *arguments, env=None):
    (folder / "reports.py").write_text(REPORTS)
    status, out, err = run(
        folder,
        *("tune", "ranks-per-gpu", *arguments, "--json", "out.json"),
        *("reports.py", "--batch={batch}", "{replicas}"),
        env=env,
        timeout=2 * STEP_SECONDS,
    )
    assert status == 0, err
    rows = {row["name"]: row for row in json.loads((folder / "out.json").read_text())["cases"]}
    return rows, out


@pytest.mark.slow
def test_tune_on_the_cpu_measures_processes_batches_and_vmap(folder):
    options = ["--device", "cpu", "--ranks-per-gpu", "1,2,4", "--batch", 16, "--rounds", 1]
    rows, out = tune(folder, *options)
    # Every process reports its batch: the total is equal.
    assert rows["1 process"]["rounds"] == rows["2 processes"]["rounds"] == [16]
    assert rows["1 process, vmap of 4"]["rounds"] == [16]
    assert rows["1 process, 4 times the batch"]["ratio"] == 4
    assert "ValueError: so few" in rows["4 processes"]["not_measured"]
    assert "ValueError: so few" in out and "best: 1 process" in out


@pytest.mark.slow
def test_tune_on_gpus_starts_and_stops_mps(folder, gpu_machine):
    (folder / "nobody").mkdir()
    options = ["--gpus", 2, "--ranks-per-gpu", 2, "--batch", 16, "--rounds", 1]
    rows, _ = tune(folder, *options, env=gpu_machine)
    assert rows["2 processes, MPS"]["rounds"] == rows["2 processes, no MPS"]["rounds"] == [32]
    asked = (folder / "asked").read_text().splitlines()
    assert [line for line in asked if not line.startswith("get")] == [
        *("start GPU-aaaa,GPU-bbbb", "quit")
    ]


@pytest.mark.slow
def test_tune_reports_ranks_without_throughput(folder):
    silent = ["tune", "ranks-per-gpu", "--device", "cpu", "--ranks-per-gpu", 1, "--rounds", 1]
    status, out, _ = run(folder, *silent, "program.py")
    assert status == 1
    assert "rank(s) 0 " in out and "throughput" in out


@pytest.mark.slow
@pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("flax", "optax", "sklearn")),
    reason="needs the extra 'demo'",
)
def test_tune_measures_the_flax_example(folder):
    status, out, err = run(
        folder,
        *("tune", "ranks-per-gpu", "--device", "cpu", "--ranks-per-gpu", "1,2", "--rounds", 1),
        *("--batch", 32, ROOT / "examples/flax_data_parallel.py", "--throughput"),
        *("--batch", "{batch}", "--epochs", 1, "--width", 16),
        env={"XLA_FLAGS": "", "JAX_ENABLE_X64": "0"},
        timeout=4 * STEP_SECONDS,
    )
    assert status == 0, err
    assert re.search(r"^2 processes +2 +16 +32 +\d+\.\d", out, re.MULTILINE), out


@pytest.mark.skipif(not gpus.find().gpus, reason="needs a GPU")
def test_run_shares_a_real_gpu(folder):
    program = folder / "real.py"
    program.write_text(
        "import jax\n"
        "print(jax.devices()[0].platform, len(jax.devices()), jax.numpy.ones(5).sum())\n"
    )
    platform = {"JAX_PLATFORMS": ""}
    status, out, err = run(folder, "run", "-n", 2, "--ranks-per-gpu", 2, program, env=platform)
    assert status == 0, err
    assert out.count("gpu 1 5.0") == 2
