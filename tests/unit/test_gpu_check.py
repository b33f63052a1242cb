"""`make gpu-check` without a GPU: its budget, its output, and its clean-up.

Scripts replace nvidia-smi and the daemon of MPS.
"""

import importlib
import json
import os
import pathlib
import subprocess
import sys
import time
import zipfile

import pytest
from golden_errors import check_text

import jaxccomp  # noqa: F401 - the scripts must import this package

GPU = pathlib.Path(__file__).parents[1] / "gpu"


def module(name):
    """Imports a script of tests/gpu; they import each other by name."""
    sys.path.insert(0, str(GPU))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(GPU))


check, process, ranks, facts = map(module, ("check", "process", "ranks", "facts"))
PYTHON = sys.executable
# A fake nvidia-smi that answers queries of GPUs and their properties; $STATE has the compute mode.
SMI = """#!/bin/sh
case "$*" in
  *uuid,pci.bus_id*) echo 'GPU-aaaa, 00000000:3B:00.0' ;;
  *compute_mode*) echo "H1, GPU-aaaa, 580.1, 9.0, 80 GiB, 700 W, 1980 MHz, 2619 MHz, \
$(cat "$STATE"), Disabled, Enabled" ;;
  -q) echo '    CUDA Version                      : 13.0' ;;
  *) echo '345 MHz, 2619 MHz, 31, 70 W, P0' ;;
esac
"""


