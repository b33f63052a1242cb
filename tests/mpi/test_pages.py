"""The programs of the documentation, as a reader would run them (tests/pages.py)."""

import functools
import importlib.util
import os
import pathlib
import re
import shutil
import sys
import tempfile

import pages
import patience
import pytest
from testbed import network

from jaxccomp.bench import launch

# Without the suite's own settings (conftest.py), which readers do not have.
READERS = {"XLA_FLAGS": "", "JAX_ENABLE_X64": "0"}
PROGRAMS = [
    pytest.param(path, number, marks=() if path == "README.md" else pytest.mark.slow)
    for path in pages.PATHS
    for number in range(len(pages.programs(path)))
]
PACKAGES = ("flax", "optax", "orbax")


def run(program, way, folder):
    """Run a program in a folder and return its output."""
    kind, _, number = way.partition("=")
    if kind not in ("ranks", "devices", "testbed"):
        assert (pages.ROOT / way).exists(), way
        pytest.skip(f"{way} runs it")
    if kind == "testbed" and (reason := network.why_not()):
        pytest.skip(reason)
    env = dict(READERS)
    if kind == "devices":
        env["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={number}"
    if kind == "testbed":
        shutil.copy(pages.ROOT / "examples/hello_bcast.py", folder / "train.py")
        path = os.environ.get("PYTHONPATH")
        env["PYTHONPATH"] = os.pathsep.join([str(pages.ROOT / "tools"), *([path] if path else [])])
        env["PATH"] = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    file = folder / "program.py"
    file.write_text(program.code, encoding="utf-8")
    ranks = int(number) if kind == "ranks" else 1
    done = launch.run(ranks, [str(file)], env=env, timeout_seconds=patience.seconds(240))
    assert not done.error, f"{done.error}\n{done.output}"
    return done.output


@functools.cache
def outputs(path, number):
    """Return the output of a page's program, for each way to run it."""
    program = pages.programs(path)[number]
    for package in PACKAGES:
        if re.search(rf"\b(import|from) {package}|, {package}\b", program.code):
            pytest.importorskip(package)
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # programs write files
        try:
            return [run(program, way, pathlib.Path(folder)) for way in program.ways]
        finally:
            os.chdir(before)


@pytest.mark.parametrize(("path", "number"), PROGRAMS)
def test_programs_of_the_pages_run(path, number):
    outputs(path, number)


def test_readme_program_prints_what_the_readme_shows():
    shown = (pages.ROOT / "README.md").read_text().partition("python first.py\n")[2]
    (output,) = outputs("README.md", 0)
    assert sorted(output.splitlines()) == shown.partition("```")[0].splitlines()


@pytest.mark.slow
def test_toolkit_page_prints_bytes_and_error():
    (output,) = outputs("docs/toolkit.md", 0)
    ranks = re.findall(r"rank \d: ([\d.]+) of the values' bytes a step, off by ([\d.]+)", output)
    assert len(ranks) == 2 and output.count("Report(spec='loud'") == 2
    for share, off in ranks:
        assert float(share) < 0.15 and float(off) < 0.1  # 0.56 at first


@pytest.mark.slow
def test_extending_page_prints_equal_sums():
    (output,) = outputs("docs/extending.md", 0)
    sums = re.findall(r"rank \d: (-?[\d.]+)", output)
    assert len(sums) == 3 and len(set(sums)) == 1
    assert output.count("problems are right") == 3
    assert "[0. 1. 2.]" in outputs("docs/extending.md", 1)[0]


@pytest.mark.slow
def test_launch_page_prints_the_throughput():
    assert outputs("docs/launch.md", 0)[0].count("jaxccomp-throughput: ") == 2


@pytest.mark.slow
def test_debugging_page_shows_the_printed_error():
    """The error names the operation, its line and the rank that is missing, as the page shows."""
    (output,) = outputs("docs/debugging.md", 1)
    assert "rank 0: DEADLINE_EXCEEDED: allreduce(mean, float32[3]) at program.py:5" in output
    assert "rank 0 of 'world' waits for rank 1 of 'world'" in output


@pytest.mark.slow
@pytest.mark.parametrize(("number", "sizes"), [(0, (2, 3)), (1, (4, 3))])
def test_checkpoints_page_resumes_on_another_number_of_ranks(number, sizes):
    """A run resumes from its checkpoint on another number of ranks, and the loss decreases."""
    losses = []
    for step, size, output in zip(
        (100, 200), sizes, outputs("docs/checkpoints.md", number), strict=True
    ):
        found = re.findall(rf"{size}(?: devices)?: step {step}, loss ([\d.]+)", output)
        assert len(set(found)) == 1 and len(found) == (size if number == 0 else 1), output
        losses.append(float(found[0]))
    assert losses[1] < 0.1 * losses[0] and losses[0] < 0.3


needs_demo = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("flax", "optax")),
    reason="needs the extra 'demo'",
)


