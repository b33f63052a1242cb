"""Many collectives at once on forced host devices; the script in tests/stress runs it longer."""

import pytest
from contract import AxisPlace
from stress import independent_collectives

pytestmark = pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")


@pytest.mark.parametrize("devices,mode", [(8, "no_check_vma"), (3, "check_vma")])
def test_concurrent_independent_collectives_return_right_values(devices, mode):
    wrong = independent_collectives.check(AxisPlace(devices, mode), runs=30)
    assert not wrong, "\n".join(wrong[:10])
