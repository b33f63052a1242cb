"""How processes agree on device IPC, over MPI; the engine has no GPU here."""

from functools import partial

import jax
import numpy as np
import pytest

import jaxccomp as jcc
from jaxccomp import comm
from jaxccomp._bootstrap import device_ipc
from jaxccomp._native import engine

pytestmark = pytest.mark.skipif(
    any(device.platform == "gpu" for device in jax.devices()), reason="JAX has a GPU"
)


def test_nobody_has_what_can_be_exported(world):
    with jcc.config.override(device_ipc_bytes=1):
        reasons = device_ipc.agree(
            engine.load(), partial(comm._joined().share_with_all, 60.0), world.rank
        )
    assert len(reasons) == world.size
    assert all("imports no memory" in reason for reason in reasons)
    # And operations go on.
    total = jax.jit(jcc.allreduce)(np.arange(1000.0, dtype=np.float32))
    np.testing.assert_array_equal(total, world.size * np.arange(1000.0, dtype=np.float32))


def test_ranks_may_differ_in_what_they_offer(world):
    class Core:
        """In the engine's place: rank r offers r bytes of its number."""

        def offer_ipc(self):
            return bytes([world.rank]) * world.rank

        def open_ipc(self, offers):
            assert offers == [bytes([rank]) * rank for rank in range(world.size)]
            return [rank % 2 for rank in range(world.size)], [""] * world.size

        def agree_on_ipc(self, opened):
            self.opened = opened

    core = Core()
    device_ipc.agree(core, partial(comm._joined().share_with_all, 60.0), world.rank)
    assert core.opened == [[rank % 2 for rank in range(world.size)]] * world.size


def test_it_is_off_by_default():
    assert comm.why_no_ipc() == []
