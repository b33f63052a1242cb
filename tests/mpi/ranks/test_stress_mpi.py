"""Many concurrent collectives between processes; the script in tests/stress runs it longer."""

import pytest
from contract import ProcessPlace
from stress import independent_collectives

pytestmark = pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")


def test_concurrent_independent_collectives_return_right_values(world):
    wrong = independent_collectives.check(ProcessPlace(world), runs=30)
    assert not wrong, "\n".join(wrong[:10])
