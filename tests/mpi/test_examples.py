"""The examples, as a reader would run them."""

import importlib.util
import pathlib
import re
import sys

import patience
import pytest
from testbed import network
from testbed.bed import Testbed

from jaxccomp.bench import launch

ROOT = pathlib.Path(__file__).parents[2]
# Without the suite's own settings (conftest.py), which readers do not have.
READERS = {"XLA_FLAGS": "", "JAX_ENABLE_X64": "0"}
FOUR_DEVICES = "--xla_force_host_platform_device_count=4"


def run(ranks, program, *arguments):
    done = launch.run(
        ranks, [str(program), *arguments], env=READERS, timeout_seconds=patience.seconds(240)
    )
    assert not done.error, done.output
    return done.output


def test_hello_bcast_prints_the_roots_values():
    output = run(3, ROOT / "examples/hello_bcast.py")
    assert output.count("now has [42. 42. 42.]") == 3


def test_jax_collectives_example_reduces_the_loss():
    output = run(2, ROOT / "examples/jax_collectives.py")
    found = re.findall(r"2 devices, (\w+): loss ([\d.]+) -> ([\d.]+)", output)
    assert [codec for codec, *_ in found] == ["raw", "int8"]
    assert all(float(after) < 0.9 * float(before) for _, before, after in found)


needs_demo = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("flax", "optax", "sklearn")),
    reason="needs the extra 'demo'",
)


def table(output):
    """Return the table that an example prints: row name -> column name -> number."""
    lines = output.splitlines()
    header = next(i for i, line in enumerate(lines) if " accuracy " in line)
    columns = re.split(r"\s{2,}", lines[header].strip())
    rows = {}
    for line in lines[header + 1 : header + 3]:
        name, *values = line.split()
        assert len(values) == len(columns), output
        numbers = [float(value.removesuffix("x")) for value in values]
        rows[name] = dict(zip(columns, numbers, strict=True))
    return rows


def check(output, codec, ratio, accuracy=0.9):
    """Check that both runs learnt equally well, and the ratio of their sent bytes."""
    rows = table(output)
    assert list(rows) == ["uncompressed", codec], output
    raw, coded = rows.values()
    assert min(raw["accuracy"], coded["accuracy"]) > accuracy, output
    assert abs(raw["loss"] - coded["loss"]) < 0.15, output
    least, most = ratio
    assert least < raw["MiB sent"] / coded["MiB sent"] < most, output
    assert coded["ratio"] == pytest.approx(raw["MiB sent"] / coded["MiB sent"], rel=0.01)
    assert raw["ms/epoch"] > 0 and coded["ms/epoch"] > 0
    return raw, coded


DATA_PARALLEL = ["flax_data_parallel.py", "flax_linen_data_parallel.py"]
SPARSE = ["--form", "sparse_loco"]
SHORT = ["--epochs", "4", "--width", "64"]


@needs_demo
@pytest.mark.parametrize(
    "program,codec,ratio",
    [
        pytest.param(DATA_PARALLEL[0], "int8", (3.4, 4), marks=pytest.mark.slow),
        pytest.param(DATA_PARALLEL[1], "int8", (3.4, 4), marks=pytest.mark.slow),
        pytest.param(DATA_PARALLEL[0], "topk:density=0.05", (8, 20), marks=pytest.mark.slow),
        pytest.param(DATA_PARALLEL[1], "topk:density=0.05", (8, 20), marks=pytest.mark.slow),
    ],
)
def test_data_parallel_examples_learn_with_fewer_bytes(program, codec, ratio):
    options = [] if codec == "int8" else ["--codec", codec]  # int8 is the default
    check(run(2, ROOT / "examples" / program, *SHORT, *options), codec, ratio)


@pytest.mark.slow
@needs_demo
def test_topk_without_error_feedback_has_a_higher_loss():
    program = ROOT / "examples" / DATA_PARALLEL[0]
    options = [*SHORT, "--codec", "topk:density=0.002"]
    kept = table(run(2, program, *options))["topk:density=0.002"]
    dropped = table(run(2, program, *options, "--no-error-feedback"))["topk:density=0.002"]
    assert dropped["loss"] > 1.5 * kept["loss"]


@pytest.mark.slow
@needs_demo
@pytest.mark.parametrize(
    "options,codec,ratio",
    [
        ([], "bf16|lossless", (2.2, 6)),
        (["--codec", "int8", "--top", "2", "--experts", "2"], "int8", (3.4, 4)),
    ],
)
def test_moe_example_learns_with_fewer_bytes(options, codec, ratio):
    output = run(2, ROOT / "examples/moe_alltoall.py", *SHORT, *options)
    for row in check(output, codec, ratio):
        assert 0 <= row["dropped"] < 0.3, output


@pytest.mark.slow
@needs_demo
@pytest.mark.parametrize(
    "ranks,options,ratio", [(2, [], (1.9, 2.1)), (3, ["--codec", "int8"], (2.5, 4))]
)
def test_dlrm_example_learns_with_fewer_bytes(ranks, options, ratio):
    """With seven tables on three ranks, one rank has more than the others."""
    tables = ["--tables", "7"] if ranks == 3 else []
    output = run(ranks, ROOT / "examples/dlrm.py", *SHORT, *options, *tables)
    check(output, options[1] if options else "bf16", ratio, accuracy=0.8)


