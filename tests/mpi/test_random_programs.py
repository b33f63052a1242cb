"""Random programs between processes; the script in tests/stress runs more of them."""

import pathlib

import patience
import pytest

from jaxccomp.bench import launch

SCRIPT = str(pathlib.Path(__file__).parents[1] / "stress" / "random_programs.py")


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--programs=50"], ["--programs=15", "--faults"]])
def test_random_programs_return_right_values(arguments):
    done = launch.run(4, [SCRIPT, "--seed=1", *arguments], timeout_seconds=patience.seconds(300))
    assert not done.error, done.output
    assert " 0 wrong, 0 errors, 0 hangs" in done.output, done.output
