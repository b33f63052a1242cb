"""Random programs between processes; the scripts in tests/stress run more of them."""

import pathlib

import patience
import pytest

from jaxccomp.bench import launch

STRESS = pathlib.Path(__file__).parents[1] / "stress"
SCRIPT = str(STRESS / "random_programs.py")
SHARDED = ["-P", "-m", "jaxccomp", "run", "--xla", str(STRESS / "sharded_programs.py")]


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--programs=50"], ["--programs=15", "--faults"]])
def test_random_programs_return_right_values(arguments):
    done = launch.run(4, [SCRIPT, "--seed=1", *arguments], timeout_seconds=patience.seconds(300))
    assert not done.error, done.output
    assert " 0 wrong, 0 errors, 0 hangs" in done.output, done.output


@pytest.mark.slow
@pytest.mark.parametrize("processes, policy", [(4, ""), (2, "* lossless")])
def test_random_sharded_programs_return_right_values(processes, policy):
    done = launch.run(
        processes,
        [*SHARDED, "--programs=40", f"--devices={4 // processes}"],
        env={"JAXCCOMP_XLA_POLICY": policy},
        timeout_seconds=patience.seconds(300),
    )
    assert not done.error, done.output
    assert "40 programs, " in done.output and " 0 wrong, " in done.output, done.output