@pytest.mark.slow
@needs_demo
def test_data_parallel_page_trains_to_the_stated_loss():
    losses = re.findall(r"rank \d of 2: loss ([\d.]+)", outputs("docs/data_parallel.md", 0)[0])
    assert len(losses) == 2 and len(set(losses)) == 1 and float(losses[0]) < 0.05


@pytest.mark.slow
@needs_demo
def test_sharded_training_page_trains_to_the_stated_loss():
    losses = re.findall(r"loss ([\d.]+), holds 672", outputs("docs/sharded_training.md", 0)[0])
    assert len(losses) == 2 and float(losses[0]) < 0.01
    (output,) = outputs("docs/sharded_training.md", 1)
    ends = re.findall(r"loss ([\d.]+), sent (\d+) bytes", output)
    assert len(ends) == 2 and output.count("the same on all ranks: True") == 2
    for loss, sent in ends:
        # Half of 1344 gradients and parameters each step would be 1.1 million in float32.
        assert float(loss) < 0.005 and int(sent) < 300_000


@pytest.mark.slow
@needs_demo
def test_training_page_programs_reach_the_stated_losses(tmp_path, monkeypatch):
    programs = pages.programs("docs/training.md")
    (output,) = outputs("docs/training.md", 0)
    ends = re.findall(r"loss ([\d.]+), sent (\d+) bytes", output)
    assert len(ends) == 2
    for loss, sent in ends:
        # Uncompressed, 1344 parameters in float32 and 300 steps are 1.6 million.
        assert float(loss) < 0.02 and int(sent) < 100_000
    numbers = {
        name: next(i for i, each in enumerate(programs) if name in each.code)
        for name in ("state_specs", 'codec="auto"', "compress_with_feedback", "on_shards")
    }
    (output,) = outputs("docs/training.md", numbers["state_specs"])
    assert re.search(r"loss 0.00\d\d", output), output
    (output,) = outputs("docs/training.md", numbers["compress_with_feedback"])
    loss = re.search(r"loss ([\d.]+)", output)
    assert loss and float(loss[1]) < 5, output  # 133 at first
    (output,) = outputs("docs/training.md", numbers["on_shards"])
    assert float(re.search(r"loss ([\d.]+)", output)[1]) < 0.1, output
    broadcast = programs[numbers['codec="auto"']]
    for codec in ("auto", "int8"):  # the next difference includes the loss of a lossy codec
        code = broadcast.code.replace('codec="auto"', f'codec="{codec}"')
        monkeypatch.chdir(tmp_path)
        output = run(pages.Program("docs/training.md", code), "ranks=2", tmp_path)
        losses = re.findall(r"loss ([\d.]+)", output)
        assert len(losses) == 2 and output.count("the same on all ranks: True") == 2
        assert float(losses[0]) < 0.005


@pytest.mark.slow
@needs_demo
def test_slow_links_page_trains_to_the_stated_loss():
    (output,) = outputs("docs/slow_links.md", 0)
    losses = re.findall(r"loss ([\d.]+), the same on all ranks: True", output)
    assert len(losses) == 2 and all(float(loss) < 0.05 for loss in losses), output


@pytest.mark.slow
def test_moe_page_prints_a_line_per_rank():
    assert outputs("docs/moe.md", 0)[0].count("rank") == 2


@pytest.mark.slow
def test_notebooks_page_prints_the_mean_of_the_devices_and_of_the_ranks():
    (devices,) = outputs("docs/notebooks.md", 0)
    assert re.search(r"\[2\.99\d* 3\.99\d*\]|\[3\. 4\.\]", devices), devices
    (processes,) = outputs("docs/notebooks.md", 1)
    assert processes.count("of 2: [0.5 0.5 0.5]") == 2


@pytest.mark.slow
def test_notebooks_page_runs_cells_on_engines_of_ipyparallel():
    pytest.importorskip("ipyparallel")
    start, cell = pages.programs("docs/notebooks.md")[2:]
    names = {}
    exec(start.code, names)
    try:
        cells = names["engines"][:].execute(cell.code, block=False)
        cells.get(timeout=patience.seconds(60))
        assert sorted(cells.stdout) == [f"rank {rank} of 2: [0.5 0.5 0.5]\n" for rank in range(2)]
    finally:
        names["cluster"].stop_cluster_sync()
