"""jax.distributed programs without MPI: both styles, processes that die, errors."""

import pathlib
import signal
import subprocess
import sys

import patience
import pytest
from ucx import processes

WORKER = str(pathlib.Path(__file__).with_name("program_worker.py"))
XLA_WORKER = str(pathlib.Path(__file__).parents[1] / "mpi" / "xla_worker.py")


def answers(started, timeout_seconds=120):
    """Wait for successful ends; return the last JSON object of each process."""
    texts = processes.finish(started, timeout_seconds)
    for each, text in zip(started, texts, strict=True):
        assert each.returncode == 0, text
    return [processes.answer(text) for text in texts]


def test_mapped_and_rank_programs_with_codecs_return_right_values():
    for found in answers(processes.start(2, [WORKER, "styles"])):
        assert found["way"] == ["local", "ucx+cma"]
        assert found["sum"] == 3
        assert found["largest_error"] <= found["bound"]
        assert found["gathered"] == [0.0, 1.0]
        assert found["bits_alike"]
        assert found["by_rank"] == 3


@pytest.mark.parametrize(
    "ranks, cma, what",
    [
        pytest.param(2, "auto", "", marks=pytest.mark.slow),
        # Rank 1 is forbidden to read others' memory: "later", after it has found that it may read;
        # "refused", before.
        (2, "auto", "later"),
        pytest.param(3, "auto", "refused", marks=pytest.mark.slow),
        # Rank 1 has ucx_cma=off.
        pytest.param(3, "auto", "keeps", marks=pytest.mark.slow),
        pytest.param(2, "off", "", marks=pytest.mark.slow),
    ],
)
def test_large_values_arrive_with_and_without_cross_memory_attach(ranks, cma, what):
    started = processes.start(ranks, [WORKER, "large", what], {"JAXCCOMP_UCX_CMA": cma})
    for rank, found in enumerate(answers(started)):
        reads = cma == "auto" and not (rank == 1 and what)
        assert found["way"] == ["local", "ucx+cma" if reads else "ucx"]
        assert found["alike"] == [True] * len(found["alike"])


@pytest.mark.slow
@pytest.mark.parametrize("free_mib", [16, 1 << 11])
def test_shared_memory_is_used_only_if_large_enough(free_mib):
    """UCX may crash if /dev/shm is full."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("other mounts need root")
    mount = f"mount -t tmpfs -o size={free_mib}m tmpfs /dev/shm"
    own_shm = ["unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh"]
    for found in answers(processes.start(2, [WORKER, "shares"], before=own_shm)):
        assert found["alike"]
        assert (found["mapped"] > 0) == (free_mib > 1 << 10)


def test_program_of_the_page_runs():
    for found in answers(processes.start(2, [WORKER, "documented"])):
        assert found["mine"] == [2.0, 2.0, 2.0]
        assert all(abs(each - 2) < 0.1 for each in found["total"])


def test_program_of_the_readme_runs():
    for found in answers(processes.start(2, [WORKER, "readme"])):
        assert all(abs(each - 2) < 0.1 for each in found["total"])


def test_survivors_of_a_kill_get_the_error_before_the_deadline():
    started = processes.start(3, [WORKER, "killed"])
    texts = processes.finish(started, 120)
    assert started[1].returncode == -signal.SIGKILL, texts[1]
    for rank in (0, 2):
        found = processes.answer(texts[rank])
        assert "rank 1" in found["error"], found
        assert not found["at_deadline"], found
        assert found["survivors"] == [0, 2]
        assert found["sum"] == 2.0


def test_paused_process_is_named_at_the_deadline_and_can_resume():
    started = processes.start(2, [WORKER, "stopped"])
    # Wait until the process is ready to be stopped.
    assert any(line.startswith("ready") for line in started[1].stdout)
    started[1].send_signal(signal.SIGSTOP)
    try:
        first = processes.answer(processes.finish(started[:1], 90)[0])
    finally:
        started[1].send_signal(signal.SIGCONT)
    processes.finish(started[1:], 60)
    assert "rank 1 of 'world'" in first["error"]
    assert first["at_deadline"], first


def start_sharded(ranks, case, timeout_seconds):
    """Start a program of jit with shardings, whose collectives XLA adds (docs/xla.md)."""
    env = {
        "XLA_WORKER": f"127.0.0.1:{processes.free_port()} {{rank}} {ranks} 1",
        "JAXCCOMP_TIMEOUT_SECONDS": str(timeout_seconds),
    }
    return processes.start(ranks, ["-m", "jaxccomp", "run", "--xla", XLA_WORKER, case], env)


def test_survivors_of_a_kill_in_a_sharded_program_get_a_named_error():
    started = start_sharded(3, "killed", 60)
    texts = processes.finish(started, 120)
    assert started[1].returncode == -signal.SIGKILL, texts[1]
    for rank in (0, 2):
        found = processes.answer(texts[rank])
        assert "rank 1" in found["error"], found
        assert not patience.at_deadline(found["error"]), found
        assert found["seconds"] < patience.seconds(10), found
        assert started[rank].returncode != 0, texts[rank]


def test_paused_process_of_a_sharded_program_is_named_at_the_deadline():
    started = start_sharded(2, "paused", 5)
    assert any(line.startswith("ready") for line in started[1].stdout)
    started[1].send_signal(signal.SIGSTOP)
    try:
        lines = (line for line in started[0].stdout if line.startswith("{"))
        first = processes.answer(next(lines))
    finally:
        started[1].send_signal(signal.SIGCONT)
    second = processes.answer(processes.finish(started, 60)[1])
    assert "process 1" in first["error"] and patience.at_deadline(first["error"]), first
    assert first["seconds"] < patience.seconds(10), first
    assert second["error"], second
    assert all(each.returncode != 0 for each in started)


@pytest.mark.slow
def test_idle_process_rarely_wakes():
    for found in answers(processes.start(2, [WORKER, "idle"])):
        # In five seconds; polling, as with MPI, would wake a hundred times per second.
        assert found["woken"] < 100, found


@pytest.mark.slow
def test_process_without_ucx_disables_ucx_on_all():
    lacking = {"JAXCCOMP_UCX_NET_DEVICES": "no_such_device"}
    for found in answers(processes.start(2, [WORKER, "lacking"], lacking)):
        assert found["way"] == ["local"]
        assert "UCX" in found["error"] and "no_such_device" in found["error"]
        assert "pip install 'jaxccomp[ucx]'" in found["error"]
        assert 'the option transport is "ucx"' in found["asked"]


def test_run_starts_ranks_without_mpiexec(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, jaxccomp as jcc, numpy as np\n"
        "world = jcc.init()\n"
        "total = float(np.asarray(jcc.allreduce(np.float32(world.rank + 1))))\n"
        "print(world.size, total, jcc.config.get('coordinator') != '', flush=True)\n"
        "sys.exit(7 if sys.argv[1:] == ['fails'] and world.rank == 1 else 0)\n"
    )

    def run(*arguments):
        command = [sys.executable, "-m", "jaxccomp", "run", "-n", "2", "--transport", "ucx"]
        return subprocess.run(
            [*command, str(script), *arguments],
            capture_output=True,
            text=True,
            timeout=patience.seconds(120),
        )

    done = run()
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] 2 3.0 True", "[1] 2 3.0 True"]
    failed = run("fails")
    assert failed.returncode == 7
    assert "rank 1" in failed.stderr
