"""The argument `ref=`, and its effect on a program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxccomp as jcc
from jaxccomp._native import engine

X = {"layer": [np.ones((2, 3), np.float32), np.ones(4, np.int8)]}


def bcast(x, ref, **options):
    return jcc.bcast(x, ref=ref, **({"codec": "lossless"} | options))


@pytest.mark.parametrize("codec", [None, "raw", "raw|raw", jcc.codecs.RAW])
def test_a_reference_needs_a_codec(codec):
    with pytest.raises(jcc.errors.InvalidArgumentError, match="ref= needs a codec, such as"):
        jax.jit(lambda x: bcast(x, x, codec=codec))(X)


@pytest.mark.parametrize(
    "ref,says",
    [
        ({"layer": [X["layer"][0]]}, r"the leaf \['layer'\]\[1\] is in x, not in ref"),
        ({**X, "more": 1.0}, r"the leaf \['more'\] is in ref, not in x"),
        ({"layer": tuple(X["layer"])}, r"\(\*, \*\)"),
        ({"layer": [X["layer"][0], None]}, r"\['layer'\]\[1\] is in x"),
        (1.0, r"\['layer'\]\[0\] is in x"),
        (
            {"layer": [np.ones((3, 2), np.float32), X["layer"][1]]},
            r"ref\['layer'\]\[0\] must have .* x\['layer'\]\[0\], float32\[2,3\], not "
            r"float32\[3,2\]",
        ),
        (
            {"layer": [X["layer"][0], np.ones(4, np.uint8)]},
            r"ref\['layer'\]\[1\] must have .* int8\[4\], not uint8\[4\]",
        ),
    ],
)
def test_a_reference_is_like_the_values(ref, says):
    with pytest.raises(jcc.errors.InvalidArgumentError, match=says):
        bcast(X, ref)


def test_a_reference_is_of_arrays():
    with pytest.raises(jcc.errors.UnsupportedDTypeError, match="object"):
        bcast(X, {"layer": [object(), object()]})


def test_of_one_rank():
    ref = jax.tree.map(jnp.zeros_like, X)
    for codec in ("lossless", "bf16", "auto"):
        result = jax.jit(lambda x, ref, codec=codec: bcast(x, ref, codec=codec))(X, ref)
        jax.tree.map(np.testing.assert_array_equal, result, X)
    assert bcast({}, {}) == {}


def test_auto_is_delta_with_a_reference():
    text = str(jax.make_jaxpr(lambda x: bcast(x, x, codec="auto"))(1.0))
    assert "codec='delta'" in text and "referenced=True" in text, text


@pytest.mark.skipif(not engine.available(), reason="needs the engine")
def test_the_result_takes_over_donated_memory():
    """The reference's memory is preferred: the values may be a temporary that XLA places itself."""

    def program(x, ref):
        return bcast(x + 1, ref)

    x = jnp.ones(1000)
    for donated, operand in (((), 0), ((1,), 1)):
        text = jax.jit(program, donate_argnums=donated).lower(x, x).as_text()
        assert f"output_tuple_indices = [], operand_index = {operand}" in text, text
