"""The argument `ref=`, and its effect on a program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_errors import raises

import jaxccomp as jcc
from jaxccomp._native import engine

X = {"layer": [np.ones((2, 3), np.float32), np.ones(4, np.int8)]}


def bcast(x, ref, **options):
    return jcc.bcast(x, ref=ref, **({"codec": "lossless"} | options))


@pytest.mark.parametrize("codec", [None, "raw", "raw|raw", jcc.codecs.RAW])
def test_delta_base_requires_a_codec(codec):
    with raises(jcc.errors.InvalidArgumentError, "bcast", "ref=", "codec='lossless'"):
        jax.jit(lambda x: bcast(x, x, codec=codec))(X)


@pytest.mark.parametrize(
    "ref,facts",
    [
        ({"layer": [X["layer"][0]]}, ("['layer'][1]", "in x, not in ref")),
        ({**X, "more": 1.0}, ("['more']", "in ref, not in x")),
        ({"layer": tuple(X["layer"])}, ("ref=", "[*, *]", "(*, *)")),
        ({"layer": [X["layer"][0], None]}, ("['layer'][1]", "in x, not in ref")),
        (1.0, ("['layer'][0]", "in x, not in ref")),
        (
            {"layer": [np.ones((3, 2), np.float32), X["layer"][1]]},
            ("ref['layer'][0]", "x['layer'][0]", "float32[2,3]", "float32[3,2]"),
        ),
        (
            {"layer": [X["layer"][0], np.ones(4, np.uint8)]},
            ("ref['layer'][1]", "x['layer'][1]", "int8[4]", "uint8[4]"),
        ),
    ],
)
def test_delta_base_must_have_the_values_shapes_and_dtypes(ref, facts):
    with raises(jcc.errors.InvalidArgumentError, facts):
        bcast(X, ref)


def test_delta_base_leaves_must_be_arrays():
    with raises(jcc.errors.UnsupportedDTypeError, "bcast", "<object object at"):
        bcast(X, {"layer": [object(), object()]})


def test_bcast_of_one_rank_with_delta_base_returns_the_values():
    ref = jax.tree.map(jnp.zeros_like, X)
    for codec in ("lossless", "bf16", "auto"):
        result = jax.jit(lambda x, ref, codec=codec: bcast(x, ref, codec=codec))(X, ref)
        jax.tree.map(np.testing.assert_array_equal, result, X)
    assert bcast({}, {}) == {}


def test_auto_selects_delta_with_a_delta_base():
    text = str(jax.make_jaxpr(lambda x: bcast(x, x, codec="auto"))(1.0))
    assert "codec='delta'" in text and "has_ref=True" in text, text


@pytest.mark.skipif(not engine.available(), reason="needs the engine")
def test_result_reuses_donated_memory_of_the_delta_base():
    """The delta base's memory is preferred: XLA may place the values in a temporary."""

    def program(x, ref):
        return bcast(x + 1, ref)

    x = jnp.ones(1000)
    for donated, operand in (((), 0), ((1,), 1)):
        text = jax.jit(program, donate_argnums=donated).lower(x, x).as_text()
        assert f"output_tuple_indices = [], operand_index = {operand}" in text, text
