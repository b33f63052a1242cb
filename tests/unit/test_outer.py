"""Errors that outer steps detect, and when."""

import pathlib

import jax
import jax.numpy as jnp
import pytest
import slow_links
from golden_errors import raises

from jaxccomp import errors, optim

pytest.importorskip("optax")

PARAMS = {"w": jnp.ones((3, 4), "float32"), "b": jnp.zeros(4, "float32")}


def streaming(outer=None, every=6, fragments=2, delay=1, **options):
    return optim.Streaming(outer or optim.local_sgd(), every, fragments, delay, **options)


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ({"every": 0}, ("every", "1", "not 0")),
        ({"every": 2.0}, ("every", "1", "not 2.0")),
        ({"fragments": 0}, ("fragments", "6", "every=", "not 0")),
        ({"fragments": 7}, ("fragments", "6", "every=", "not 7")),
        ({"delay": -1}, ("delay", "5", "every=", "not -1")),
        ({"delay": 6}, ("delay", "5", "every=", "not 6")),
        ({"mixing": -0.1}, ("mixing", "0 to 1", "-0.1")),
        ({"mixing": 2}, ("mixing", "0 to 1", "not 2")),
        ({"mixing": "half"}, ("mixing", "0 to 1", "'half'")),
        ({"mixing": float("nan")}, ("mixing", "nan")),
        (
            {"outer": "diloco"},
            ("outer", "jaxccomp.optim.diloco, local_sgd or sparse_loco", "'diloco'"),
        ),
        ({"outer": optim.diloco(axis_name="d")}, ("shard_map", "'d'", "mesh=mesh")),
    ],
)
def test_streaming_refuses_invalid_arguments(arguments, facts):
    with raises(errors.InvalidArgumentError, facts):
        streaming(**arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "facts"),
    [
        ({"density": 0}, errors.InvalidArgumentError, ("density", "(0, 1]", "not 0,")),
        ({"density": 1.5}, errors.InvalidArgumentError, ("density", "(0, 1]", "1.5")),
        ({"decay": -0.5}, errors.InvalidArgumentError, ("decay", "[0, 1]", "-0.5")),
        ({"learning_rate": 0}, errors.InvalidArgumentError, ("learning_rate", "0.95, 0.")),
        (
            {"codec": "int8"},
            errors.InvalidArgumentError,
            ("codec", "lossless", "'int8'", "density=", "quantize="),
        ),
        ({"codec": "lossles"}, errors.UnknownNameError, ("'lossles'", "'lossless'")),
        ({"densty": 0.1}, errors.UnknownKeywordError, ("'densty'", "allgather")),
        ({"backend": "navite"}, errors.UnknownNameError, ("'navite'", "'native'")),
    ],
)
def test_sparse_loco_refuses_invalid_arguments(arguments, error, facts):
    with raises(error, facts):
        optim.sparse_loco(**arguments)


def test_mesh_and_axis_name_are_required_together():
    with raises(errors.InvalidArgumentError, "diloco", "mesh=", "axis_name="):
        optim.diloco(mesh=object())


@pytest.mark.parametrize("make", [optim.diloco, optim.local_sgd, optim.sparse_loco, streaming])
def test_parameters_must_be_floating(make):
    with raises(errors.UnsupportedDTypeError, "gradients", "floating", "int32", "optax.masked"):
        make().init({**PARAMS, "count": jnp.int32(1)})


@pytest.mark.parametrize(
    ("params", "facts"),
    [
        ({"w": PARAMS["w"]}, ("['b']", "float32[4]", "nothing", "init(params)")),
        ({**PARAMS, "c": PARAMS["b"]}, ("['c']", "float32[4]", "nothing", "init(params)")),
        ({**PARAMS, "b": jnp.zeros(5, "float32")}, ("['b']", "float32[4]", "float32[5]")),
        ({**PARAMS, "b": jnp.zeros(4, "bfloat16")}, ("['b']", "float32[4]", "bfloat16[4]")),
    ],
    ids=["fewer", "more", "shape", "dtype"],
)
def test_step_refuses_parameters_that_differ_from_init(params, facts):
    outer = optim.diloco()
    with raises(errors.InvalidArgumentError, facts):
        outer.step(params, outer.init(PARAMS))
    if len(params) == 2:
        parts = streaming()
        with raises(errors.InvalidArgumentError, facts):
            parts.step(params, parts.init(PARAMS))


def test_streaming_refuses_states_of_another_fragment_count():
    with raises(errors.InvalidArgumentError, "fragments=3", "2 leaves"):
        streaming(fragments=3).init(PARAMS)
    state = streaming(fragments=1).init(PARAMS)
    with raises(errors.InvalidArgumentError, "1 fragments", "2"):
        streaming().step(PARAMS, state)


@pytest.mark.parametrize(
    ("exchange", "facts"),
    [
        (optim.PolicyState(0, None), ("sparse_loco", "state", "FeedbackState", "PolicyState")),
        (optim.FeedbackState(None), ("sparse_loco", "residual", "None", "init(params)")),
        (
            optim.FeedbackState({"w": PARAMS["w"]}),
            ("sparse_loco", "residual", "{'w': *}", "init(params)"),
        ),
        (
            optim.FeedbackState({"w": PARAMS["w"][None], "b": PARAMS["b"]}),
            ("sparse_loco", "residual['w']", "[1, 3, 4]", "[3, 4]", "unstack_residuals"),
        ),
    ],
    ids=["kind", "nothing", "tree", "shape"],
)
def test_sparse_loco_refuses_a_mismatched_exchange_state(exchange, facts):
    outer = optim.sparse_loco()
    state = outer.init(PARAMS)
    outer.step(PARAMS, state)
    with raises(errors.InvalidArgumentError, facts):
        outer.step(PARAMS, state._replace(exchange=exchange))


def test_outer_step_refuses_states_of_other_transformations():
    outer = optim.diloco()
    with raises(errors.InvalidArgumentError, "diloco", "OuterState", "init(params)", "tuple"):
        outer.step(PARAMS, ())
    mesh = jax.make_mesh((1,), ("d",))
    with raises(errors.InvalidArgumentError, "diloco", "OuterState", "init(params)", "NoneType"):
        optim.diloco(axis_name="d", mesh=mesh).step(PARAMS, None)


def test_outer_step_of_one_rank_equals_the_outer_optimizer():
    outer = optim.diloco()
    moved = {name: x - 1 for name, x in PARAMS.items()}
    params, _ = outer.step(moved, outer.init(PARAMS))
    assert jnp.allclose(params["b"], -0.7 * 1.9, atol=1e-6)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["not jitted", "jitted"])
def test_outer_state_holds_no_donated_parameters(wrap):
    """The next inner step may overwrite donated parameters."""
    outer = optim.diloco()
    params = jax.tree.map(jnp.copy, PARAMS)
    state = wrap(outer.init)(params)
    for _ in range(2):
        moved = jax.tree.map(lambda x: x - 1, params)
        for x in jax.tree.leaves(params):
            x.delete()
        params, state = wrap(outer.step)(moved, state)
    assert all(not x.is_deleted() for x in jax.tree.leaves((params, state)))


def test_byte_table_of_slow_links_page_matches_the_tool():
    page = pathlib.Path(__file__).parents[2] / "docs/slow_links.md"
    shown = page.read_text().partition("<!-- python tools/slow_links.py -->\n")[2]
    assert shown.partition("<!-- end -->")[0] == slow_links.table()