@pytest.fixture
def gpu_machine(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nvidia-smi").write_text(SMI)
    (tmp_path / "bin/nvidia-smi").chmod(0o755)
    (tmp_path / "mode").write_text("Default")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("STATE", str(tmp_path / "mode"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


def says(code, seconds=60, **more):
    """Return a part that runs a line of Python."""
    return check.Part("a part", seconds, lambda program: [[PYTHON, "-c", code]], **more)


def run(folder, monkeypatch, parts, *arguments):
    """Returns the exit status and the content of each part's file; the output is left to capsys."""
    monkeypatch.setattr(check, "PARTS", parts)
    status = check.main([str(folder / "build"), str(folder / "out"), *arguments])
    files = {p.stem: json.loads(p.read_text()) for p in (folder / "out").glob("*.json")}
    return status, files


GOOD = "print('{\"rate\": 1}')"


def test_every_result_file_names_device_and_versions(gpu_machine, monkeypatch, capsys):
    status, files = run(gpu_machine, monkeypatch, {"one": says(GOOD)})
    assert status == 0
    found = files["one"]
    assert found["device"]["name"] == "H1" and found["device"]["compute_mode"] == "Default"
    assert found["device"]["mig.mode.current"] == "Disabled"
    assert found["device"]["power.limit"] == "700 W"
    assert found["software"]["CUDA driver"] == "13.0" and found["software"]["jax"] != "none"
    assert {"NCCL", "nvCOMP", "mpi4py", "revision"} <= set(found["software"])
    assert found["moments"][0]["clocks.sm"] == "345 MHz"
    assert found["lines"] == [{"rate": 1}] and found["failures"] == []
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("one: good (") and "1 results" in out[0]
    assert f"of 540 s; written to {gpu_machine}/out" in out[1]


def test_field_unknown_to_nvidia_smi_omits_no_other_field(gpu_machine):
    text = SMI.replace("#!/bin/sh", '#!/bin/sh\ncase "$*" in *pstate*) exit 2 ;; esac')
    (gpu_machine / "bin/nvidia-smi").write_text(text)
    assert facts.of_moment()["clocks.sm"] == "345 MHz" and "pstate" not in facts.of_moment()
    assert facts.of_device()["compute_mode"] == "Default"


def test_report_lists_failed_and_skipped_parts_with_reasons(gpu_machine, monkeypatch, capsys):
    parts = {
        "wrong": says("import sys; print('no json'); sys.exit('two\\nlines')"),
        "absent": check.Part("a part", 60, lambda program: "no such thing is installed"),
        "partly": says('print(\'{"not_run": "4 ranks", "reason": "no mpiexec"}\')'),
        "no_device": says("import sys; print('no NCCL', file=sys.stderr); sys.exit(77)"),
        "good": says(GOOD),
    }
    status, files = run(gpu_machine, monkeypatch, parts)
    assert status == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("wrong: WRONG: ") and "exit status 1: two | lines" in out[0]
    assert out[1] == "absent: not run: no such thing is installed"
    assert out[2].startswith("partly: good; 4 ranks not run: no mpiexec (")
    assert out[3] == "no_device: not run: no NCCL"
    assert out[4].startswith("good: good")
    assert files["absent"]["not_run"] == "no such thing is installed"
    assert files["absent"]["device"]["name"] == "H1"


def test_exit_status_is_0_1_2_or_77_by_outcome(gpu_machine, monkeypatch, capsys):
    skip = says("import sys; sys.exit(77)")
    assert run(gpu_machine, monkeypatch, {"a": skip, "b": skip})[0] == 77
    assert run(gpu_machine, monkeypatch, {"a": skip, "b": says(GOOD)})[0] == 0
    capsys.readouterr()
    assert run(gpu_machine, monkeypatch, {"a": says(GOOD)}, "b", "c")[0] == 2
    assert capsys.readouterr().out == "no part b, c; there are a\n"
    assert run(gpu_machine, monkeypatch, {"a": says(GOOD)}, "--seconds", "0")[0] == 2


def test_check_without_a_gpu_exits_with_status_77(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    status, files = run(tmp_path, monkeypatch, {"a": says(GOOD)})
    assert status == 77 and not files
    check_text(capsys.readouterr().out, "NVIDIA", "nvidia-smi", "PATH")


def test_resume_skips_parts_with_complete_files(gpu_machine, monkeypatch, capsys):
    parts = {"a": says(GOOD), "b": says(GOOD)}
    status, files = run(gpu_machine, monkeypatch, parts, "b")
    assert status == 0 and list(files) == ["b"]
    capsys.readouterr()
    _, files = run(gpu_machine, monkeypatch, parts, "--resume")
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "b: left out, its file is complete" and out[1].startswith("a: good")
    assert sorted(files) == ["a", "b"]
    # A file of another GPU, or with gaps, is incomplete.
    for change in ({"device": {"name": "H2"}}, {"not_run": "why"}, {"failures": ["why"]}):
        (gpu_machine / "out/b.json").write_text(json.dumps(files["b"] | change))
        capsys.readouterr()
        run(gpu_machine, monkeypatch, parts, "b", "--resume")
        assert capsys.readouterr().out.startswith("b: good")


def test_share_reserves_minimum_times_and_divides_the_rest(monkeypatch):
    parts = {
        name: check.Part("", most, None, least=20)
        for name, most in zip("abc", (60, 100, 220), strict=True)
    }
    monkeypatch.setattr(check, "PARTS", parts)
    shares = [check.share("a", "bc", 200), check.share("b", "c", 160), check.share("c", "", 100)]
    assert shares == [20 + 140 * 40 / 320, 20 + 120 * 80 / 280, 100]
    assert check.share("c", "", 500) == 220  # at most the part's own limit
    assert check.share("a", "bc", 50) == 20 and check.share("a", "bc", 15) == 15


def test_minimum_times_of_all_parts_fit_into_the_budget():
    assert sum(part.least for part in check.PARTS.values()) <= check.SECONDS < 9 * 60 + 1
    assert all(0 < part.least <= part.seconds for part in check.PARTS.values())
    given, left = 0.0, float(check.SECONDS)
    for number, name in enumerate(check.PARTS):
        mine = check.share(name, list(check.PARTS)[number + 1 :], left)
        assert mine >= check.PARTS[name].least
        given, left = given + mine, left - mine
    assert given <= check.SECONDS + 1e-6


def test_part_cut_short_by_the_budget_is_no_failure(gpu_machine, monkeypatch, capsys):
    slow = "import time; print('{\"rate\": 2}', flush=True); time.sleep(986)"
    parts = {"slow": says(slow, least=1), "late": says(GOOD, least=50)}
    status, files = run(gpu_machine, monkeypatch, parts, "--seconds", "2")
    assert status == 0
    assert (
        files["slow"]["lines"] == [{"rate": 2}]
        and "not done in its" in (files["slow"]["not_done"][0])
    )
    check_text(files["late"]["not_run"], "50", golden=False)
    out = capsys.readouterr().out.splitlines()
    assert "not done in its" in out[0] and out[1].startswith("late: not run: ")


def test_part_that_exceeds_its_own_limit_fails(gpu_machine, monkeypatch):
    parts = {"hangs": says("import time; time.sleep(986)", seconds=1, least=1)}
    status, files = run(gpu_machine, monkeypatch, parts)
    assert status == 1 and "its time was up" in files["hangs"]["failures"][0]


def test_commands_receive_their_time_limit(gpu_machine, monkeypatch):
    code = "import sys; print('{\"told\": %s}' % sys.argv[1])"
    part = check.Part("", 40, lambda program: [[PYTHON, "-c", code, "{seconds}"]])
    _, files = run(gpu_machine, monkeypatch, {"a": part})
    assert files["a"]["lines"] == [{"told": 34}] or files["a"]["lines"] == [{"told": 35}]


def test_killed_part_keeps_its_lines_and_resumes(gpu_machine, monkeypatch):
    say = "print('{{\"rate\": {0}}}', flush=True)"
    commands = [
        [PYTHON, "-c", say.format(1)],
        [
            PYTHON,
            "-c",
            f"{say.format(2)}; import os, time; time.sleep(60 * ('GO' not in os.environ))",
        ],
        [PYTHON, "-c", say.format(3)],
    ]
    parts = {"a": check.Part("", 60, lambda program: commands)}
    run(gpu_machine, monkeypatch, parts, "--seconds", "0.001")  # creates the folder
    monkeypatch.setattr(check, "PARTS", parts)
    path = gpu_machine / "out/a.json"
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import check; "
        f"check.PARTS = {{'a': check.Part('', 60, lambda program: {commands!r})}}; "
        "check.main(sys.argv[2:])"
    )
    job = subprocess.Popen(
        [PYTHON, "-c", program, str(GPU), str(gpu_machine / "build"), str(gpu_machine / "out")]
    )
    until = time.monotonic() + 60
    while time.monotonic() < until and (
        not path.exists() or len(json.loads(path.read_text()).get("lines", ())) < 2
    ):
        time.sleep(0.05)
    job.kill()
    job.wait()
    found = json.loads(path.read_text())
    assert found["lines"] == [{"rate": 1}, {"rate": 2}] and "under way" in found["not_done"][0]
    monkeypatch.setenv("GO", "1")
    status, files = run(gpu_machine, monkeypatch, parts, "--resume")
    assert status == 0 and files["a"]["lines"] == [{"rate": 1}, {"rate": 2}, {"rate": 3}]
    assert not files["a"].get("not_done") and len(files["a"]["commands"]) == 3


def test_changed_gpu_settings_are_reported_as_failure(gpu_machine, monkeypatch, capsys):
    code = "import os; open(os.environ['STATE'], 'w').write('Exclusive_Process')"
    status, files = run(gpu_machine, monkeypatch, {"a": says(code)})
    assert status == 1
    check_text(files["a"]["failures"][0], "compute_mode", "Default", "Exclusive_Process")


# A fake control command: records its input, and ends the fake daemon.
CONTROL = """#!/bin/sh
read asked
echo "$asked $CUDA_MPS_PIPE_DIRECTORY" >> "$ASKED"
[ -z "$STUBBORN" ] && kill "$(cat "$CUDA_MPS_PIPE_DIRECTORY/pid")"
exit 0
"""


@pytest.mark.parametrize("stubborn", ["", "1"])
def test_check_stops_the_mps_daemon(stubborn, tmp_path, monkeypatch):
    (tmp_path / "nvidia-cuda-mps-server").symlink_to(
        subprocess.run(["which", "sleep"], capture_output=True, text=True).stdout.strip()
    )
    (tmp_path / "nvidia-cuda-mps-control").write_text(CONTROL)
    (tmp_path / "nvidia-cuda-mps-control").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("ASKED", str(tmp_path / "asked"))
    monkeypatch.setenv("STUBBORN", stubborn)
    start = (
        "export CUDA_MPS_PIPE_DIRECTORY=$0; setsid nvidia-cuda-mps-server 986 >/dev/null 2>&1 & "
        "echo $! > $0/pid; setsid sleep 985 >/dev/null 2>&1 &"
    )
    done = process.run(["sh", "-c", start, str(tmp_path)], os.environ, 30, "JAXCCOMP_TEST_MPS")
    assert done.left == ("nvidia-cuda-mps", "sleep") and done.status == 0
    assert done.wrong == "it left running nvidia-cuda-mps, sleep"
    assert (tmp_path / "asked").read_text() == f"quit {tmp_path}\n"
    running = pathlib.Path("/proc", (tmp_path / "pid").read_text().strip(), "cmdline")
    assert not running.exists() or not running.read_bytes()


def test_late_command_receives_sigterm_then_sigkill(monkeypatch):
    monkeypatch.setattr(process, "_GRACE_SECONDS", 2.0)
    code = (
        "import signal, sys, time\n"
        "signal.signal(15, lambda *_: sys.exit(print('asked')))\n"
        "print('begun', flush=True); time.sleep(986)"
    )
    done = process.run([PYTHON, "-c", code], os.environ, 1.0)
    assert done.late and done.output == "begun\nasked\n" and "its time was up" in done.wrong
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(986)"
    start = time.monotonic()
    done = process.run([PYTHON, "-c", deaf], os.environ, 1.0, "JAXCCOMP_TEST_DEAF")
    assert done.late and done.status == -9 and time.monotonic() - start < 30


def test_truncated_lines_are_ignored():
    assert list(ranks.rows('a\n{"x": 1}\n{"y": ')) == [{"x": 1}]


def test_ranks_start_with_memory_fraction_platforms_and_path(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "0.5")
    env = ranks.environment(tmp_path, "cuda", 4)
    assert env["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.150" and env["JAX_PLATFORMS"] == "cuda,cpu"
    assert "XLA_CLIENT_MEM_FRACTION" not in env
    assert f"{tmp_path}/module" in env["PYTHONPATH"].split(":")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(ranks.sys, "executable", str(tmp_path / "python"))
    assert ranks.command(2, ["x"]) is None and ranks.command(1, ["x"]) == ["x"]


@pytest.mark.parametrize("name", ["check", "collectives", "traced", "broadcast", "accdp", "bundle"])
def test_every_gpu_script_has_help(name):
    command = [PYTHON, str(GPU / f"{name}.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "usage:" in done.stdout


@pytest.mark.parametrize(
    "name,said",
    [
        ("broadcast", "8 ranks, 1gbit, 256 MiB"),
        ("accdp", "transformer-small"),
    ],
)
def test_dry_run_lists_the_commands(name, said, tmp_path):
    command = [PYTHON, str(GPU / f"{name}.py"), str(tmp_path), "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True)
    rows = list(ranks.rows(done.stdout))
    assert done.returncode == 0 and said in [row["would_run"] for row in rows], done.stderr


@pytest.mark.parametrize("name", ["collectives", "traced", "broadcast", "accdp"])
def test_scripts_without_a_gpu_exit_with_status_77(name, tmp_path):
    done = subprocess.run(
        [PYTHON, str(GPU / f"{name}.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        env=os.environ | {"PATH": str(tmp_path)},
    )
    assert done.returncode == 77 and "no NVIDIA GPU here" in done.stderr


def test_broadcast_gains_are_relative_to_raw():
    broadcast = module("broadcast")
    rows = [
        {"name": "raw", "seconds": 3.0},
        {"name": "lossless", "seconds": 2.0},
        {"name": "slow", "seconds": 4.0},
        {"not_run": "nvcomp.ans"},
    ]
    assert broadcast.gains(rows) == {
        "times_as_fast_as_raw": {"lossless": 1.5, "slow": 0.75},
    }
    assert broadcast.gains(rows[1:2]) == {}


def tuned(**rates):
    """The output of `tune --json` for these rates of the cases; 0: not measured."""

    def row(name, processes=1, batch=64):
        rate = rates[name] or None
        ratio = rate and rate / (rates["one"] or 1)
        return {
            "name": name,
            "processes": processes,
            "device_batch": batch,
            "samples_per_second": rate,
            "ratio": ratio,
        }

    cases = [row("one"), row("two", 2), row("four", 4), row("vmap"), row("larger", batch=256)]
    return {"cases": cases, "verdict": "so", "left_out": ""}


def test_accdp_report_names_the_baselines_that_are_faster():
    accdp = module("accdp")
    line = accdp.told("tiny", "a network", tuned(one=10, two=15, four=12, vmap=11, larger=14))
    assert (line["best_processes"], line["ratio"], line["loses_to"]) == ("two", 1.5, [])
    assert line["rivals"] == {"vmap": 1.1, "larger": 1.4}
    line = accdp.told("tiny", "a network", tuned(one=10, two=9, four=8, vmap=11, larger=9))
    assert line["best_processes"] == "two" and line["loses_to"] == ["vmap", "1 process"]
    line = accdp.told("tiny", "a network", tuned(one=10, two=0, four=0, vmap=11, larger=9))
    assert "best_processes" not in line and line["verdict"] == "so"


def test_bundle_unpacks_wheels_with_programs_and_libraries(tmp_path):
    wheel = tmp_path / "a.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("a/__init__.py", "x = 1")
        archive.writestr("a-1.data/data/bin/tool", "#!/bin/sh\n")
        archive.writestr("a-1.data/data/lib/liba.so", "")
        archive.writestr("a-1.data/purelib/b.py", "")
    command = [PYTHON, str(GPU / "unpack.py"), str(tmp_path / "site"), str(wheel)]
    assert subprocess.run(command).returncode == 0
    site = tmp_path / "site"
    assert os.access(site / "bin/tool", os.X_OK) and (site / "lib/liba.so").exists()
    assert (site / "packages/a/__init__.py").exists() and (site / "packages/b.py").exists()
    assert (site / "done").exists()
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("../out", "")
    assert subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 1
