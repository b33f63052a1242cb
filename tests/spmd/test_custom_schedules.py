"""User-registered algorithms along an axis of devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import AxisPlace, plugin
from golden_errors import raises

import jaxccomp as jcc


@pytest.fixture(autouse=True)
def nothing_is_registered(monkeypatch):
    plugin.install(monkeypatch)


@pytest.mark.parametrize("n", [2, 3, 4, 7])
@pytest.mark.parametrize("codec", [None, "bf16"])
def test_registered_algorithms_return_numpy_results(n, codec):
    """Results on whole numbers equal NumPy's bit for bit."""
    place = AxisPlace(n, "no_check_vma")
    x = np.random.default_rng(n).integers(-20, 20, (n, 5000)).astype(np.float32)
    rows = np.random.default_rng(n).integers(-20, 20, (n, n, 300)).astype(np.float32)
    how = {"codec": codec, **place.how, "backend": "native"}

    def program(inputs, _):
        v, w = inputs
        return (
            jcc.bcast(v, root=n - 1, algorithm="plugin_line:chunk=4096", **how),
            jcc.allreduce(v, op="mean", algorithm="plugin_sum:chunk=4096", **how) * n,
            jcc.alltoall(w, algorithm="plugin_pairs", **how),
        )

    line, total, pairs = place.run(program, (x, rows))
    np.testing.assert_array_equal(line, np.stack([x[-1]] * n))
    if codec is None:
        np.testing.assert_allclose(total, np.stack([x.sum(axis=0)] * n), rtol=1e-6, atol=1e-5)
    np.testing.assert_array_equal(total, np.stack([total[0]] * n))
    np.testing.assert_array_equal(pairs, rows.swapaxes(0, 1))


def test_registered_algorithms_support_groups_and_vmap():
    """Each group size has its own schedules; vmap enlarges their blocks."""
    place = AxisPlace(4, "no_check_vma")
    x = np.arange(4 * 3 * 7, dtype=np.float32).reshape(4, 3, 7)

    def program(v, _):
        def sums(row):
            return jcc.allreduce(
                row, algorithm="plugin_sum", axis_index_groups=[[0, 2], [1, 3]], **place.how
            )

        return jax.vmap(sums)(v)

    got = place.run(program, x)
    np.testing.assert_array_equal(got, np.stack([x[0] + x[2], x[1] + x[3]] * 2))


def test_registered_algorithms_lower_in_concurrent_threads():
    """Schedules are created, checked and cached correctly, by either thread."""
    import concurrent.futures

    place = AxisPlace(4, "no_check_vma")
    x = np.arange(4 * 9, dtype=np.float32).reshape(4, 9)

    def run(size):
        return place.run(
            lambda v, _: jcc.bcast(v, root=1, algorithm="plugin_line", **place.how), x[:, :size]
        )

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        for size, got in zip((4, 4, 9, 9), threads.map(run, (4, 4, 9, 9)), strict=True):
            np.testing.assert_array_equal(got, np.stack([x[1, :size]] * 4))


def test_wrong_schedule_is_refused_while_lowering():
    place = AxisPlace(3, "no_check_vma")

    @jcc.register_algorithm("half", "allgather")
    def half(b):
        b.copy(b.output(block=b.rank), b.input())

    with raises(
        jcc.errors.ScheduleError, "allgather 'half'", "3 ranks", "rank 0: output1 at byte 0"
    ):
        place.run(lambda v, _: jcc.allgather(v, algorithm="half", **place.how), jnp.ones((3, 4)))
