"""How processes agree on messages in memory of GPUs, over an MPI; the engine has no GPU here."""

from functools import partial

import jax
import numpy as np
import pytest

import jaxccomp as jcc
from jaxccomp import comm, errors
from jaxccomp._bootstrap import cuda_aware_mpi
from jaxccomp._native import engine

pytestmark = pytest.mark.skipif(
    any(device.platform == "gpu" for device in jax.devices()), reason="JAX has a GPU"
)


def agree(core, world, timeout_seconds=30.0):
    """As if each rank were on a host of its own."""
    share = partial(comm._joined().share_with_all, 60.0)
    return cuda_aware_mpi.agree(core, share, world.rank, range(world.size), timeout_seconds)


def test_who_has_none_goes_on_as_before(world):
    with jcc.config.override(device_mpi_bytes=1):
        reasons = agree(engine.load(), world)
        total = jax.jit(jcc.allreduce)(np.arange(30000.0, dtype=np.float32))
    np.testing.assert_array_equal(total, world.size * np.arange(30000.0, dtype=np.float32))
    others = [reason for rank, reason in enumerate(reasons) if rank != world.rank]
    assert "this host" in reasons[world.rank]
    assert all("this rank takes no part" in reason for reason in others)
    # Either the library says so, or, of one that is, the machine.
    assert all("CUDA-aware" in reason or "no GPU" in reason for reason in others)
    assert jcc.stats.get().total.cuda_aware_sent_bytes == 0


class Core:
    """In the engine's place: what one rank finds, by process."""

    def __init__(self, count, works, late=False):
        self.count, self.works, self.late = count, works, late

    def prepare_device_mpi(self):
        return self.count, "" if self.count else "it is of no use"

    def warm_up_device_mpi(self, takes_part, partners, timeout_seconds):
        self.takes_part, self.partners = takes_part, partners
        if self.late:
            raise RuntimeError("messages to process 1 did not get through in time")
        with_whom = list(zip(partners, self.works, strict=True))
        reasons = ["bad" if partner and not each else "" for partner, each in with_whom]
        return [int(partner and each) for partner, each in with_whom], reasons

    def agree_on_device_mpi(self, works):
        self.agreed = works


def test_every_rank_hears_of_all(world):
    # The last one takes no part, and the first one cannot reach the second.
    n, rank = world.size, world.rank
    takes = [int(each != n - 1 or n == 1) for each in range(n)]
    works = [int((rank, other) != (0, 1)) for other in range(n)]
    core = Core(takes[rank], works)
    reasons = agree(core, world)
    assert core.takes_part == takes
    assert core.partners == [int(takes[rank] and takes[o] and o != rank) for o in range(n)]
    table = [
        [int(takes[a] and takes[b] and a != b and (a, b) != (0, 1)) for b in range(n)]
        for a in range(n)
    ]
    assert core.agreed == table
    for other, reason in enumerate(reasons):
        used = table[rank][other] and table[other][rank]
        assert bool(reason) != bool(used), (other, reason)


def test_what_does_not_get_through_is_an_error_that_says_what_to_do(world):
    with pytest.raises(errors.InitializationError, match="JAXCCOMP_DEVICE_MPI_BYTES=0"):
        agree(Core(1, [1] * world.size, late=True), world)


def test_it_is_off_by_default():
    assert comm.why_no_device_mpi() == []