@pytest.mark.slow
@needs_demo
def test_tensor_pipeline_learns_the_same_for_any_division():
    small = ["--epochs", "2", "--steps", "8", "--width", "64", "--features", "32"]
    small += ["--depth", "2", "--micro-batches", "2"]
    program = ROOT / "examples/tensor_pipeline.py"
    whole = table(run(1, program, *small))["uncompressed"]
    for ranks, options in ((4, []), (1, ["--mesh"])):
        env = READERS | ({"XLA_FLAGS": FOUR_DEVICES} if options else {})
        done = launch.run(
            ranks, [str(program), *small, *options], env=env, timeout_seconds=patience.seconds(240)
        )
        assert not done.error, done.output
        rows = table(done.output)
        for name, bound in (("uncompressed", 1e-3), ("bf16", 2e-2)):
            assert abs(rows[name]["loss"] - whole["loss"]) < bound, done.output
        if not options:
            check(done.output, "bf16", (1.9, 2.1), accuracy=0.15)
    refused = launch.run(
        1, [str(program), "--tensor", "2"], env=READERS, timeout_seconds=patience.seconds(60)
    )
    assert "--tensor" in refused.output and "2" in refused.output


@pytest.mark.slow
@needs_demo
def test_byte_transformer_learns_with_fewer_bytes():
    options = ["--epochs", "2", "--features", "32", "--steps", "40"]
    output = run(2, ROOT / "examples/byte_transformer.py", *options)
    check(output, "int8", (3.4, 4), accuracy=0.2)


@pytest.mark.slow
@needs_demo
@pytest.mark.parametrize(
    "options,less", [(["--codec", "int4"], 60), (["--form", "streaming"], 35), (SPARSE, 400)]
)
def test_diloco_example_saves_bytes_and_keeps_ranks_equal(options, less):
    """Outer steps save at least the promised bytes, and all ranks end with equal parameters."""
    small = ["--features", "32", "--depth", "1", "--length", "32", "--batch", "8"]
    few = ["--every", "10", "--outer-steps", "4"]
    output = run(2, ROOT / "examples/diloco.py", *small, *few, *options)
    steps = re.findall(r"outer step \d: loss ([\d.]+), sent (\d+) bytes", output)
    assert len(steps) == 4 and output.count("the same on all ranks: True") == 2, output
    assert float(steps[-1][0]) < float(steps[0][0]) - 0.2, output
    dense = int(re.search(r"10 steps: (\d+) bytes", output)[1])
    # An exchange that overlaps inner steps may end in the next outer step.
    assert sum(int(sent) for _, sent in steps) * less < 4 * dense, output


@pytest.mark.slow
@needs_demo
def test_moe_gradients_equal_one_program_with_all_experts():
    output = run(2, pathlib.Path(__file__).with_name("moe_worker.py"), str(ROOT / "examples"))
    assert output.count("equal") == 2


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("optax"), reason="needs the extra 'optim'")
@pytest.mark.parametrize("trainers", [1, 2])
def test_weight_sync_improves_the_policy_with_received_weights(trainers):
    output = run(4, ROOT / "examples/weight_sync.py", "--trainers", str(trainers))
    first, last, ratio, behind = map(
        float,
        re.search(
            # Lines of several ranks may be joined.
            r"reward ([\d.]+) at first, ([\d.]+) in the end.*? ratio ([\d.]+); "
            r"weights played with are ([\d.]+) versions old",
            output,
        ).groups(),
    )
    assert last > 0.75 > 0.6 > first and ratio > 3 and behind < 20, output
    assert output.count("ms old") == 4 - trainers, output


@pytest.fixture(scope="module")
def bed():
    if reason := network.why_not():
        pytest.skip(reason)
    with Testbed(hosts=2, link="100mbit") as bed:
        yield bed


def run_on(bed, program, *arguments):
    """Run an example on the testbed's hosts; return its output and the bytes received."""
    before = bed.received_bytes()
    command = [sys.executable, str(ROOT / "examples" / program), *arguments]
    done = bed.run(command, env=READERS, timeout_seconds=patience.seconds(300), capture=True)
    assert done.returncode == 0, done.stdout
    return done.stdout, bed.received_bytes() - before


def test_hello_bcast_works_between_hosts(bed):
    output, _ = run_on(bed, "hello_bcast.py")
    assert output.count("now has [42. 42. 42.]") == 2


@pytest.mark.slow
@needs_demo
@pytest.mark.parametrize(
    "program,arguments,codec,ratio",
    [
        *((program, ["--width", "768"], "int8", (3.4, 4)) for program in DATA_PARALLEL),
        ("moe_alltoall.py", ["--features", "64"], "bf16|lossless", (2.2, 6)),
    ],
)
def test_compression_makes_examples_faster_between_hosts(bed, program, arguments, codec, ratio):
    """On slow links fewer bytes take less time; the printed bytes match the links' counters."""
    arguments = ["--epochs", "3", "--batch", "48", *arguments]
    output, received = run_on(bed, program, *arguments)
    raw, coded = check(output, codec, ratio, accuracy=0.8)
    assert coded["ms/epoch"] < 0.8 * raw["ms/epoch"], output
    # Rank 1 has sent as much, except for the initial parameters.
    sent = 2 * (raw["MiB sent"] + coded["MiB sent"]) * 2**20
    assert 0.95 * sent < received < 1.15 * sent, output
