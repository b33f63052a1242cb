"""Errors that outer steps detect, and when."""

import pathlib

import jax
import jax.numpy as jnp
import pytest
import slow_links

from jaxccomp import errors, optim

pytest.importorskip("optax")

PARAMS = {"w": jnp.ones((3, 4), "float32"), "b": jnp.zeros(4, "float32")}


def streaming(outer=None, every=6, fragments=2, delay=1, **options):
    return optim.Streaming(outer or optim.local_sgd(), every, fragments, delay, **options)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"every": 0}, "every must be an integer of at least 1, not 0"),
        ({"every": 2.0}, "every must be an integer of at least 1, not 2.0"),
        ({"fragments": 0}, "fragments must be an integer of at least 1 and at most 6.* not 0"),
        ({"fragments": 7}, "at most 6, as every= says, not 7"),
        ({"delay": -1}, "delay must be an integer of at least 0 and at most 5.* not -1"),
        ({"delay": 6}, "at most 5, as every= says, not 6"),
        ({"mixing": -0.1}, "mixing must be a number from 0 to 1, not -0.1"),
        ({"mixing": 2}, "mixing must be a number from 0 to 1, not 2"),
        ({"mixing": "half"}, "mixing must be a number from 0 to 1, not 'half'"),
        ({"mixing": float("nan")}, "not nan"),
        ({"outer": "diloco"}, "what jaxccomp.optim.diloco, local_sgd or .* not 'diloco'"),
        ({"outer": optim.diloco(axis_name="d")}, "outside of shard_map.*mesh=mesh"),
    ],
    ids=str,
)
def test_streaming_names_what_is_wrong(arguments, text):
    with pytest.raises(errors.InvalidArgumentError, match=text):
        streaming(**arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"density": 0}, errors.InvalidArgumentError, r"density must be in \(0, 1\]"),
        ({"density": 1.5}, errors.InvalidArgumentError, "1.5"),
        ({"decay": -0.5}, errors.InvalidArgumentError, r"decay in \[0, 1\].*-0.5"),
        ({"learning_rate": 0}, errors.InvalidArgumentError, "learning_rate above 0"),
        ({"codec": "int8"}, errors.InvalidArgumentError, "codec must be lossless, not 'int8'"),
        ({"codec": "lossles"}, errors.UnknownNameError, "Did you mean 'lossless'"),
        ({"densty": 0.1}, errors.UnknownKeywordError, "'densty'"),
        ({"backend": "navite"}, errors.UnknownNameError, "Did you mean 'native'"),
    ],
    ids=str,
)
def test_sparse_loco_names_what_is_wrong(arguments, error, text):
    with pytest.raises(error, match=text):
        optim.sparse_loco(**arguments)


def test_a_mesh_goes_with_its_axis():
    with pytest.raises(errors.InvalidArgumentError, match="mesh= goes with axis_name="):
        optim.diloco(mesh=object())


@pytest.mark.parametrize("make", [optim.diloco, optim.local_sgd, optim.sparse_loco, streaming])
def test_parameters_must_be_floating(make):
    with pytest.raises(errors.UnsupportedDTypeError, match="must be floating, not int32"):
        make().init({**PARAMS, "count": jnp.int32(1)})


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"w": PARAMS["w"]}, r"have at \['b'\] float32\[4\], not nothing"),
        ({**PARAMS, "c": PARAMS["b"]}, r"have at \['c'\] nothing, not float32\[4\]"),
        ({**PARAMS, "b": jnp.zeros(5, "float32")}, r"float32\[4\], not float32\[5\]"),
        ({**PARAMS, "b": jnp.zeros(4, "bfloat16")}, r"float32\[4\], not bfloat16\[4\]"),
    ],
    ids=["fewer", "more", "shape", "dtype"],
)
def test_parameters_must_be_those_of_init(params, text):
    outer = optim.diloco()
    with pytest.raises(errors.InvalidArgumentError, match=text):
        outer.step(params, outer.init(PARAMS))
    if len(params) == 2:
        parts = streaming()
        with pytest.raises(errors.InvalidArgumentError, match=text):
            parts.step(params, parts.init(PARAMS))


def test_states_and_parameters_of_others():
    with pytest.raises(errors.InvalidArgumentError, match="fragments=3 of 2 leaves"):
        streaming(fragments=3).init(PARAMS)
    state = streaming(fragments=1).init(PARAMS)
    with pytest.raises(errors.InvalidArgumentError, match="has 1 fragments, not 2"):
        streaming().step(PARAMS, state)


@pytest.mark.parametrize(
    ("exchange", "text"),
    [
        (optim.PolicyState(0, None), "sparse_loco: the state must be a FeedbackState.*PolicyState"),
        (optim.FeedbackState(None), "sparse_loco: the residual must be a pytree like"),
        (optim.FeedbackState({"w": PARAMS["w"]}), "sparse_loco: the residual must be a pytree"),
        (
            optim.FeedbackState({"w": PARAMS["w"][None], "b": PARAMS["b"]}),
            r"sparse_loco: residual\['w'\] of the state has the shape \[1, 3, 4\].*stack_residuals",
        ),
    ],
    ids=["kind", "nothing", "tree", "shape"],
)
def test_sparse_loco_checks_what_it_keeps(exchange, text):
    outer = optim.sparse_loco()
    state = outer.init(PARAMS)
    outer.step(PARAMS, state)
    with pytest.raises(errors.InvalidArgumentError, match=text):
        outer.step(PARAMS, state._replace(exchange=exchange))


def test_a_state_of_something_else():
    outer = optim.diloco()
    with pytest.raises(errors.InvalidArgumentError, match="must be an OuterState.*not tuple"):
        outer.step(PARAMS, ())
    mesh = jax.make_mesh((1,), ("d",))
    with pytest.raises(errors.InvalidArgumentError, match="must be an OuterState.*not NoneType"):
        optim.diloco(axis_name="d", mesh=mesh).step(PARAMS, None)


def test_alone():
    """With one rank, an outer step equals a step of the outer optimiser."""
    outer = optim.diloco()
    moved = {name: x - 1 for name, x in PARAMS.items()}
    params, _ = outer.step(moved, outer.init(PARAMS))
    assert jnp.allclose(params["b"], -0.7 * 1.9, atol=1e-6)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["not jitted", "jitted"])
def test_what_a_program_donates_is_not_in_the_state(wrap):
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


def test_the_table_of_bytes():
    page = pathlib.Path(__file__).parents[2] / "docs/slow_links.md"
    shown = page.read_text().partition("<!-- python tools/slow_links.py -->\n")[2]
    assert shown.partition("<!-- end -->")[0] == slow_links.table()
