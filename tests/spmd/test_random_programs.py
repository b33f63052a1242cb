"""Random programs on forced host devices; the script in tests/stress runs many more."""

import pytest
from stress import random_programs

pytestmark = pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--programs=25"], ["--programs=10", "--faults"]])
def test_random_programs_return_right_values(arguments):
    summary = random_programs.check([*arguments, "--devices=8", "--seed=1"])
    assert not summary.wrong and not summary.errors, summary.line()
