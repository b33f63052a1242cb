"""The examples and the README's program, as a reader would run them."""

import importlib.util
import pathlib
import re

import pytest

from jaxccomp.bench import launch

ROOT = pathlib.Path(__file__).parents[2]
# The suite's own settings (conftest.py) are not a reader's.
READERS = {"XLA_FLAGS": "", "JAX_ENABLE_X64": "0"}


def run(ranks, program, *arguments):
    done = launch.run(ranks, [str(program), *arguments], env=READERS, timeout_seconds=240)
    assert not done.error, done.output
    return done.output


def test_hello_bcast():
    output = run(3, ROOT / "examples/hello_bcast.py")
    assert output.count("now has [42. 42. 42.]") == 3


def test_readme(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 1
    program = tmp_path / "step.py"
    program.write_text(blocks[0])
    weights = re.findall(r"rank \d of 2: (\[[^\]]*\])", run(2, program))
    assert len(weights) == 2 and weights[0] == weights[1]


@pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("flax", "optax", "sklearn", "rich")),
    reason="needs the extra 'demo'",
)
@pytest.mark.parametrize("codec", [[], ["--codec", "bf16"]])
def test_flax_data_parallel(codec):
    output = run(2, ROOT / "examples/flax_data_parallel.py", "--epochs", "6", *codec)
    accuracy = float(re.search(r"test accuracy\s+([\d.]+)%", output)[1])
    assert accuracy > 90
    assert re.search(r"sent by rank 0\s+[\d.]+ [KM]iB", output)
