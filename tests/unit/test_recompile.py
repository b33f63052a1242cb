"""Each program compiles once, and jitted calls use JAX's C++ fast path."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract.compiles import counted
from jax._src import pjit
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxccomp as jcc


def on_axis(function, **options):
    """Runs ``function`` along an axis of one device."""
    mesh = Mesh(np.array(jax.devices()[:1]), ("d",))
    return jax.shard_map(
        lambda x: function(x, axis_name="d", **options),
        mesh=mesh,
        in_specs=P("d"),
        out_specs=P("d"),
        check_vma=False,
    )


STYLES = {
    "axis": lambda f, **options: on_axis(f, **options),
    "process": lambda f, **options: lambda x: f(x, comm=jcc.world(), **options),
}
OPERATIONS = {
    "bcast": (jcc.bcast, {"root": 0}),
    "allreduce": (jcc.allreduce, {"op": "sum", "codec": "bf16"}),
    "allgather": (jcc.allgather, {}),
    "alltoall": (jcc.alltoall, {}),
    "allgatherv": (jcc.allgatherv, {"counts": [1]}),
    "sendrecv": (jcc.sendrecv, {"dest": [0]}),
}
# Between processes, shapes of the v-variants differ by rank, and so do programs.
IN_PROGRAM_ORDER = {"allgatherv"}


@pytest.fixture(params=STYLES)
def style(request):
    return STYLES[request.param]


@functools.cache
def shard_map_itself():
    """Returns the number of programs that JAX recompiles in each eager shard_map."""
    x = jnp.ones((1, 3))

    def call():
        return on_axis(lambda x, axis_name: x + x)(x)

    call()
    with counted() as again:
        jax.block_until_ready(call())
    return again.programs


@pytest.mark.parametrize("name", OPERATIONS)
def test_second_eager_call_compiles_nothing(style, name):
    function, options = OPERATIONS[name]
    x = jnp.ones((1, 3))
    extra = shard_map_itself() if style is STYLES["axis"] else 0
    jax.clear_caches()
    with counted() as first:
        jax.block_until_ready(style(function, **options)(x))
    assert first.programs >= max(extra, 1)
    for _ in range(3):
        # Equal arguments, not the same objects.
        copies = {key: list(v) if isinstance(v, list) else v for key, v in options.items()}
        with counted() as again:
            jax.block_until_ready(style(function, **copies)(x))
        assert again.programs == extra


@pytest.mark.parametrize("name", OPERATIONS)
def test_jit_traces_and_compiles_once(style, name):
    function, options = OPERATIONS[name]
    traces = []

    def traced(x, **keywords):
        traces.append(1)
        return function(x, **keywords)

    f = jax.jit(style(traced, **options))
    x = jnp.ones((1, 4))
    f(x)
    with counted() as again:
        for _ in range(3):
            jax.block_until_ready(f(x + 0))
    assert len(traces) == 1
    assert again.programs <= 1  # for `x + 0`
    with counted() as other:
        jax.block_until_ready(f(jnp.ones((1, 5))))
    assert len(traces) == 2 and other.programs >= 1


@pytest.fixture
def fast_path(monkeypatch):
    """Records JAX's fast-path data of each call; None: the slow path."""
    given = []
    original = pjit._get_fastpath_data

    def recorded(*arguments, **keywords):
        given.append(original(*arguments, **keywords))
        return given[-1]

    monkeypatch.setattr(pjit, "_get_fastpath_data", recorded)
    return given


@pytest.mark.parametrize("name", OPERATIONS)
def test_jitted_calls_use_the_cpp_fast_path(style, name, fast_path):
    function, options = OPERATIONS[name]
    if style is STYLES["process"] and name in IN_PROGRAM_ORDER:
        pytest.skip("matched in program order")
    f = jax.jit(style(function, **options))
    x = np.ones((1, 6), np.float32)
    f(x)
    assert len(fast_path) == 1 and fast_path[0] is not None
    for _ in range(3):
        f(x)
    assert len(fast_path) == 1  # later calls bypass Python


def test_ordered_calls_do_not_use_the_cpp_fast_path(fast_path):
    """Documents the cost of `ordered()`."""
    comm = jcc.world().ordered()
    f = jax.jit(lambda x: jcc.bcast(x, comm=comm))
    f(np.ones(3, np.float32))
    assert fast_path == [None]


def test_new_operand_values_do_not_recompile():
    """Calls are equal by value: a new communicator, counts in a new list."""
    x = jnp.ones((1, 7))

    def once():
        comm = jcc.Communicator("world", (0,))
        return jax.block_until_ready(jcc.allgatherv(x, counts=[1], comm=comm))

    once()
    with counted() as again:
        once()
    assert again.programs == 0
